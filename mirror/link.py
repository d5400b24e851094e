"""One connection to a nameserver or broker of either cluster, over the remoting protocol.

Requests are written in the order of the calls and answered in any order. A request without an
answer within `TIMEOUT_S` closes the connection, so that a late answer cannot be taken for another
one's; the next request connects again. Requests of the server are ignored: the mirror is no member
of a group.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass

from ..auth.signature import sign_command
from ..remoting.codec import FrameError, FrameReader, encode
from ..remoting.codes import Reply
from ..remoting.command import Command

CONNECT_S = 5.0
#: Longer than the broker waits for replicas and for its disk.
TIMEOUT_S = 15.0
_READ_BYTES = 256 << 10


class LinkError(Exception):
    """A server cannot be reached, or did not answer; the outcome of the request is unknown."""

    def __init__(self, reason: str, address: str = "") -> None:
        """`address`: HOST:PORT of the server; empty if there is none."""
        super().__init__(reason)
        self.address = address


class RefusedError(Exception):
    """A server answered with another code than SUCCESS."""

    def __init__(self, what: str, answer: Command) -> None:
        super().__init__(f"{what}: {answer.remark or 'no reason given'} (code {answer.code})")
        self.code = answer.code


@dataclass(frozen=True, slots=True)
class Access:
    """How the servers of a cluster are addressed: a user, if they check signatures, and TLS."""

    access_key: str = ""
    secret_key: str = ""
    tls: ssl.SSLContext | None = None

    def sign(self, command: Command) -> None:
        """Add the signature of the user, if there is one."""
        if not self.access_key:
            return
        command.fields["AccessKey"] = self.access_key
        values = (command.fields[name] for name in sorted(command.fields))
        secret = self.secret_key.encode()
        signature = sign_command(secret, values, command.body)
        command.fields["Signature"] = base64.b64encode(signature).decode()


class Link:
    """Connects on the first request, and again after a failure."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self._access = access
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        """Open the connection unless it is open. Raises LinkError."""
        async with self._connecting:
            if self._writer is not None:
                return
            host, _, port = self.address.rpartition(":")
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await asyncio.open_connection(
                        host.strip("[]"), int(port), ssl=self._access.tls
                    )
            except TimeoutError:
                reason = f"{self.address} did not answer within {CONNECT_S:g} s"
                raise LinkError(reason, self.address) from None
            except (OSError, ValueError) as error:
                # asyncio has no text for a connection that ends in the handshake of TLS.
                why = str(error) or "it closed the connection; does it speak TLS?"
                raise LinkError(f"{self.address} cannot be reached: {why}", self.address) from None
            self._writer = writer
            self._reading = asyncio.create_task(self._read(reader))

    def post(self, command: Command) -> asyncio.Future[Command]:
        """Write a request on the open connection; return the future of its answer.

        Raises LinkError, FrameError.
        """
        if self._writer is None:
            raise LinkError(f"{self.address} closed the connection", self.address)
        self._access.sign(command)
        self._opaque += 1
        command.opaque = self._opaque
        frame = encode(command)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        self._writer.write(frame)
        return future

    async def answer(self, future: asyncio.Future[Command]) -> Command:
        """Wait for an answer. Raises LinkError."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await future
        except TimeoutError:
            reason = f"{self.address} did not answer within {TIMEOUT_S:g} s"
            self.close(reason)
            raise LinkError(reason, self.address) from None

    async def call(self, code: int, body: bytes = b"", /, **fields: object) -> Command:
        """Send a request; return its answer, whatever its code. Raises LinkError, FrameError."""
        await self.connect()
        texts = {name: str(value) for name, value in fields.items()}
        return await self.answer(self.post(Command(code, texts, body)))

    async def done(self, what: str, code: int, body: bytes = b"", /, **fields: object) -> Command:
        """Send a request that must succeed. Raises LinkError, RefusedError, FrameError."""
        answer = await self.call(code, body, **fields)
        if answer.code != Reply.SUCCESS:
            raise RefusedError(f"{what} at {self.address}", answer)
        return answer

    def close(self, reason: str = "closed") -> None:
        """Close the connection; requests without an answer fail."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if self._reading is not None:
            self._reading.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkError(reason, self.address))
                future.exception()  # retrieved: the caller may have gone
        self._waiting.clear()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        reason = f"{self.address} closed the connection"
        try:
            while data := await reader.read(_READ_BYTES):
                for command in frames.feed(data):
                    future = self._waiting.pop(command.opaque, None)
                    if command.is_response and future is not None and not future.done():
                        future.set_result(command)
        except (OSError, FrameError) as error:
            reason = f"{self.address}: {error}"
        self._reading = None
        self.close(reason)
