"""Connection: a gRPC channel to a target and its telemetry stream.

The telemetry stream is opened immediately, and again about a second after it ended. Each time the
client's settings are sent first, as servers require (docs/formats/grpc-api.md, section 8). Every
command is handled in a task, so a slow handler does not stop the stream. Calls are not retried. A
call whose channel is closed raises CallFailed; CancelledError means that the caller was cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ...proto import paths, v2
from ...proto.channels import cancel_requests
from .addresses import Target
from .calls import CallFailed, Metadata, calls_to
from .credentials import Caller
from .tls import Tls

logger = logging.getLogger(__name__)

#: Average pause, jittered: clients of a failed broker must not reconnect at the same time.
REOPEN_S = 1.0
#: A server ends the stream in one round trip; a server that is away may not delay a close.
END_S = 0.3
#: Commands in progress; further ones are dropped, and the server repeats them.
_COMMANDS_MAX = 1_000
_OPTIONS = (
    # One connection per client object, as in the official clients.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A vanished host is noticed within 2.5 s after a request, and the next address is dialled. Idle
    # clients send two pings (grpc.http2.max_pings_without_data), as servers of other makers allow.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 1_500),
    # grpcio uses this timeout (default one minute) instead of keepalive_timeout_ms.
    ("grpc.http2.ping_timeout_ms", 1_500),
    # A restarted container may have another address; the default keeps the old one for 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Transparent retries could send a message twice.
    ("grpc.enable_retries", 0),
)
A = TypeVar("A", bound=Any)
R = TypeVar("R")
OnCommand = Callable[["Connection", v2.TelemetryCommand], Awaitable[None]]
OnTelemetryEnd = Callable[["Connection", CallFailed], None]


class Connection:
    """A gRPC channel to one target, with calls and a telemetry stream."""

    def __init__(
        self,
        target: Target,
        caller: Caller,
        settings: Callable[[], v2.Settings],
        on_command: OnCommand,
        *,
        on_telemetry_end: OnTelemetryEnd,
        tls: Tls | None,
    ) -> None:
        self.target = target
        #: Set when the server has answered the client's settings.
        self.settled = asyncio.Event()
        self._caller = caller
        self._settings = settings
        self._on_command = on_command
        self._on_telemetry_end = on_telemetry_end
        name = target.name()
        self._channel = (
            grpc.aio.insecure_channel(name, options=_OPTIONS)
            if tls is None
            else grpc.aio.secure_channel(
                name, tls.credentials(), options=(*_OPTIONS, *tls.options())
            )
        )
        self._calls = calls_to(target, self._channel, plaintext=tls is None)
        self._stream: Any = None
        self._commands: set[asyncio.Task[None]] = set()
        self._telemetry = asyncio.create_task(self._keep_telemetry())

    async def unary(self, path: str, request: Any, answer: type[A], timeout_s: float) -> A:
        """Make one call; the request may be encoded. Raises CallFailed."""
        encoded = request if isinstance(request, bytes) else request.SerializeToString()
        raw = await self._calls.unary(path, encoded, timeout_s, self._caller.metadata())
        try:
            return answer.FromString(raw)  # type: ignore[no-any-return]
        except DecodeError:
            raise _invalid_response() from None

    async def stream(
        self,
        path: str,
        request: Any,
        read: Callable[[list[bytes]], R],
        timeout_s: float,
        *,
        metadata: Metadata = (),
    ) -> R:
        """Make one call with many responses and more metadata. Return what `read` makes of them.

        Raises CallFailed if it fails before the first, or if `read` raises DecodeError.
        """
        metadata = (*self._caller.metadata(), *metadata)
        responses, failure = await self._calls.stream(
            path, request.SerializeToString(), timeout_s, metadata
        )
        if failure is not None:
            if not responses:
                raise failure
            # The messages before the failure were delivered to this client: return them.
            logger.info(
                "client.stream_broken target=%s error=%s: %s", self.target, failure.code, failure
            )
        try:
            return read(responses)
        except DecodeError:
            raise _invalid_response() from None

    async def write(self, command: v2.TelemetryCommand) -> None:
        """Write a command if the stream is open. Opening it sends the settings again."""
        stream = self._stream
        if stream is None:
            return
        try:
            await stream.write(command.SerializeToString())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            logger.debug("client.telemetry_write_failed target=%s", self.target)
        except asyncio.CancelledError:
            if cancel_requests():
                raise
            logger.debug("client.telemetry_write_failed target=%s", self.target)

    def reopen(self) -> None:
        """End the telemetry stream; it is opened again."""
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        """End the stream, cancel the tasks and close the channel."""
        await self._end_stream()
        tasks = [self._telemetry, *self._commands]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._calls.close()
            await self._channel.close()

    async def _end_stream(self) -> None:
        """Let the server end the stream, if it answers.

        Operations of a cancelled stream complete later. If the program has closed the event loop by
        then, grpcio reports them in another loop of the process, as "Event loop is closed".
        """
        stream = self._stream
        if stream is None or not self.settled.is_set():
            return
        try:
            async with asyncio.timeout(END_S):
                await stream.done_writing()
                await stream.code()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            logger.debug("client.telemetry_not_ended target=%s", self.target)
        except asyncio.CancelledError:
            if cancel_requests():
                raise
            # The stream was cancelled (`reopen`).

    async def _keep_telemetry(self) -> None:
        open_stream = self._channel.stream_stream(paths.TELEMETRY)
        while True:
            stream = self._stream = open_stream(metadata=self._caller.metadata())
            try:
                await self._run_stream(stream)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                logger.debug("client.telemetry_ended target=%s error=%r", self.target, error)
                # The stream's own status: a failed write has none, or an internal error.
                failure = CallFailed((await stream.code()).name, await stream.details() or "")
                self._on_telemetry_end(self, failure)
            except (grpc.aio.UsageError, DecodeError) as error:
                logger.debug("client.telemetry_ended target=%s error=%s", self.target, error)
            except asyncio.CancelledError:
                pass  # of this task, or of the call (`reopen`, a closed connection)
            finally:
                self._stream = None
                stream.cancel()
            if cancel_requests():
                raise asyncio.CancelledError
            await asyncio.sleep(REOPEN_S * random.uniform(0.5, 1.5))

    async def _run_stream(self, stream: Any) -> None:
        settings = v2.TelemetryCommand(settings=self._settings())
        await stream.write(settings.SerializeToString())
        while (raw := await stream.read()) is not grpc.aio.EOF:
            command = v2.TelemetryCommand.FromString(raw)
            if len(self._commands) >= _COMMANDS_MAX:
                logger.warning("client.commands_dropped target=%s", self.target)
                continue
            task = asyncio.create_task(self._handle(command))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _handle(self, command: v2.TelemetryCommand) -> None:
        try:
            await self._on_command(self, command)
        except Exception:
            logger.exception("client.command_failed target=%s", self.target)


def _invalid_response() -> CallFailed:
    return CallFailed(
        "INVALID_RESPONSE", "the response is not a valid protobuf message of this protocol"
    )
