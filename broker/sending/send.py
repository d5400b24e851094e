"""The records that are made of one request of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ...store.format.record import Message
from ...store.format.results import AppendResult, PutStatus

if TYPE_CHECKING:
    from ..trace.spans import RequestSpans
    from .answer import ReceiptExtras
    from .dedup_window import Reservation


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
    #: Open OpenTelemetry spans.
    spans: RequestSpans | None = None

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
