"""One request of a client from its arrival to its answer, and the records that are made of it.

gRPC (`grpc_send.py`) and classic clients (`broker/classic`) differ in how they fill a `Send`. All
that follows is the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...front.reply_future import ReplyFuture
from ...store.format.record import Message, pack_host
from ...store.format.results import AppendResult, PutStatus

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..trace.spans import RequestSpans
    from .answer import ReceiptExtras
    from .dedup_window import Reservation

_UNKNOWN_HOST = "0.0.0.0"


class Prepared(Struct):
    """The messages of one request, ready for the log."""

    messages: list[Message]
    ids: list[bytes]
    topic: str
    #: Of the first.
    message_type: int
    #: Bytes of all bodies.
    size: int
    #: Additional receipt fields; parallel to `ids`.
    extras: list[ReceiptExtras | None] | None = None
    #: With deduplication: which of `ids` are stored (`messages` holds only these).
    reservation: Reservation | None = None

    def notify_stored(self, results: Sequence[AppendResult]) -> None:
        """Call `on_stored` of the extras with the append results, in the order of `messages`."""
        assert self.extras is not None
        fresh = self.extras
        if self.reservation is not None:
            fresh = [self.extras[index] for index in self.reservation.fresh]
        for extra, result in zip(fresh, results, strict=True):
            if extra is None or extra.on_stored is None:
                continue
            if result.status is PutStatus.PUT_OK:
                extra.transaction_id = extra.on_stored(result)


class Send(ReplyFuture):
    """A request, which is the future of its own answer: one object for each send.

    The answer is an encoded SendMessageResponse, or what the crate made in the protocol of the
    request.
    """

    __slots__ = ("ctx", "raw", "spans")

    #: `raw` is the frame of a classic client.
    is_frame = False
    #: Deduplicated in any case.
    is_once = False

    def __init__(self, ctx: RequestContext, raw: bytes | None = None) -> None:
        """`raw` is what the crate plans; None if only Python can plan the request."""
        super().__init__()
        self.ctx = ctx
        self.raw = raw
        #: Open OpenTelemetry spans.
        self.spans: RequestSpans | None = None

    @property
    def topic(self) -> str:
        """The topic that quotas count; empty for a request without messages."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """The number of messages."""
        return 1

    @property
    def held(self) -> Any:
        """The request that another replica may accept; None if it is not for another one."""
        return None

    def is_readable(self) -> bool:
        """Return whether the request can be decoded; if not, fail."""
        return True

    def prepared(self) -> Prepared:
        """Make the records in Python. Raises WireError, or an error of the protocol."""
        raise NotImplementedError

    def stored(self, answer: bytes) -> None:
        """Note the answer to messages that are stored, but not as safe as promised: another answer
        follows."""

    def resolve(self, content: bytes) -> None:
        """Set the answer, unless the client has left."""
        if not self.done():
            self.set_result(content)


class PreparedSend(Send):
    """A request whose records are made; another replica cannot accept it."""

    __slots__ = ("_ready",)

    def __init__(self, ready: Prepared, ctx: RequestContext) -> None:
        super().__init__(ctx)
        self._ready = ready

    @property
    def topic(self) -> str:
        return self._ready.topic

    @property
    def count(self) -> int:
        return len(self._ready.messages)

    def prepared(self) -> Prepared:
        return self._ready


@lru_cache(maxsize=4096)
def packed_host(address: str) -> bytes:
    """Return a peer's address as records hold it; 0.0.0.0 for anything but an IP address."""
    host, _, port = address.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (OSError, ValueError):
        return pack_host(_UNKNOWN_HOST, 0)


@lru_cache(maxsize=4096)
def peer_of(address: str) -> tuple[str, bytes]:
    """Return a peer's host as text, and its address as records hold it."""
    return address.rpartition(":")[0] or _UNKNOWN_HOST, packed_host(address)
