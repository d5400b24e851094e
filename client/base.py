"""Base class of every producer and consumer: start, close, client id, statistics.

A subclass creates `_session` and implements `start` and `close`; `async with` calls both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .session import Session, Statistics


class Client(ABC):
    """Use it with `async with`, or with `start` and `close`."""

    _session: Session

    @abstractmethod
    async def start(self) -> Self:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Finish the work in flight, notify the brokers and disconnect."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The id that this client sends with every call."""
        return self._session.client_id

    @property
    def statistics(self) -> Statistics:
        """Counters since the client was created."""
        return self._session.statistics
