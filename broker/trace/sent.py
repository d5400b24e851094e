"""The messages of one send request, as traces read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...store.format.record import Message


class SentMessages(Protocol):
    """A request whose messages are ready for the log."""

    @property
    def topic(self) -> str:
        """Their topic."""

    @property
    def messages(self) -> Sequence[Message]:
        """The messages that are appended."""
