"""SendMessage calls that were appended in the turn in which they came (`front/service.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...front.context import RequestContext
    from ...front.reply_future import ReplyFuture
    from ...front.service import ClientRun
    from .sender import Sender
    from .settlement import Settlement


class TakenSends(Struct, frozen=True):
    """Appended requests; `front.service.Taken`."""

    answers: list[bytes]
    #: Log offset behind their last record.
    end: int
    settlement: Settlement

    @property
    def count(self) -> int:
        """The number of requests."""
        return len(self.answers)

    def then(self, answer: Callable[[list[bytes]], None]) -> None:
        """Answer the requests once their records are as safe as promised."""
        self.settlement.when_durable(self.answers, self.end, answer)


class SendHandler(Struct, frozen=True):
    """`front.service.TurnHandler` of SendMessage."""

    sender: Sender

    def __call__(self, request: Any, ctx: RequestContext) -> ReplyFuture:
        """See `Sender.send`."""
        return self.sender.send(request, ctx)

    def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> TakenSends | None:
        """See `Sender.take`."""
        return self.sender.take(requests, clients)
