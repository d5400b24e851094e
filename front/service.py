"""The service table: gRPC method path -> `Method`. Doors call services through it.

A door receives and returns bytes. `Method.parse` decodes the request; the handler returns a message
(any object with `SerializeToString`) or encoded bytes:

    UNARY          handler(request, ctx) -> answer | Future[answer] | ReplyFuture
    SERVER_STREAM  handler(request, ctx) -> list[answer] | Future[list] | AsyncIterator[answer]
    BIDI           handler(ctx, outbound) -> Session

Handlers are plain functions on the event loop, not coroutines: the hot path pays for no task, and
one loop callback can resolve thousands of futures. A door cancels the future when the client
leaves. `ReplyFuture` (`reply_future.py`) is a lighter future. A UNARY handler may return a
coroutine where a task is needed anyway, for example to forward a call. A UNARY handler that is a
`TurnHandler` can also take many calls in one step.

Errors: a `WireError` becomes the answer that `Method.fail` builds (a gRPC success that carries a
status), an `RpcFailure` becomes a gRPC status, any other exception becomes INTERNAL and is counted
and logged (`failure.py`). Services do not depend on the door (docs/formats/front-door.md, section
4).
"""

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from ..proto.errors import INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, RpcFailure, WireError
from ..proto.methods import rpc_methods
from ..proto.request_limits import SCAN_FROM, RequestLimits
from .context import RequestContext

#: The reason passed to `Session.close` when the client has sent its last message and still reads.
HALF_CLOSED = "half-closed"


class Kind(Enum):
    """Number of messages in each direction."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidi"


class Method(Struct, frozen=True):
    """One RPC of the table."""

    path: str
    kind: Kind
    parse: Callable[[bytes], Any]
    handler: Callable[..., Any]
    #: Builds the answer that carries the error's status: a message, or a list of messages (stream).
    fail: Callable[[WireError], Any]
    #: Refuses a call before its request is parsed: raises RpcFailure or WireError. None admits all.
    admit: Callable[[RequestContext], None] | None = None
    #: Largest request in bytes; None: the door's limit.
    request_bytes_max: int | None = None
    #: Checked before a request is decoded; None for internal methods with a token.
    limits: RequestLimits | None = None


ServiceTable = Mapping[str, Method]
#: Returns a context; answers that are ready within it may go to the network together
#: at its exit (`Door.together`). For code that answers many calls in a row.
Together = Callable[[], AbstractContextManager[object]]

_KINDS = {
    (False, False): Kind.UNARY,
    (False, True): Kind.SERVER_STREAM,
    (True, True): Kind.BIDI,
}


def methods_of(service: str, handlers: Mapping[str, Callable[..., Any]]) -> list[Method]:
    """Return a table row for each handler; keys are method names of `service`.

    Path, kind, request class and failure answer come from the service descriptor. Raises KeyError
    for a method that the service does not have.
    """
    known = rpc_methods(service)
    rows = []
    for name, handler in handlers.items():
        rpc = known[name]
        kind = _KINDS[rpc.client_streaming, rpc.server_streaming]
        fail = status_failure(rpc.response)
        if kind is Kind.SERVER_STREAM:
            fail = _in_list(fail)
        limits = RequestLimits(rpc.request)
        rows.append(
            Method(
                rpc.path,
                kind,
                rpc.request.FromString,
                handler,
                fail,
                request_bytes_max=limits.door_bytes_max,
                limits=limits,
            )
        )
    return rows


#: The context of calls in a row of one client, without deadline and size, and their number.
ClientRun = tuple[RequestContext, int]


class TurnHandler(Protocol):
    """A UNARY handler that can take calls of one turn of the loop together."""

    def __call__(self, request: Any, ctx: RequestContext) -> Any:
        """Handle one call."""

    def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> "Taken | None":
        """Handle the first of these calls, as many as it can; the door calls the handler for the
        others. None: it takes none. `clients` may be for fewer requests than there are.

        A call that is taken can be answered only: it does not fail, and is not cancelled when its
        client leaves.
        """


class Taken(Protocol):
    """The calls that a `TurnHandler` has taken."""

    @property
    def count(self) -> int:
        """Their number."""

    def then(self, answer: Callable[[list[bytes]], None]) -> None:
        """Call `answer` with an encoded answer for each of them, once: now or later."""


class OutboundFull(Exception):
    """The bound of a stream is reached: its client is slow. The caller decides what to drop."""


class Outbound(Protocol):
    """The sending side of a bidirectional stream; bounded, used on the event loop only."""

    @property
    def finished(self) -> bool:
        """True after the stream has ended on either side."""

    def send(self, message: Any) -> None:
        """Queue a message or bytes; dropped after the end. Raises OutboundFull when full."""

    def finish(self, error: RpcFailure | None = None) -> None:
        """End the stream after the queued messages, with OK or with the status of `error`."""

    def drained(self) -> "Future[None]":
        """Return a future that is done when the queue is empty, for callers that prefer to wait."""


class Session(Protocol):
    """The receiving side of a bidirectional stream, created by its handler."""

    def receive(self, message: Any) -> "Future[Any] | None":
        """Process one message. May raise like a unary handler, which ends the stream.

        May return a future: the next message is read when it is done.
        """

    def close(self, reason: str) -> "Future[Any] | None":
        """Called once: the client sent its last message (HALF_CLOSED), left, or the stream ended.

        After HALF_CLOSED the door sends the queued messages and ends the stream. If a future is
        returned, the door waits for it first and cancels it when the client leaves.
        """


def refuse_wire_error(error: WireError) -> Any:
    """`Method.fail` of a method whose answers carry no status: raises RpcFailure."""
    raise RpcFailure(INTERNAL, error.message)


def taker_of(method: Method) -> Callable[..., Taken | None] | None:
    """Return `TurnHandler.take` of the method's handler, if it has one.

    The wrapper of a handler does not have it, unless it defines `take` itself: no check of a
    wrapper is bypassed.
    """
    taker: Callable[..., Taken | None] | None = getattr(method.handler, "take", None)
    return taker


def admit(method: Method, ctx: RequestContext) -> None:
    """Raise what `Method.admit` raises if the call is refused."""
    if method.admit is not None:
        method.admit(ctx)


def read_request(method: Method, raw: bytes, ctx: RequestContext) -> Any:
    """Admit a call and decode its request. Raises what `admit` and `read_message` raise."""
    admit(method, ctx)
    return read_message(method, raw)


def open_session(method: Method, ctx: RequestContext, outbound: Outbound) -> Session:
    """Admit a bidirectional stream and call its handler. Raises what both raise."""
    admit(method, ctx)
    session: Session = method.handler(ctx, outbound)
    return session


def read_message(method: Method, raw: bytes) -> Any:
    """Decode a request, or a message of a stream.

    Raises RpcFailure: RESOURCE_EXHAUSTED above the method's limit, INVALID_ARGUMENT if the bytes
    cannot be decoded or a message of a stream has too many elements; WireError if a request has.
    """
    limit = method.request_bytes_max
    if limit is not None and len(raw) > limit:
        text = f"a request of {len(raw)} bytes exceeds the limit of {limit} of {method.path}"
        raise RpcFailure(RESOURCE_EXHAUSTED, text)
    if len(raw) > SCAN_FROM and method.limits is not None:
        try:
            method.limits.check(raw)
        except WireError as error:
            if method.kind is Kind.BIDI:
                raise RpcFailure(INVALID_ARGUMENT, error.message) from None
            raise
    try:
        return method.parse(raw)
    except Exception as error:
        text = f"cannot decode the request of {method.path}: {error}"
        raise RpcFailure(INVALID_ARGUMENT, text) from None


def largest_request(services: ServiceTable, door_limit: int) -> int:
    """Return the size of the largest request that any method of the table accepts."""
    limits = (method.request_bytes_max for method in services.values())
    return max((min(limit or door_limit, door_limit) for limit in limits), default=door_limit)


def encode(message: Any) -> bytes:
    """Return the bytes of an answer; encoded bytes are returned unchanged."""
    if type(message) is bytes:
        return message
    data: bytes = message.SerializeToString()
    return data


def status_failure(response_class: Callable[[], Any]) -> Callable[[WireError], Any]:
    """Return `Method.fail` for a response with `status`, or with `code` and `message`."""
    nested = "status" in response_class().DESCRIPTOR.fields_by_name

    def fail(error: WireError) -> Any:
        response = response_class()
        status = response.status if nested else response
        status.code = error.code
        status.message = error.message
        return response

    return fail


def _in_list(fail: Callable[[WireError], Any]) -> Callable[[WireError], Any]:
    return lambda error: [fail(error)]
