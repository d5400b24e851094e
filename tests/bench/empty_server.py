"""A server with empty handlers behind either door: the baseline of the benchmarks' ratios.

    python -m cometmq.tests.bench.empty_server --port 0 --door grpcio --items 32

prints its port. It answers SendMessage and AckMessage with OK, and ReceiveMessage with a status, N
prepared messages of 1 KiB and the delivery timestamp, without decoding the requests. With
`--forward HOST:PORT` every call is forwarded to another such server by the access point.
"""

import argparse
import asyncio
import signal
from typing import Any

from cometmq.front.access_point import AccessPoint
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.door import choose_door
from cometmq.front.process import loop_factory
from cometmq.front.service import Kind, Method, status_failure
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import paths, v2

_BODY = b"x" * 1024


def empty_services(items: int, wall_ms: int) -> dict[str, Method]:
    """Return SendMessage, AckMessage and ReceiveMessage with constant answers."""
    status = v2.Status(code=v2.OK, message="OK")
    sent = v2.SendMessageResponse(status=status, entries=[v2.SendResultEntry(status=status)])
    acked = v2.AckMessageResponse(status=status)
    now = v2.Timestamp()
    now.FromMilliseconds(wall_ms)
    received = [v2.ReceiveMessageResponse(status=status).SerializeToString()]
    for offset in range(items):
        received.append(_message(offset, wall_ms, now).SerializeToString())
    received.append(v2.ReceiveMessageResponse(delivery_timestamp=now).SerializeToString())
    methods = (
        _constant(paths.SEND_MESSAGE, Kind.UNARY, sent.SerializeToString(), v2.SendMessageResponse),
        _constant(paths.ACK_MESSAGE, Kind.UNARY, acked.SerializeToString(), v2.AckMessageResponse),
        _constant(paths.RECEIVE_MESSAGE, Kind.SERVER_STREAM, received, v2.ReceiveMessageResponse),
    )
    return {method.path: method for method in methods}


def _message(offset: int, wall_ms: int, born: Any) -> v2.ReceiveMessageResponse:
    handle = f"{offset} {wall_ms} 60000 0 0 empty 0 {offset} {offset * 1200}"
    properties = v2.SystemProperties(
        message_id=f"01{offset:030X}",
        message_type=v2.NORMAL,
        born_timestamp=born,
        born_host="empty",
        receipt_handle=handle,
        queue_offset=offset,
        delivery_attempt=1,
    )
    message = v2.Message(topic=v2.Resource(name="bench"), system_properties=properties, body=_BODY)
    return v2.ReceiveMessageResponse(message=message)


def _constant(path: str, kind: Kind, answer: Any, response: Any) -> Method:
    return Method(path, kind, bytes, lambda _request, _ctx: answer, status_failure(response))


async def _serve(arguments: argparse.Namespace) -> None:
    clock = Clock()
    config = DoorConfig(front_door=arguments.door)
    services = empty_services(arguments.items, clock.wall_ms())
    access: AccessPoint | None = None
    if arguments.forward:
        access = AccessPoint(
            services,
            config,
            clock,
            locate=lambda _path, _request, _ctx: arguments.forward,
            unreachable=lambda _path, _request, _ctx: "hold",
            links=NodeLinks(),
        )
        services = dict(access.services)
    door = choose_door(config)(services, clock)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    print(await door.start(arguments.host, arguments.port), flush=True)
    await stopped.wait()
    await door.drain(1.0)
    if access is not None:
        await access.close()


def main() -> None:
    """Parse the command line and serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m cometmq.tests.bench.empty_server", description=__doc__
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: the system chooses")
    parser.add_argument("--door", choices=("auto", "grpcio", "native"), default="grpcio")
    parser.add_argument("--items", type=int, default=32, help="messages of one ReceiveMessage")
    parser.add_argument("--forward", default="", help="HOST:PORT of another such server")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(arguments))


if __name__ == "__main__":
    main()
