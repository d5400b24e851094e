"""One remoting connection: requests in both directions, with limits.

A request of the peer is dispatched by its code; the answers may come in any order, `opaque` pairs
them. Promises: a oneway request is never answered; requests in progress, their bytes, unfinished
frames and unread answers are bounded; a request of a peer that has left is cancelled; a response
without a waiting request is counted and dropped. Responses have a JSON header, as those of a
RocketMQ server with default settings, whatever the layout of the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from ..front.process import address_connections
from ..nodes.addresses import host_of, host_port, network_of
from .codec import FrameError, FrameReader, decode, encode
from .codes import Reply
from .command import ONEWAY, RESPONSE, Command, reply
from .handshakes import Handshakes, Places
from .header_fields import HeaderError

if TYPE_CHECKING:
    from ..front.clock import Clock
    from ..front.config import DoorConfig

logger = logging.getLogger(__name__)

#: Requests in progress, most of them waiting pulls: a consumer has one for each of its queues.
REQUESTS_MAX = 10_000
#: Bytes of requests in progress; the connection is not read while there are more.
REQUEST_BYTES_MAX = 64 << 20
#: Requests to the peer that wait for its response, of a server to its client.
CALLS_MAX = 1_000
#: Bytes of answers in the buffer from which on the connection is not read.
_UNREAD_BYTES_PAUSE = 1 << 20
#: Time of the requests of all connections in one turn of the event loop: one read has thousands of
#: small requests, and hundreds of connections are ready at once.
_TURN_NS = 5_000_000
#: Part of `frontUnfinishedBytes`: frames are smaller than the requests of gRPC, and are held whole.
_UNFINISHED_SHARE = 3
#: Lines about connections that were closed, in each minute: strangers choose their number.
_LINES_MAX = 20
_LINES_NS = 60_000_000_000
_LONG_TURN = "a long turn"
_IN_PROGRESS = "requests in progress"
_OPAQUE_MAX = 0x7FFFFFFF
_BUSY = "[OVERLOAD]system busy, start flow control for a while"

#: Answers a request: with a response, with a future of one, or with None if it is oneway.
Handler = Callable[[Command, "Connection"], Any]


class Taken(Protocol):
    """The future of the answer to a request that was taken as a frame."""

    #: Number of the request.
    opaque: int

    def response(self) -> bytes | Command:
        """Return the answer as a frame or as a command, once it is there. Raises the error."""

    def cancelled(self) -> bool: ...
    def cancel(self) -> Any: ...
    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...


#: Takes a frame without its length; None if it has to be decoded and goes to its handler.
Take = Callable[[bytes, "Connection"], Taken | None]


class RemotingError(Exception):
    """A request is refused with a response code and a remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class PeerGoneError(Exception):
    """The connection ended before the peer answered."""


class Statistics(Struct):
    """Counters of all connections of a listener, since its start."""

    requests: int = 0
    #: Requests with a code that has no handler.
    unknown: int = 0
    #: Responses without a waiting request.
    unasked: int = 0
    #: Connections closed because of bytes that are no frame, or beyond a limit.
    malformed: int = 0
    #: Connections closed because they were silent, slow or one too many.
    timed_out: int = 0
    refused: int = 0


class Shared:
    """What the connections of one listener share."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        config: DoorConfig,
        clock: Clock,
        take: Take | None = None,
    ) -> None:
        self.handlers = handlers
        self.take = take
        self.config = config
        self.steady_ns = clock.steady_ns
        self.statistics = Statistics()
        self.connections: dict[Connection, None] = {}
        self.connections_max = 0
        self.places = Places()
        #: Requests to one peer that wait for its response.
        self.calls_max = CALLS_MAX
        #: Bytes of unfinished frames of all connections.
        self.unfinished = 0
        self.draining = False
        self.handshakes = Handshakes()
        #: Steady time at which the turn of the event loop ends; 0: nothing was served in it.
        self._turn_end_ns = 0
        #: What the turns before had no time for, once for each connection, by address.
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._lines = 0
        self._lines_since_ns = 0

    def limit(self, connections: int) -> None:
        """Set the number of connections of the port."""
        self.connections_max = connections
        self.places.max = address_connections(self.config, connections)

    def take_place(self, peer: str) -> bool:
        """Return whether a client at HOST:PORT may have a connection more."""
        if self.places.take(host_of(peer)):
            return True
        self.statistics.refused += 1
        self.log_closed(
            "refused",
            peer,
            f"its address has {self.places.max} connections (frontMaxAddressConnections)",
        )
        return False

    def has_time(self) -> bool:
        """Return whether a further request can be served in this turn of the event loop."""
        now_ns = self.steady_ns()
        if not self._turn_end_ns:
            self._turn_end_ns = now_ns + _TURN_NS
            asyncio.get_running_loop().call_soon(self._next_turn)
        return now_ns < self._turn_end_ns

    def serve_later(self, network: str, serve: Callable[[], None]) -> None:
        """Call `serve` in a later turn, after those of its address that wait already: addresses
        take turns."""
        self._waiting.setdefault(network, deque()).append(serve)

    def _next_turn(self) -> None:
        self._turn_end_ns = 0
        first, self._waiting = self._waiting, {}
        try:
            while first and self.has_time():
                network = next(iter(first))
                row = first.pop(network)
                serve = row.popleft()
                if row:
                    first[network] = row  # behind the other addresses
                serve()
        finally:  # those without time in this turn go before those that had some
            for network, row in self._waiting.items():
                first.setdefault(network, deque()).extend(row)
            self._waiting = first

    def log_closed(self, event: str, peer: str, reason: object) -> None:
        """Log why a connection was closed, or count the line for a later one."""
        now_ns = self.steady_ns()
        if now_ns - self._lines_since_ns >= _LINES_NS:
            if self._lines > _LINES_MAX:
                logger.info("remoting.not_logged lines=%d", self._lines - _LINES_MAX)
            self._lines, self._lines_since_ns = 0, now_ns
        self._lines += 1
        if self._lines <= _LINES_MAX:
            logger.info("remoting.%s peer=%s reason=%s", event, peer, reason)


class Connection(asyncio.Protocol):
    """One end of a connection. Used on the event loop only."""

    _transport: asyncio.Transport

    def __init__(
        self, shared: Shared, peer: str = "", certificate: bytes = b"", *, placed: bool = False
    ) -> None:
        """`peer`: HOST:PORT, if the socket does not know it; `certificate`: see the attribute;
        `placed`: a place was taken for it."""
        self._placed = placed
        self._network = ""
        self._shared = shared
        self._reader = FrameReader()
        self._unfinished = 0
        self._in_progress: dict[Any, int] = {}
        self._bytes = 0
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._reasons_to_pause: set[str] = set()
        self._on_close: list[Callable[[Connection], None]] = []
        self.closed = False
        #: "host:port" of the peer.
        self.peer = peer
        #: The verified certificate (DER) of the peer; empty: it has shown none.
        self.certificate = certificate
        #: Of the request that is handled now: the user that signed it, if that was checked.
        self.metadata: tuple[tuple[str, str], ...] = ()
        #: Steady times: last traffic, start of the unfinished frame, start of a full write buffer.
        self.active_ns = 0
        self.unfinished_since_ns = 0
        self.stalled_since_ns = 0

    # -- transport --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not a subclass of `asyncio.Transport` with uvloop.
        shared, self._transport = self._shared, cast(asyncio.Transport, transport)
        transport = self._transport
        if not self.peer and (name := transport.get_extra_info("peername")):
            self.peer = host_port(name[0].removeprefix("::ffff:"), name[1])
        self._network = network_of(host_of(self.peer))
        if secure := transport.get_extra_info("ssl_object"):
            self.certificate = secure.getpeercert(binary_form=True) or b""
        self.active_ns = shared.steady_ns()
        transport.set_write_buffer_limits(high=_UNREAD_BYTES_PAUSE)
        if len(shared.connections) >= shared.connections_max or shared.draining:
            shared.statistics.refused += 1
            transport.abort()
            return
        self._placed = self._placed or shared.take_place(self.peer)
        if self._placed:
            shared.connections[self] = None
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self.active_ns = self._shared.steady_ns()
        frames = self._reader.frames(data)
        if self._shared.has_time():
            self._serve(frames)
        else:
            self._serve_later(frames)

    def _serve(self, frames: Iterator[bytes]) -> None:
        """Serve frames; at the end of a turn leave the event loop to others and go on later."""
        shared = self._shared
        if self._transport.is_closing():
            return
        try:
            for frame in frames:
                if shared.take is None or not self._take(shared.take, frame):
                    self._receive(decode(frame))
                if self._transport.is_closing():
                    return
                if not shared.has_time():
                    self._serve_later(frames)
                    return
        except FrameError as error:
            shared.statistics.malformed += 1
            shared.log_closed("malformed", self.peer, error)
            self._transport.close()
            return
        self.resume(_LONG_TURN)
        self._note_unfinished(self._reader.unfinished)

    def _serve_later(self, frames: Iterator[bytes]) -> None:
        self.pause(_LONG_TURN)
        self._shared.serve_later(self._network, partial(self._serve, frames))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._shared.connections.pop(self, None)
        if self._placed:
            self._placed = False
            self._shared.places.leave(host_of(self.peer))
        self._note_unfinished(0)
        for future in list(self._in_progress):
            future.cancel()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(PeerGoneError(self.peer))
        self._calls.clear()
        for listener in self._on_close:
            listener(self)

    def pause_writing(self) -> None:
        self.stalled_since_ns = self._shared.steady_ns()
        self.pause("unread answers")

    def resume_writing(self) -> None:
        self.stalled_since_ns = 0
        self.resume("unread answers")

    def pause(self, reason: str) -> None:
        """Read nothing from the peer until `resume` with the same reason."""
        self._reasons_to_pause.add(reason)
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self, reason: str) -> None:
        """Read again, unless there is another reason to pause."""
        if reason not in self._reasons_to_pause:
            return
        self._reasons_to_pause.remove(reason)
        if not self._reasons_to_pause and not self._transport.is_closing():
            self._transport.resume_reading()

    def _note_unfinished(self, size: int) -> None:
        shared = self._shared
        shared.unfinished += size - self._unfinished
        if not size:
            self.unfinished_since_ns = 0
        elif size < self._unfinished or not self._unfinished:  # another frame
            self.unfinished_since_ns = self.active_ns
        self._unfinished = size
        if size and shared.unfinished > shared.config.front_unfinished_bytes // _UNFINISHED_SHARE:
            # At once: the next connection must not be closed for the bytes of this one.
            shared.unfinished -= size
            self._unfinished = 0
            shared.statistics.malformed += 1
            self.abort("frontUnfinishedBytes is reached")

    # -- for handlers -----------------------------------------------------------------------------

    def on_close(self, listener: Callable[[Connection], None]) -> None:
        """Call `listener` once when the connection has ended."""
        self._on_close.append(listener)

    def notify(self, command: Command, flag: int = 0) -> None:
        """Send a oneway request; dropped if the connection has ended. Raises FrameError."""
        command.flag = ONEWAY | flag
        command.opaque = self._next_opaque()
        self._write(encode(command))

    def call(self, command: Command, flag: int = 0) -> asyncio.Future[Command]:
        """Send a request; the future gets the response. The caller cancels it at its time limit.

        Raises FrameError, RemotingError. The future raises PeerGoneError.
        """
        if len(self._calls) >= self._shared.calls_max:
            raise RemotingError(Reply.SYSTEM_BUSY, f"{len(self._calls)} calls to the peer wait")
        if self.closed:
            raise RemotingError(Reply.SYSTEM_ERROR, "the peer has left")
        command.flag = flag
        command.opaque = opaque = self._next_opaque()
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._calls[opaque] = future
        future.add_done_callback(lambda _: self._calls.pop(opaque, None))
        self._write(encode(command))
        return future

    def abort(self, reason: str) -> None:
        """End the connection now."""
        self._shared.log_closed("aborted", self.peer, reason)
        self._transport.abort()

    def close(self) -> None:
        """End the connection when the answers in the buffer are sent."""
        self._transport.close()

    @property
    def local(self) -> str:
        """HOST:PORT at which the peer has reached this end."""
        name = self._transport.get_extra_info("sockname")
        return host_port(name[0].removeprefix("::ffff:"), name[1])

    @property
    def in_progress(self) -> int:
        """Number of requests that are not answered yet."""
        return len(self._in_progress)

    @property
    def unread(self) -> int:
        """Bytes of answers in the buffer."""
        return self._transport.get_write_buffer_size()

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & _OPAQUE_MAX
        return self._opaque

    # -- requests ---------------------------------------------------------------------------------

    def _receive(self, command: Command) -> None:
        statistics = self._shared.statistics
        if command.is_response:
            call = self._calls.pop(command.opaque, None)
            if call is None:
                statistics.unasked += 1
            elif not call.done():
                call.set_result(command)
            return
        statistics.requests += 1
        try:
            answer = self._handled(command)
        except Exception as error:
            answer = self._failure(command, error)
        if answer is None or isinstance(answer, Command):
            self._answer(command, answer)
            return
        self._begin(answer, len(command.body))
        # Not the whole request: a waiting pull lives long.
        asked = Command(command.code, flag=command.flag, opaque=command.opaque)
        answer.add_done_callback(partial(self._done, asked))

    def _begin(self, answer: Any, size: int) -> None:
        """Note a request of `size` bytes that is in progress until its answer is there."""
        self._in_progress[answer] = size
        self._bytes += size
        if self._bytes > REQUEST_BYTES_MAX:
            self.pause(_IN_PROGRESS)

    def _end(self, answer: Any) -> None:
        self._bytes -= self._in_progress.pop(answer)
        if _IN_PROGRESS in self._reasons_to_pause and self._bytes <= REQUEST_BYTES_MAX // 2:
            self.resume(_IN_PROGRESS)

    def _take(self, take: Take, frame: bytes) -> bool:
        """Let `take` serve a frame; False if it has to be decoded."""
        shared = self._shared
        if shared.draining or len(self._in_progress) >= REQUESTS_MAX:
            return False
        taken = take(frame, self)
        if taken is None:
            return False
        shared.statistics.requests += 1
        self._begin(taken, len(frame))
        taken.add_done_callback(self._taken)
        return True

    def _taken(self, taken: Taken) -> None:
        self._end(taken)
        if taken.cancelled():
            return
        try:
            answer = taken.response()
        except Exception as error:
            answer = self._failure(Command(0), error)
        if isinstance(answer, bytes):
            self._write(answer)
        else:
            self._answer(Command(0, opaque=taken.opaque), answer)

    def _handled(self, command: Command) -> Any:
        shared = self._shared
        handler = shared.handlers.get(command.code)
        if handler is None:
            shared.statistics.unknown += 1
            remark = f" request type {command.code} not supported"
            return reply(Reply.REQUEST_CODE_NOT_SUPPORTED, remark)
        if shared.draining:
            return reply(Reply.SERVICE_NOT_AVAILABLE, "this server stops")
        if len(self._in_progress) >= REQUESTS_MAX:
            return reply(Reply.SYSTEM_BUSY, _BUSY)
        return handler(command, self)

    def _failure(self, command: Command, error: BaseException) -> Command:
        if isinstance(error, RemotingError):
            return reply(error.code, error.remark)
        if isinstance(error, HeaderError):
            return reply(Reply.SYSTEM_ERROR, f"RemotingCommandException {error}")
        logger.error("remoting.failed code=%d peer=%s", command.code, self.peer, exc_info=error)
        return reply(Reply.SYSTEM_ERROR, f"request {command.code} failed in the server")

    def _done(self, command: Command, future: Any) -> None:
        self._end(future)
        if future.cancelled():
            return
        try:
            answer = future.result()
        except Exception as error:
            answer = self._failure(command, error)
        self._answer(command, answer)

    def _answer(self, command: Command, answer: Command | None) -> None:
        if answer is None or command.is_oneway:
            return
        answer.opaque = command.opaque
        answer.flag = RESPONSE
        try:
            data = encode(answer)
        except FrameError as error:
            answer = reply(Reply.SYSTEM_ERROR, f"the answer is too large: {error}")
            answer.opaque = command.opaque
            data = encode(answer)
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(data)
        self.active_ns = self._shared.steady_ns()
        # One answer alone may be larger.
        limit = self._shared.config.front_unread_connection_bytes
        if self.unread > max(limit, len(data)):
            self._shared.statistics.timed_out += 1
            self.abort("the client does not read its answers")
