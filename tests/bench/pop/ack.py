"""Cost of the pop journal for a consumer that acknowledges at once.

    python -m cometmq.tests.bench.pop.ack [--rounds 60]

Receives and acknowledges 32 and 1 at a time through the handlers of one broker, in rounds
alternating with and without the journal. Target: the journal adds at most 5 % of the total budget
per message (80 us at 32 at a time, 290 us alone, including the door). Also measures batches that
are not acknowledged in time: CPU per checkpoint and its ack record.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.server import BrokerServer
from cometmq.front.config import DoorConfig
from cometmq.ha.config import HaConfig
from cometmq.proto import v2
from cometmq.store.config.store_config import StoreConfig
from cometmq.tests.bench.handlers import (
    BATCH,
    RECEIVE,
    TOPIC,
    ack_requests,
    context,
    send_request,
    sends,
)
from cometmq.tests.bench.rows import Row, show

SHARE = 0.05
ALLOWED_US = {BATCH: 80, 1: 290}
MESSAGES = 512


def receive(node: Broker, batch: int) -> list[bytes]:
    """Return the messages of one ReceiveMessage, still encoded."""
    request = v2.ReceiveMessageRequest.FromString(RECEIVE)
    request.batch_size = batch
    answer = node.receiving.receive(request, context())
    assert isinstance(answer, list)
    return answer[1:-1]


async def consumed(node: Broker, batch: int) -> float:
    """Return CPU microseconds per message received and acknowledged, with deferred work."""
    acks = node.acks
    await sends(node, [send_request(n, BATCH) for n in range(0, MESSAGES, BATCH)])
    begin = time.process_time()
    batches = [receive(node, batch) for _ in range(MESSAGES // batch)]
    spent = time.process_time() - begin
    requests = ack_requests(batches)
    begin = time.process_time()
    for raw in requests:
        acks.ack(v2.AckMessageRequest.FromString(raw), context())
    journal = node.journal
    # Deferred work is part of the cost; a real broker does it less often.
    journal.flush_all()
    spent += time.process_time() - begin
    return spent / sum(map(len, batches)) * 1e6


async def written(node: Broker, batch: int) -> float:
    """Return CPU microseconds per checkpoint and ack record."""
    acks, journal = node.acks, node.journal
    await sends(node, [send_request(n, BATCH) for n in range(0, MESSAGES, BATCH)])
    batches = [receive(node, batch) for _ in range(MESSAGES // batch)]
    requests = ack_requests(batches)
    begin = time.process_time()
    journal.writer.flush_all()
    spent = time.process_time() - begin
    for raw in requests:
        acks.ack(v2.AckMessageRequest.FromString(raw), context())
    begin = time.process_time()
    journal.writer.flush_all()
    return (spent + time.process_time() - begin) / len(batches) * 1e6


async def bench(node: Broker, rounds: int) -> list[Row]:
    """Return all rows."""
    rows = []
    for batch in (BATCH, 1):
        figures: dict[bool, list[float]] = {True: [], False: []}
        for n in range(2 * rounds):
            node.journal.leading = bool(n % 2)
            figures[bool(n % 2)].append(await consumed(node, batch))
        more, less = (statistics.median(figures[kind]) for kind in (True, False))
        room = SHARE * ALLOWED_US[batch]
        rows.append(
            Row(
                f"the journal's part of receive and acknowledge, {batch} at a time",
                more - less,
                "us CPU/message",
                f"handlers without it {less:.2f} us",
                more / less,
                f"at most {room:g} us, 5 % of {ALLOWED_US[batch]}",
                more - less <= room,
            )
        )
    node.journal.leading = True
    for batch in (BATCH, 1):
        cost = statistics.median([await written(node, batch) for _ in range(max(3, rounds // 6))])
        rows.append(Row(f"a checkpoint of {batch} and its ack in the log", cost, "us CPU"))
    return rows


async def run(rounds: int, directory: str) -> list[Row]:
    """Start a broker without a client and call its handlers."""
    server = BrokerServer(
        BrokerConfig(bind_address="127.0.0.1", grpc_server_port=0, metrics_prom_exporter_port=0),
        StoreConfig(store_path_root_dir=str(Path(directory) / "store")),
        HaConfig(ha_listen_port=0),
        DoorConfig(front_door="grpcio"),
    )
    await server.start()
    try:
        server.broker.meta_log.write_topic(Topic(TOPIC.name, 8, 8))
        return await bench(server.broker, rounds)
    finally:
        await server.stop(1.0)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="The cost of the journal of pop state")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        show(asyncio.run(run(options.rounds, directory)))


if __name__ == "__main__":
    main()
