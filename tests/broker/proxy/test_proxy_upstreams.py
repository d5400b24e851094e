"""A proxy's connections to brokers: lost and slow ones, with servers that do not behave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.broker.proxy.classic import nameservers, upstreams
from cometmq.broker.proxy.classic.nameservers import Nameservers
from cometmq.broker.proxy.classic.upstreams import Upstreams, shared_by_upstreams
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.nodes.node_links import NodeLinks
from cometmq.remoting.codec import FrameReader, encode
from cometmq.remoting.codes import Reply
from cometmq.remoting.command import RESPONSE, Command, reply
from cometmq.remoting.connection import Connection, RemotingError
from cometmq.remoting.passing import pass_on
from cometmq.remoting.server import RemotingServer
from cometmq.tests.broker.live import until
from cometmq.tests.remoting.client import WAIT_S, RemotingClient

ECHO = 1
MIB = 1 << 20


class Behind:
    """A server that passes everything on to a fake broker, and what it passes it on with."""

    def __init__(self, broker: str, connections_max: int) -> None:
        self.shared = shared_by_upstreams(DoorConfig(), Clock(), connections_max)
        self.broker = broker
        self.upstreams: dict[Connection, Upstreams] = {}

    def handle(self, command: Command, peer: Connection) -> Any:
        if peer not in self.upstreams:
            self.upstreams[peer] = Upstreams(peer, self.shared, NodeLinks())
            peer.on_close(lambda gone: self.upstreams.pop(gone).close())
        return asyncio.get_running_loop().create_task(self._pass(command, self.upstreams[peer]))

    async def _pass(self, command: Command, upstreams: Upstreams) -> Command | None:
        return await pass_on(await upstreams.at(self.broker), command, "the broker")


@asynccontextmanager
async def behind(
    serve: Any, connections_max: int = 10
) -> AsyncIterator[tuple[Behind, int, asyncio.Server]]:
    """`serve` is the fake broker, for `asyncio.start_server`. Yields the port of clients."""
    broker = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{broker.sockets[0].getsockname()[1]}"
    found = Behind(address, connections_max)
    server = RemotingServer({ECHO: found.handle}, DoorConfig(), Clock())
    port = await server.start("127.0.0.1", 0)
    try:
        yield found, port, broker
    finally:
        await server.drain(0)
        broker.close()


async def test_pending_requests_of_a_lost_broker_are_answered_so_that_clients_try_again() -> None:
    taken: list[Command] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while len(taken) < 3:
            taken.extend(frames.feed(await reader.read(65_536)))
        writer.transport.abort()

    async with behind(serve) as (_, port, _), RemotingClient(port) as client:
        waiting = [client.post(Command(ECHO, {"n": str(n)})) for n in range(3)]
        answers = [await asyncio.wait_for(each, WAIT_S) for each in waiting]
        assert {answer.code for answer in answers} == {Reply.SERVICE_NOT_AVAILABLE}
        assert {answer.remark for answer in answers} == {
            "the broker has gone; the outcome is unknown"
        }
    assert [command.fields["n"] for command in taken] == ["0", "1", "2"], "in their order"


async def test_a_request_keeps_everything_but_its_number() -> None:
    taken: list[Command] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65_536):
            for command in frames.feed(data):
                taken.append(command)
                answer = reply(0, "remark", {"a": "b"}, b"body")
                answer.opaque = command.opaque
                writer.write(encode(answer))
        writer.close()

    asked = Command(ECHO, {"AccessKey": "k", "Signature": "s", "\u00e4": ""}, b"x", remark="r")
    asked.language, asked.version, asked.binary = "GO", 317, True
    async with behind(serve) as (_, port, _), RemotingClient(port) as client:
        client._opaque = 99  # its numbers and those of the connection to the broker differ
        answer = await client.post(asked)
    assert (answer.code, answer.remark, answer.fields) == (0, "remark", {"a": "b"})
    assert (answer.body, answer.flag) == (b"body", RESPONSE)
    asked.opaque = taken[-1].opaque
    assert taken[-1] == asked


async def test_a_broker_that_does_not_read_stops_the_reading_of_its_client() -> None:
    reads = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        await reads.wait()
        while data := await reader.read(MIB):
            for command in frames.feed(data):
                answer = reply(0)
                answer.opaque = command.opaque
                writer.write(encode(answer))
        writer.close()

    async with behind(serve) as (proxy, port, _), RemotingClient(port) as client:
        count = 60
        waiting = [client.post(Command(ECHO, body=bytes(MIB))) for _ in range(count)]
        # The client's own buffer is not empty: it is not read any more.
        await until(lambda: any(each.unread > MIB for each in proxy.shared.connections))
        before = -1
        while before != (now := client.writer.transport.get_write_buffer_size()):
            before = now
            await asyncio.sleep(0.2)
        assert before > count // 2 * MIB
        assert sum(each.unread for each in proxy.shared.connections) < 8 * MIB
        reads.set()
        answers = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
        assert {answer.code for answer in answers} == {Reply.SUCCESS}


async def test_a_broker_that_reads_nothing_keeps_no_connection_of_a_client_that_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstreams, "_LAST_READ_S", 0.2)
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    async with behind(serve) as (proxy, port, _):
        async with RemotingClient(port) as client:
            for _ in range(30):
                client.post(Command(ECHO, body=bytes(MIB)))
            await until(lambda: any(each.unread > MIB for each in proxy.shared.connections))
            (unread,) = proxy.shared.connections
            (left,) = proxy.upstreams.values()
            left.close()
            await until(lambda: unread.closed)
        gone.set()


async def test_requests_that_brokers_do_not_read_have_a_limit_of_bytes() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    async with behind(serve) as (proxy, port, _), RemotingClient(port) as client:
        proxy.shared.config = DoorConfig(front_unread_bytes=MIB)
        waiting = [client.post(Command(ECHO, body=bytes(14 * MIB))) for _ in range(4)]
        answer = await asyncio.wait_for(waiting[0], WAIT_S)
        assert answer.code == Reply.SERVICE_NOT_AVAILABLE
        gone.set()


async def test_connections_to_brokers_have_a_limit_and_end_with_their_client() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65_536):
            for command in frames.feed(data):
                answer = reply(0)
                answer.opaque = command.opaque
                writer.write(encode(answer))
        writer.close()

    async with behind(serve, connections_max=1) as (proxy, port, _):
        async with RemotingClient(port) as first:
            assert (await first.call(ECHO)).code == Reply.SUCCESS
            async with RemotingClient(port) as second:
                assert (await second.call(ECHO)).code == Reply.SYSTEM_BUSY
        await until(lambda: not proxy.shared.connections)
        async with RemotingClient(port) as third:
            assert (await third.call(ECHO)).code == Reply.SUCCESS
            (upstreams,) = proxy.upstreams.values()
            upstreams.keep([proxy.broker])
            assert (await third.call(ECHO)).code == Reply.SUCCESS
            upstreams.keep(())  # the broker has left the cluster
            await until(lambda: not proxy.shared.connections)


async def test_the_next_nameserver_is_asked_after_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nameservers, "_ANSWER_S", 3.0)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_server(silent, "127.0.0.1", 0)
    server = RemotingServer({ECHO: lambda command, _: reply(0)}, DoorConfig(), Clock())
    port = await server.start("127.0.0.1", 0)
    gone = "127.0.0.1:1"
    addresses = [gone, f"127.0.0.1:{mute.sockets[0].getsockname()[1]}", f"127.0.0.1:{port}"]
    asked = Nameservers(addresses, NodeLinks(), DoorConfig(), Clock())
    for _ in range(2):
        answers = await asyncio.gather(*(asked.ask(Command(ECHO)) for _ in range(3)))
        assert [answer is not None and answer.code for answer in answers] == [0, 0, 0]
    asked.close()
    unreachable = Nameservers([gone], NodeLinks(), DoorConfig(), Clock())
    with pytest.raises(RemotingError, match="no nameserver has answered"):
        await unreachable.ask(Command(ECHO))
    await server.drain(0)
    mute.close()
