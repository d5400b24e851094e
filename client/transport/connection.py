"""One connection: a gRPC channel to a target, its telemetry stream, and the settings it brought.

Promises: the telemetry stream is opened at once, again a second after it ended, and tells our settings
first each time, as the servers want it (gRPC API, section 8); commands are handed on, at most one
handler a command, and a slow handler does not stop the stream. Bytes in, bytes out; no retries here.
A call that ends because its channel was closed fails as one without an answer does: only a caller that
is cancelled itself sees CancelledError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ...proto import paths, v2
from ...proto.peers import cancel_requests
from ..errors import Forked
from ..retrying import lost
from .addresses import Target
from .calls import CallFailed, calls_to
from .credentials import Caller

log = logging.getLogger(__name__)

REOPEN_S = 1.0
"""On average: clients that lost their broker together must not all come back in one moment."""
_COMMANDS_MAX = 1_000
"""Commands under way; a server that sends more gets no answer to them, and repeats itself."""
_OPTIONS = (
    # One connection for each client object, as the official clients have it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The library goes by this one (one minute), whatever the line above says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # A container that came back may have another address; the library would use the old one for half a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Hidden retries would send a message twice.
    ("grpc.enable_retries", 0),
)
A = TypeVar("A", bound=Any)
OnCommand = Callable[["Connection", v2.TelemetryCommand], Awaitable[None]]


_of_grpc: list[int] = []
"""The process that uses gRPC: its threads do not come along into a child."""


def check_process() -> None:
    """Raises Forked in a child of a process that has used gRPC: calls would wait there for ever."""
    if not _of_grpc:
        _of_grpc.append(os.getpid())
    if _of_grpc[0] != os.getpid():
        raise Forked(
            "clients were used before the fork, and gRPC does not survive one: fork before the first "
            "client is made, or start processes with 'spawn'"
        )


class Connection:
    """Made by the session; closed once."""

    def __init__(
        self,
        target: Target,
        caller: Caller,
        settings: Callable[[], v2.Settings],
        on_command: OnCommand,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        check_process()
        self.target = target
        self.settled = asyncio.Event()
        """The server has answered our settings on this connection."""
        self._caller = caller
        self._settings = settings
        self._on_command = on_command
        name = target.name()
        self._channel = (
            grpc.aio.insecure_channel(name, options=_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(name, credentials, options=_OPTIONS)
        )
        self._calls = calls_to(target, self._channel, plaintext=credentials is None)
        self._stream: Any = None
        self._commands: set[asyncio.Task[None]] = set()
        self._telemetry = asyncio.create_task(self._keep_telemetry())

    async def unary(self, path: str, request: Any, answer: type[A], timeout_s: float) -> A:
        """One call. Raises Again when there is no answer, RequestRefused for gRPC's own refusals."""
        try:
            raw = await self._calls.unary(
                path, request.SerializeToString(), timeout_s, self._caller.metadata()
            )
        except CallFailed as failure:
            raise lost(self.target, failure.code, str(failure)) from None
        return self._read(raw, answer)

    async def stream(self, path: str, request: Any, answer: type[A], timeout_s: float) -> list[A]:
        """One call with many answers. Raises Again or RequestRefused when it ends before its first."""
        found, failure = await self._calls.stream(
            path, request.SerializeToString(), timeout_s, self._caller.metadata()
        )
        if failure is not None:
            error = lost(self.target, failure.code, str(failure))
            if not found:
                raise error
            # What came before the break was delivered to us: it is handed on.
            log.info("client.stream_broken target=%s error=%s", self.target, error)
        return [self._read(raw, answer) for raw in found]

    def _read(self, raw: bytes, answer: type[A]) -> A:
        try:
            return answer.FromString(raw)  # type: ignore[no-any-return]
        except DecodeError:
            sentence = "the answer is not of this protocol"
            raise lost(self.target, "NONSENSE", sentence) from None

    async def tell(self, command: v2.TelemetryCommand) -> None:
        """Write a command, if the stream is open; the next opening tells our settings anyway."""
        stream = self._stream
        if stream is None:
            return
        try:
            await stream.write(command.SerializeToString())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            log.debug("client.telemetry_write_failed target=%s", self.target)
        except asyncio.CancelledError:
            if cancel_requests():
                raise
            log.debug("client.telemetry_write_failed target=%s", self.target)

    def reopen(self) -> None:
        """End the stream: it is opened again."""
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        """Cancel what is under way and close the channel."""
        tasks = [self._telemetry, *self._commands]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._calls.close()
            await self._channel.close()

    async def _keep_telemetry(self) -> None:
        open_stream = self._channel.stream_stream(paths.TELEMETRY)
        while True:
            stream = self._stream = open_stream(metadata=self._caller.metadata())
            try:
                await self._talk(stream)
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, DecodeError) as error:
                log.debug("client.telemetry_ended target=%s error=%s", self.target, error)
            except asyncio.InvalidStateError:  # it ended before our settings were written
                log.debug("client.telemetry_ended target=%s", self.target)
            except asyncio.CancelledError:
                pass  # our own task's end, or the call's (`reopen`, a closed connection)
            finally:
                self._stream = None
                stream.cancel()
            if cancel_requests():
                raise asyncio.CancelledError
            await asyncio.sleep(REOPEN_S * random.uniform(0.5, 1.5))

    async def _talk(self, stream: Any) -> None:
        mine = v2.TelemetryCommand(settings=self._settings())
        await stream.write(mine.SerializeToString())
        while (raw := await stream.read()) is not grpc.aio.EOF:
            command = v2.TelemetryCommand.FromString(raw)
            if len(self._commands) >= _COMMANDS_MAX:
                log.warning("client.commands_dropped target=%s", self.target)
                continue
            task = asyncio.create_task(self._handle(command))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _handle(self, command: v2.TelemetryCommand) -> None:
        try:
            await self._on_command(self, command)
        except Exception:
            log.exception("client.command_failed target=%s", self.target)
