"""Connections of the remoting listener: dispatch, both directions, limits, end."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.errors import PortInUseError
from cometmq.front.reply_future import ReplyFuture
from cometmq.remoting import connection
from cometmq.remoting.codec import encode
from cometmq.remoting.codes import Reply
from cometmq.remoting.command import RESPONSE, Command, reply
from cometmq.remoting.connection import Connection, PeerGoneError, RemotingError
from cometmq.remoting.header_fields import read
from cometmq.remoting.headers import QueueOfTopic
from cometmq.remoting.server import RemotingServer
from cometmq.tests.remoting.client import WAIT_S, RemotingClient

ECHO, REFUSE, FAIL, HEADER, WAIT, BIG, ASK, TELL = range(1, 9)


class Served:
    """The handlers of a test server, and what they saw."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.connections: list[Connection] = []
        self.seen: list[int] = []
        self.table: dict[int, Callable[[Command, Connection], Any]] = {
            ECHO: self.echo,
            REFUSE: self.refuse,
            FAIL: self.fail,
            HEADER: lambda command, _: reply(0, str(read(QueueOfTopic, command.fields))),
            WAIT: self.wait,
            BIG: lambda command, _: reply(0, body=b"x" * (4 << 20)),
            ASK: lambda _, peer: peer.call(Command(TELL, body=b"question")),
            TELL: self.tell,
        }

    def echo(self, command: Command, peer: Connection) -> Command:
        self.seen.append(command.opaque)
        self.connections.append(peer)
        return reply(0, command.fields.get("a"), {"b": "c"}, command.body)

    def refuse(self, command: Command, _: Connection) -> Command:
        raise RemotingError(Reply.NO_PERMISSION, "not you")

    def fail(self, command: Command, _: Connection) -> Command:
        raise ZeroDivisionError

    def wait(self, command: Command, _: Connection) -> Any:
        loop = asyncio.get_running_loop()
        future: Any = ReplyFuture() if command.body else loop.create_future()
        self.waiting.append(future)
        return future

    def tell(self, _: Command, peer: Connection) -> Command:
        peer.notify(Command(TELL, {"n": "1"}))
        return reply(0)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Served, RemotingServer, int]]:
    served = Served()
    server = RemotingServer(served.table, replace(DoorConfig(), **settings), Clock())
    port = await server.start("127.0.0.1", 0)
    try:
        yield served, server, port
    finally:
        await server.drain(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - conditions have no event
            await asyncio.sleep(0.005)


async def test_a_request_is_answered_in_json_whatever_its_layout() -> None:
    async with serving() as (_, _, port), RemotingClient(port) as client:
        found = await client.call(ECHO, b"body", a="text")
        assert (found.code, found.remark, found.body) == (0, "text", b"body")
        assert found.fields == {"b": "c"}
        again = await asyncio.wait_for(client.post(Command(ECHO, binary=True)), WAIT_S)
        assert not again.binary


async def test_errors_have_their_codes_and_words() -> None:
    async with serving() as (_, server, port), RemotingClient(port) as client:
        found = await client.call(REFUSE)
        assert (found.code, found.remark) == (Reply.NO_PERMISSION, "not you")
        found = await client.call(FAIL)
        assert (found.code, found.remark) == (Reply.SYSTEM_ERROR, "request 3 failed in the server")
        found = await client.call(HEADER)
        assert found.remark == "RemotingCommandException the custom field <topic> is null"
        found = await client.call(12_345)
        assert found.code == Reply.REQUEST_CODE_NOT_SUPPORTED
        assert found.remark == " request type 12345 not supported"
        assert server.statistics.unknown == 1


async def test_many_small_requests_leave_the_loop_to_others_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_TURN_NS", 1)  # every request ends its turn
    async with serving() as (served, _, port), RemotingClient(port) as client:
        count = 200
        turns: list[int] = []

        async def other() -> None:
            while len(served.seen) < count:
                turns.append(len(served.seen))
                await asyncio.sleep(0)

        others = asyncio.create_task(other())
        calls = [client.post(Command(ECHO)) for _ in range(count)]
        answers = await asyncio.wait_for(asyncio.gather(*calls), WAIT_S)
        await others
        assert [answer.code for answer in answers] == [0] * count
        assert served.seen == sorted(served.seen), "served in their order"
        assert len(set(turns)) > count // 2, "another task ran between most of them"


async def test_all_connections_share_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_TURN_NS", 1)  # every request ends its turn
    many, each = 20, 5
    async with serving() as (served, _, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(many)]
        turns: list[int] = []

        async def other() -> None:
            while len(served.seen) < many * each:
                turns.append(len(served.seen))
                await asyncio.sleep(0)

        for number in range(1, each + 1):  # all are ready in one turn
            for _, writer in opened:
                writer.write(encode(Command(ECHO, opaque=number)))
        await asyncio.wait_for(other(), WAIT_S)
        for _, writer in opened:
            writer.close()
    grown = [after - before for before, after in itertools.pairwise(turns)]
    assert max(grown) == 1, "a turn served requests of several connections"
    # They take turns: the first one, whose turn was before the others arrived, may be ahead by one.
    assert all(number <= at // many + 2 for at, number in enumerate(served.seen))


async def test_answers_come_in_any_order() -> None:
    async with serving() as (served, _, port), RemotingClient(port) as client:
        first, second = client.post(Command(WAIT)), client.post(Command(WAIT, body=b"light"))
        await until(lambda: len(served.waiting) == 2)
        served.waiting[1].set_result(reply(0, "second"))
        assert (await asyncio.wait_for(second, WAIT_S)).remark == "second"
        served.waiting[0].set_exception(RemotingError(5, "late"))
        assert (await asyncio.wait_for(first, WAIT_S)).code == 5


async def test_a_oneway_request_is_never_answered() -> None:
    async with serving() as (served, _, port), RemotingClient(port) as client:
        for code in (ECHO, REFUSE, FAIL, 12_345, WAIT):
            client.oneway(code)
        await until(lambda: served.waiting)
        served.waiting[0].set_result(reply(0))
        await client.call(ECHO)  # the client fails on a response that it did not ask for


async def test_the_server_calls_the_client() -> None:
    async with serving() as (_, _, port), RemotingClient(port) as client:
        client.on_request = lambda command: (
            Command(7, body=command.body + b"?", flag=RESPONSE) if not command.is_oneway else None
        )
        found = await client.call(ASK)
        assert (found.code, found.body) == (7, b"question?")
        await client.next_request()
        await client.call(TELL)
        told = await client.next_request()
        assert told.is_oneway
        assert told.fields == {"n": "1"}


async def test_a_response_that_nobody_waits_for_is_counted_and_dropped() -> None:
    async with serving() as (_, server, port), RemotingClient(port) as client:
        client.writer.write(encode(Command(0, flag=RESPONSE, opaque=99)))
        await client.call(ECHO)
        assert server.statistics.unasked == 1


async def test_a_call_ends_when_the_client_leaves() -> None:
    async with serving() as (served, _, port):
        async with RemotingClient(port) as client:
            await client.call(ECHO)
            asked = served.connections[0].call(Command(TELL))
        with pytest.raises(PeerGoneError):
            await asyncio.wait_for(asked, WAIT_S)
        with pytest.raises(RemotingError):
            served.connections[0].call(Command(TELL))
        served.connections[0].notify(Command(TELL))


async def test_requests_of_a_client_that_left_are_cancelled() -> None:
    async with serving() as (served, server, port):
        closed: list[Connection] = []
        async with RemotingClient(port) as client:
            await client.call(ECHO)
            served.connections[0].on_close(closed.append)
            client.post(Command(WAIT))
            client.post(Command(WAIT, body=b"light"))
            await until(lambda: len(served.waiting) == 2)
        await until(lambda: closed)
        assert all(future.cancelled() for future in served.waiting)
        assert not server.connections


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        struct.pack(">iI", 9, 2 << 24) + b"12345",
    ],
)
async def test_bytes_that_are_no_frame_close_their_connection_only(data: bytes) -> None:
    async with serving() as (_, server, port), RemotingClient(port) as neighbour:
        async with RemotingClient(port) as client:
            client.writer.write(data)
            await asyncio.wait_for(client.closed.wait(), WAIT_S)
        assert (await neighbour.call(ECHO)).code == 0
        assert server.statistics.malformed == 1


async def test_half_a_frame_times_out() -> None:
    async with serving(front_request_timeout=10) as (_, server, port), RemotingClient(port) as it:
        await it.call(ECHO)
        it.writer.write(encode(Command(ECHO))[:-1])
        await asyncio.wait_for(it.closed.wait(), WAIT_S)
        assert server.statistics.timed_out == 1


async def test_a_silent_connection_is_closed() -> None:
    async with serving(front_max_connection_idle=10) as (_, _, port), RemotingClient(port) as it:
        await asyncio.wait_for(it.closed.wait(), WAIT_S)


async def test_unfinished_frames_of_all_connections_are_bounded() -> None:
    async with serving(front_unfinished_bytes=300_000) as (_, server, port):
        async with RemotingClient(port) as first, RemotingClient(port) as second:
            for client in (first, second):
                client.writer.write(struct.pack(">iI", 8 << 20, 100) + b"x" * 60_000)
            closing = [asyncio.create_task(each.closed.wait()) for each in (first, second)]
            await asyncio.wait(closing, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            assert sum(each.closed.is_set() for each in (first, second)) == 1
            for task in closing:
                task.cancel()
        await until(lambda: not server.connections)


async def test_a_client_that_does_not_read_is_closed() -> None:
    settings = {"front_unread_connection_bytes": 32 << 20}
    async with serving(**settings) as (_, server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(encode(Command(BIG)) * 40)
        await until(lambda: server.statistics.timed_out)
        await until(lambda: not server.connections)
        writer.close()


async def test_requests_beyond_the_limits_wait_or_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REQUESTS_MAX", 3)
    monkeypatch.setattr(connection, "REQUEST_BYTES_MAX", 1_000)
    async with serving() as (served, _, port), RemotingClient(port) as client:
        posted = [client.post(Command(WAIT, body=b"x" * 600)) for _ in range(2)]
        await until(lambda: len(served.waiting) == 2)
        echo = client.post(Command(ECHO))  # not read yet
        served.waiting[0].set_result(reply(0))
        served.waiting[1].set_result(reply(0))
        await asyncio.wait_for(asyncio.gather(echo, *posted), WAIT_S)
        for _ in range(3):
            client.post(Command(WAIT))
        found = await client.call(WAIT)
        assert found.code == Reply.SYSTEM_BUSY


async def test_the_connections_of_an_address_share_its_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_TURN_NS", 1)  # every request ends its turn
    shared = connection.Shared({}, DoorConfig(), Clock())
    served: list[str] = []
    assert shared.has_time()
    for address in (*50 * ("10.0.0.1",), "10.0.0.2"):
        shared.serve_later(address, partial(served.append, address))
    await until(lambda: len(served) == 51)
    assert served.index("10.0.0.2") <= 1


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with serving(front_max_connections=4) as (_, server, port), RemotingClient(port) as one:
        await one.call(ECHO)
        async with RemotingClient(port) as other:
            await asyncio.wait_for(other.closed.wait(), WAIT_S)
        assert server.statistics.refused == 1


async def test_an_answer_that_is_too_large_is_an_error() -> None:
    async with serving() as (served, _, port), RemotingClient(port) as client:
        served.table[BIG] = lambda command, _: reply(0, body=b"x" * (16 << 20))
        assert (await client.call(BIG)).code == Reply.SYSTEM_ERROR


async def test_drain_finishes_what_is_in_progress() -> None:
    async with serving() as (served, server, port), RemotingClient(port) as client:
        posted = client.post(Command(WAIT))
        await until(lambda: served.waiting)
        draining = asyncio.create_task(server.drain(WAIT_S))
        await asyncio.sleep(0)
        assert (await client.call(ECHO)).code == Reply.SERVICE_NOT_AVAILABLE
        served.waiting[0].set_result(reply(0, "done"))
        assert (await asyncio.wait_for(posted, WAIT_S)).remark == "done"
        await asyncio.wait_for(draining, WAIT_S)
        assert not server.connections


async def test_a_port_in_use_is_named() -> None:
    async with serving() as (_, _, port):
        other = RemotingServer({}, DoorConfig(), Clock())
        with pytest.raises(PortInUseError, match=str(port)):
            await other.start("127.0.0.1", port)
