"""CPU time that the metrics add to a send: counting, without scrapes.

`python -m cometmq.tests.bench.metrics_cost` prints rows. Rounds with counting, rounds without it,
and as a control further rounds without it alternate in one run. Each figure is the lower decile of
its rounds, because other processes of the machine only ever add to the CPU time of a round. The
control shows what is left of them: a share below it is not measurable. A round is what
`handlers.py` measures: 64 SendMessage requests of one 1 KiB message in one turn of the loop,
parsed, stored, dispatched and answered, without a door. "With" counts what a broker
counts of a send: messages, bytes and sizes by topic, appends with their duration, and the duration
of the call as the door measures it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from cometmq.broker.config import BrokerConfig
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.metrics.counters import Counters
from cometmq.broker.parts import Broker
from cometmq.broker.server import BrokerServer
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.metrics.calls import CallTimes
from cometmq.ha.config import HaConfig
from cometmq.proto import paths
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.stats import Meter
from cometmq.tests.bench.handlers import IN_FLIGHT, TOPIC, send_request, sends
from cometmq.tests.bench.rows import Row, show

TARGET_SHARE = 0.02
_WARM_ROUNDS = 50


async def counted(node: Broker, requests: list[bytes], times: CallTimes) -> int:
    """Run one round with counting; return its CPU time."""
    begin_ns = time.process_time_ns()
    arrived_ns = time.monotonic_ns()
    await sends(node, requests)
    for _ in requests:
        times.answered(paths.SEND_MESSAGE, arrived_ns)
    await asyncio.sleep(0)  # the turn ends: its durations are added
    return time.process_time_ns() - begin_ns


async def uncounted(node: Broker, requests: list[bytes]) -> int:
    """Run one round without counting; return its CPU time."""
    meter = node.store.meter
    steady_ns, meter.steady_ns = meter.steady_ns, None
    try:
        with (
            patch.object(Counters, "add_sent", _nothing),
            patch.object(Meter, "put", _nothing),
        ):
            begin_ns = time.process_time_ns()
            await sends(node, requests)
            await asyncio.sleep(0)
            return time.process_time_ns() - begin_ns
    finally:
        meter.steady_ns = steady_ns


def _nothing(*_: object) -> None: ...


async def measure(rounds: int, directory: str) -> list[Row]:
    """Return the rows."""
    server = BrokerServer(
        BrokerConfig(bind_address="127.0.0.1", grpc_server_port=0, metrics_prom_exporter_port=0),
        StoreConfig(store_path_root_dir=str(Path(directory) / "store")),
        HaConfig(ha_listen_port=0),
        DoorConfig(front_door="grpcio"),
    )
    await server.start()
    try:
        node = server.broker
        node.meta_log.write_topic(Topic(TOPIC.name, 8, 8))
        times = CallTimes(Clock().steady_ns)
        spent: tuple[list[int], list[int], list[int]] = ([], [], [])
        for number in range(_WARM_ROUNDS + rounds):
            # The order changes, so that an effect of it cancels out.
            for turn in range(3):
                kind = (number + turn) % 3
                first = (number * 3 + turn) * IN_FLIGHT
                requests = [send_request(first + n, 1) for n in range(IN_FLIGHT)]
                if kind == 0:
                    spent[0].append(await counted(node, requests, times))
                else:
                    spent[kind].append(await uncounted(node, requests))
    finally:
        await server.stop(1.0)
    with_us, without_us, control_us = (_decile_us(each[_WARM_ROUNDS:]) for each in spent)
    added_us = with_us - without_us
    share = added_us / without_us
    return [
        Row("send without metrics", without_us, "us CPU"),
        Row("added by metrics", added_us, "us CPU"),
        Row("control: without metrics again", control_us, "us CPU"),
        Row(
            "share of the send path",
            share * 100,
            "%",
            target=f"{TARGET_SHARE * 100:g} %",
            met=share <= TARGET_SHARE,
        ),
    ]


def _decile_us(spent: list[int]) -> float:
    """Return the lower decile for a message, in microseconds."""
    return statistics.quantiles(spent, n=10)[0] / IN_FLIGHT / 1_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        show(asyncio.run(measure(options.rounds, directory)))


if __name__ == "__main__":
    main()
