"""What every producer and consumer is: opened once, closed once, known by an id, counted.

A client class makes its `_session`, and says what opening and closing mean to it; `async with` does both.
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
        """Finish and say good-bye."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """What the broker knows this client by."""
        return self._session.client_id

    @property
    def statistics(self) -> Statistics:
        """Counts since it was made."""
        return self._session.statistics
