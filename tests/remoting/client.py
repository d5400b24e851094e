"""A remoting client for tests: one connection, requests by opaque, requests of the server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Self

from cometmq.remoting.codec import FrameReader, encode
from cometmq.remoting.codes import Request
from cometmq.remoting.command import ONEWAY, Command

#: Generous: tests never depend on being quick.
WAIT_S = 60


class RemotingClient:
    """Speaks to one server; `async with RemotingClient(port)` connects and closes."""

    def __init__(
        self, port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self._address = (host, port)
        self._tls = tls
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        #: Requests of the server, in their order.
        self.received: asyncio.Queue[Command] = asyncio.Queue()
        #: Answers a two-way request of the server, if set.
        self.on_request: Callable[[Command], Command | None] = lambda command: None
        #: Set when the server has closed the connection.
        self.closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._reader, self.writer = await asyncio.open_connection(*self._address, ssl=self._tls)
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def post(self, command: Command) -> asyncio.Future[Command]:
        """Send a request and return the future of its response."""
        self._opaque += 1
        command.opaque = self._opaque
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        self.writer.write(encode(command))
        return future

    async def call(self, code: int, body: bytes = b"", /, **fields: object) -> Command:
        """Send a request and return its response."""
        command = Command(code, {name: str(value) for name, value in fields.items()}, body)
        return await asyncio.wait_for(self.post(command), WAIT_S)

    def oneway(self, code: int, body: bytes = b"", /, **fields: object) -> None:
        """Send a request that gets no response."""
        texts = {name: str(value) for name, value in fields.items()}
        self._opaque += 1
        self.writer.write(encode(Command(code, texts, body, ONEWAY, self._opaque)))

    async def next_request(self) -> Command:
        """Return the next request of the server."""
        return await asyncio.wait_for(self.received.get(), WAIT_S)

    async def _read(self) -> None:
        frames = FrameReader()
        try:
            while data := await self._reader.read(65_536):
                for command in frames.feed(data):
                    self._take(command)
        except OSError:
            pass
        self.closed.set()

    def _take(self, command: Command) -> None:
        if command.is_response:
            self._waiting.pop(command.opaque).set_result(command)
            return
        self.received.put_nowait(command)
        answer = self.on_request(command)
        if answer is not None:
            answer.opaque = command.opaque
            self.writer.write(encode(answer))


async def wait_for_routes(nameserver: int, topics: Iterable[str]) -> None:
    """Wait until the nameserver with this port has routes of all topics."""
    code = Request.GET_ROUTEINFO_BY_TOPIC
    async with RemotingClient(nameserver) as client, asyncio.timeout(WAIT_S):
        for topic in topics:
            while (await client.call(code, topic=topic)).code:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
