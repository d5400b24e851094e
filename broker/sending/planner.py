"""What planners share: they turn the requests of a batch into records and answers.

The sender asks the crate's planner first, then Python's for what it leaves. A planner lets the
store write the records; the sender lets `settlement.py` answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from .send import Send, peer_of

if TYPE_CHECKING:
    from cometmq_native import codec

    from ..trace.spans import Spans


class Batch:
    """Collected requests, in the order of arrival."""

    def __init__(self, sends: list[Send], spans: Spans | None = None) -> None:
        """The crate does not get requests that may have spans."""
        self.sends = sends
        self._spans = spans
        self._rows: list[tuple[bytes | None, str, bytes, bool]] = []

    def plan(self, planner: codec.SendPlanner, at: int, *state: Any) -> codec.SendPlan:
        """Plan the requests from number `at` on; see `SendPlanner.plan`."""
        if not self._rows:
            self._rows = [
                (self._common(send), *peer_of(send.ctx.peer), send.is_frame) for send in self.sends
            ]
        return planner.plan(self._rows, at, *state)

    def _common(self, send: Send) -> bytes | None:
        left = self._spans is not None and send.raw and self._spans.may_start(send.raw)
        return None if left else send.raw


class Appended(Struct):
    """What a planner has done with the requests of a batch."""

    #: Number of the first request that it has left, and of the first that it may accept again.
    at: int
    until: int
    #: Requests with stored messages, and their answers.
    sends: list[Send]
    answers: list[bytes]
    #: The log offset that the answers wait for.
    end: int
    #: Answers are repeated: nothing may have been appended.
    repeated: bool = False


class Planner(Protocol):
    """Appends requests. Its answers to requests that are refused are given at once."""

    def append(self, batch: Batch, at: int, until: int) -> Appended:
        """Append the requests from number `at` on, before `until`, as far as it accepts them."""
