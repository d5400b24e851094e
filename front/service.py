"""What a service looks like to a door: a table from method path to `Method`.

A door hands over and takes back bytes; `Method.parse` makes the request, and a handler returns a
message (anything with `SerializeToString`) or ready bytes:

    UNARY          handler(request, ctx) -> answer | Future[answer] | Later
    SERVER_STREAM  handler(request, ctx) -> list[answer] | Future[list[answer]] | AsyncIterator[answer]
    BIDI           handler(ctx, outbound) -> Session

Handlers are plain functions on the event loop, never coroutines: a hot path should not pay for a
task, and the one who resolves a future can resolve thousands in a turn. A future is cancelled when
the client leaves; so is a `ReplyFuture`, which is a lighter future (`reply_future.py`). (UNARY may return a coroutine where one is needed anyway, as to forward a call.) Errors: `WireError` becomes the answer that `Method.fail` builds (a gRPC success
that carries a status), `RpcFailure` becomes a gRPC status, anything else is INTERNAL, logged once a
path and counted. Services never see which door they are behind (front-door note, section 4).
"""

from asyncio import Future
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from ..proto.errors import INVALID_ARGUMENT, RpcFailure, WireError

#: What `Session.close` is told when the client has said all and still listens.
HALF_CLOSED = "half-closed"


class Kind(Enum):
    """How many messages go each way."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidi"


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of the table."""

    path: str
    kind: Kind
    parse: Callable[[bytes], Any]
    handler: Callable[..., Any]
    #: Builds the answer that carries the error's status: a message, or a list of them for a stream.
    fail: Callable[[WireError], Any]


ServiceTable = Mapping[str, Method]


class OutboundFull(Exception):
    """The peer reads too slowly: the stream's bound is reached. The caller decides what to drop."""


class Outbound(Protocol):
    """The sending side of a bidirectional stream; bounded, used on the event loop only."""

    @property
    def finished(self) -> bool:
        """The stream has ended, from whichever side."""

    def send(self, message: Any) -> None:
        """Queue a message or ready bytes. Raises OutboundFull at the bound; drops after the end."""

    def finish(self, error: RpcFailure | None = None) -> None:
        """End the stream after what is queued, with OK or with the error's status."""

    def drained(self) -> "Future[None]":
        """Done when nothing is queued any more: for those who would rather wait than drop."""


class Session(Protocol):
    """The receiving side of a bidirectional stream, made by its handler."""

    def receive(self, message: Any) -> "Future[Any] | None":
        """A message came in. May raise as a unary handler does, which ends the stream.

        May return a future: the next message is read when it is done.
        """

    def close(self, reason: str) -> "Future[Any] | None":
        """Called once: the client has said all (HALF_CLOSED), left, or the stream has ended.

        After HALF_CLOSED the door sends what is queued and ends the stream, or waits for the future
        that is returned; it is cancelled when the client leaves before it is done.
        """


def read_request(method: Method, raw: bytes) -> Any:
    """The request as the service wants it. What cannot be read is the client's fault: RpcFailure."""
    try:
        return method.parse(raw)
    except Exception as error:
        text = f"the request of {method.path} cannot be read: {error}"
        raise RpcFailure(INVALID_ARGUMENT, text) from None


def encode(message: Any) -> bytes:
    """The bytes of an answer; ready bytes go through."""
    if type(message) is bytes:
        return message
    data: bytes = message.SerializeToString()
    return data


def status_failure(response_class: Callable[[], Any]) -> Callable[[WireError], Any]:
    """`Method.fail` for a response with a field `status`, or with `code` and `message` of its own."""
    nested = "status" in response_class().DESCRIPTOR.fields_by_name

    def fail(error: WireError) -> Any:
        response = response_class()
        status = response.status if nested else response
        status.code = error.code
        status.message = error.message
        return response

    return fail
