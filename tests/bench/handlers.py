"""Cost of the handlers without a door: parse, check, store, answer, in this process.

    python -m cometmq.tests.bench.handlers [--seconds 2] [--profile send1]

Prints one JSON line with CPU microseconds per message: one 1 KiB message per request with 64
requests per loop turn, 32 messages per request, receiving 32 at a time, and acknowledging one or 32
per request. Uses a real store (page cache, asynchronous flush), including dispatch to the consume
queues. Budgets: 45 us per message above an empty call, 16 us in batches of 32, 80 us for receive
and acknowledge.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.late_request import decoded_late
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.pop.ack_request import AckRequest
from cometmq.broker.sending.grpc_send import SendRequest
from cometmq.broker.server import BrokerServer
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.front.service import methods_of
from cometmq.ha.config import HaConfig
from cometmq.proto import v2
from cometmq.store.config.store_config import StoreConfig

BODY = bytes(range(256)) * 4
IN_FLIGHT = 64
BATCH = 32
SERVICE = "apache.rocketmq.v2.MessagingService"
TOPIC = v2.Resource(name="bench")
GROUP = v2.Resource(name="bench-group")


def context() -> RequestContext:
    """Make a context as a door does."""
    return RequestContext("bench@1", "GO", "5.1.3", "", "127.0.0.1:50001")


def send_request(first: int, count: int) -> bytes:
    """Make a SendMessage request as the load generator does."""
    born = v2.Timestamp(seconds=1_795_255_684, nanos=123_000_000)
    return v2.SendMessageRequest(
        messages=[
            v2.Message(
                topic=TOPIC,
                body=BODY,
                system_properties=v2.SystemProperties(
                    message_id=f"01FD{first + n:030X}",
                    message_type=v2.NORMAL,
                    born_timestamp=born,
                    born_host="loadgen",
                    body_encoding=v2.IDENTITY,
                ),
            )
            for n in range(count)
        ]
    ).SerializeToString()


RECEIVE = v2.ReceiveMessageRequest(
    group=GROUP,
    message_queue=v2.MessageQueue(topic=TOPIC),
    filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
    batch_size=BATCH,
    invisible_duration=v2.Duration(seconds=60),
    long_polling_timeout=v2.Duration(seconds=5),
).SerializeToString()


async def sends(node: Broker, requests: list[bytes]) -> None:
    """Run one loop turn of sends until all are answered."""
    (method,) = methods_of(SERVICE, {"SendMessage": node.sender.send})
    if node.sender.takes_bytes:
        method = decoded_late(method, SendRequest)
    parse, send, ctx = method.parse, method.handler, context()
    answers = [send(parse(raw), ctx) for raw in requests]
    for answer in answers:
        await answer
    # Work that the broker defers while idle belongs to the cost of a send.
    node.pump.catch_up()


def receive(node: Broker) -> list[bytes]:
    """Return the messages of one ReceiveMessage, still encoded."""
    answer = node.receiving.receive(v2.ReceiveMessageRequest.FromString(RECEIVE), context())
    assert isinstance(answer, list)
    return answer[1:-1]


def ack_requests(batches: list[list[bytes]]) -> list[bytes]:
    """Make a client's acknowledgements, outside of the measured time."""
    requests = []
    for items in batches:
        request = v2.AckMessageRequest(group=GROUP, topic=TOPIC)
        for item in items:
            system = v2.ReceiveMessageResponse.FromString(item).message.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        requests.append(request.SerializeToString())
    return requests


async def bench(node: Broker, seconds: float, profiler: cProfile.Profile | None, what: str) -> None:
    """Run every case and print the line."""
    figures: dict[str, float] = {}

    async def measured(
        name: str, messages: int, step: Callable[[], Awaitable[None] | None]
    ) -> None:
        spent = 0.0
        if profiler is not None and name == what:
            profiler.enable()
        begin = time.process_time()
        pending = step()
        if pending is not None:
            await pending
        spent = time.process_time() - begin
        if profiler is not None and name == what:
            profiler.disable()
        totals.setdefault(name, []).append(spent / messages * 1e6)

    totals: dict[str, list[float]] = {}
    acks = node.acks
    (method,) = methods_of(SERVICE, {"AckMessage": acks.ack})
    if acks.takes_bytes:
        method = decoded_late(method, AckRequest)
    until = time.monotonic() + seconds
    made = 0
    while time.monotonic() < until:
        single = [send_request(made + n, 1) for n in range(IN_FLIGHT)]
        many = [send_request(made + n * BATCH, BATCH) for n in range(8)]
        made += IN_FLIGHT
        await measured("send1", IN_FLIGHT, partial(sends, node, single))
        await measured("send32", 8 * BATCH, partial(sends, node, many))
        batches: list[list[bytes]] = []

        def take(batches: list[list[bytes]] = batches) -> None:
            batches.extend(receive(node) for _ in range(8))

        await measured("receive32", 8 * BATCH, take)

        def give(requests: list[bytes]) -> None:
            for raw in requests:
                acks.ack(method.parse(raw), context())

        one_each = ack_requests([[item] for batch in batches[:2] for item in batch])
        await measured("ack1", 2 * BATCH, partial(give, one_each))
        await measured("ack32", 6 * BATCH, partial(give, ack_requests(batches[2:])))
    for name, values in totals.items():
        values.sort()
        figures[name] = round(values[len(values) // 2], 2)
    print(json.dumps({"bench": "handlers", "cpu_us_per_message": figures, "rounds": len(values)}))


async def run(options: argparse.Namespace, directory: str) -> None:
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
        profiler = cProfile.Profile() if options.profile else None
        await bench(server.broker, options.seconds, profiler, options.profile)
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    finally:
        await server.stop(1.0)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="CPU of the handlers without a door")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--profile", default="", help="send1, send32, receive32, ack1 or ack32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(options, directory))


if __name__ == "__main__":
    main()
