"""CPU time that the metrics add to a send through the native door: counting, without scrapes.

`python -m cometmq.tests.bench.metrics_cost [--groups N]` prints rows for 64 requests in flight and
for one. A broker in this process serves `loadgen`, which sends messages of 1 KiB. Windows with
counting, without it, and as a control without it again alternate in one run, so that other
processes of the machine slow all of them. A figure is the CPU time of the process, both threads of
the door included, for each message stored in a window: the lower quartile of its windows, because
other processes only ever add. The figure without counting is that of its windows and the control's
together. The difference between the control and the windows without counting shows the noise: an
added cost below it is not measurable. "With" counts what a broker counts of a send: messages, bytes
and sizes by topic, and appends with their duration. "Without" calls functions that do nothing, so
their calls count as send path, as do the durations of calls, which the crate counts in about 0.1 us
a call.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from unittest.mock import patch

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.counters import Counters
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.server import BrokerServer
from cometmq.front.config import DoorConfig
from cometmq.ha.config import HaConfig
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.stats import Meter

from .rows import Row, show
from .server import LOADGEN, TOPIC

TARGET_SHARE: Final = 0.02
#: Bytes stored in a window, by requests in flight: 250 messages, and 25. Short windows, because
#: the speed of the machine changes within seconds.
_BYTES_IN_FLIGHT: Final = {64: 256 << 10, 1: 25 << 10}
_WARM_BYTES: Final = 1 << 20
_POLL_S: Final = 0.002
#: The load is terminated earlier.
_LOAD_S: Final = 3_600
_WITH, _WITHOUT, _CONTROL = range(3)
_COUNTING: Final = (
    (Counters, "add_sent"),
    (Counters, "add_sent_requests"),
    (Meter, "put"),
)


def _nothing(*_: object) -> None: ...


async def window(node: Broker, counting: bool, stored: int) -> tuple[int, int, int]:
    """Run until `stored` bytes came; return nanoseconds of CPU, bytes and messages counted."""
    store, meter = node.store, node.store.meter
    steady_ns = meter.steady_ns
    with ExitStack() as stack:
        if not counting:
            meter.steady_ns = None
            for owner, name in _COUNTING:
                stack.enter_context(patch.object(owner, name, _nothing))
        begin, messages, begin_ns = store.log_end, meter.put_messages, time.process_time_ns()
        while store.log_end < begin + stored:  # noqa: ASYNC110 - an event would cost CPU
            await asyncio.sleep(_POLL_S)
        spent_ns = time.process_time_ns() - begin_ns
        found = spent_ns, store.log_end - begin, meter.put_messages - messages
        meter.steady_ns = steady_ns
    return found


async def groups(node: Broker, address: str, inflight: int, count: int) -> list[tuple[float, ...]]:
    """Return microseconds of CPU for a message, by group of windows, in the order of the kinds."""
    load = await asyncio.create_subprocess_exec(
        *(str(LOADGEN), "-endpoint", address, "-topic", TOPIC, "-mode", "send"),
        *("-inflight", str(inflight), "-seconds", str(_LOAD_S)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    found: list[tuple[tuple[int, int, int], ...]] = []
    try:
        await window(node, counting=True, stored=_WARM_BYTES)
        for number in range(count):
            # The order changes, so that an effect of it cancels out.
            order = [(number + turn) % 3 for turn in range(3)]
            ran = {
                kind: await window(node, kind == _WITH, _BYTES_IN_FLIGHT[inflight])
                for kind in order
            }
            found.append(tuple(ran[kind] for kind in range(3)))
    finally:
        load.terminate()
        await load.wait()
    counted = [group[_WITH] for group in found]
    message_bytes = sum(stored for _, stored, _ in counted) / sum(each[2] for each in counted)
    return [
        tuple(spent_ns / stored * message_bytes / 1_000 for spent_ns, stored, _ in group)
        for group in found
    ]


def rows_of(name: str, found: list[tuple[float, ...]]) -> list[Row]:
    """Return the rows of one load."""
    windows = [[group[kind] for group in found] for kind in range(3)]
    with_us, first_us, control_us, without_us = (
        statistics.quantiles(each, n=4)[0]
        for each in (*windows, windows[_WITHOUT] + windows[_CONTROL])
    )
    added_us, noise_us = with_us - without_us, control_us - first_us
    share = added_us / without_us
    return [
        Row(f"{name}: without metrics", without_us, "us CPU", f"{len(found)} groups of windows"),
        Row(f"{name}: added by metrics", added_us, "us CPU", f"control {noise_us:+.2f} us"),
        Row(
            f"{name}: share of the send path",
            share * 100,
            "%",
            target=f"{TARGET_SHARE * 100:g} %",
            met=share <= TARGET_SHARE,
        ),
    ]


async def measure(count: int, directory: str) -> list[Row]:
    """Return the rows."""
    server = BrokerServer(
        BrokerConfig(
            bind_address="127.0.0.1",
            grpc_server_port=0,
            metrics_prom_exporter_port=0,
            broker_fast_failure_enable=False,  # a refused send costs less
        ),
        StoreConfig(store_path_root_dir=str(Path(directory) / "store")),
        HaConfig(ha_listen_port=0),
        DoorConfig(front_door="native"),
    )
    bound = await server.start()
    rows: list[Row] = []
    try:
        node = server.broker
        node.meta_log.write_topic(Topic(TOPIC, 8, 8))
        for inflight in _BYTES_IN_FLIGHT:
            found = await groups(node, bound.client, inflight, count)
            rows += rows_of(f"{inflight} in flight", found)
    finally:
        await server.stop(1.0)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=800, help="groups of three windows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        show(asyncio.run(measure(options.groups, directory)))


if __name__ == "__main__":
    main()
