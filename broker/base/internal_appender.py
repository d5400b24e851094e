"""How parts of the broker append records of their own: timers, retries, op messages, traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...store.format.record import Message
    from ...store.format.results import AppendResult


class InternalAppender(Protocol):
    """Appends behind the client messages that are already collected; `Sender` implements it."""

    @property
    def store_host(self) -> bytes:
        """This broker's address as records carry it: packed host and port."""

    def forget(self, topic: str, message_id: str) -> None:
        """Let a message with this id be stored again: it was withdrawn."""

    def append(self, message: Message) -> AppendResult:
        """Append one record. Raises WireError if the log does not accept it."""

    def append_internal(self, messages: list[Message]) -> list[AppendResult]:
        """Append records; the results are in order.

        Raises WireError if the log accepts none of them: then nothing was written. A record that
        the store refuses alone (too large) has a result that is not PUT_OK. On return the records
        are in the page cache; wait with `DurabilityGate` for more.
        """
