"""A front door that can close and open again, so that clients connect to another node.

While it is suspended, connections are refused, so a client whose target has several addresses
dials the next one at once. Counters start again at 0 with each opening.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from .door import Door
from .errors import DoorError
from .slow_clients import reset_on_close
from .statistics import DoorStatistics

logger = logging.getLogger(__name__)

# Time for the answers to calls in flight; longer, they wait for what cannot be reached.
_SUSPEND_GRACE_S = 0.3
# The kernel may hold the port for a moment after the door has closed.
_PORT_PAUSE_S = 0.1


class SuspendableDoor:
    """`door.Door` that makes a door for each opening. Used on the event loop."""

    def __init__(self, make: Callable[[], Door]) -> None:
        self._make = make
        self._door = make()
        self._at = "", 0
        self._change = asyncio.Lock()
        self.suspended = False
        self.name, self.batches = self._door.name, self._door.batches

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0: the system chooses). Raises PortInUseError, AddressError."""
        self._at = host, await self._door.start(host, port)
        return self._at[1]

    async def suspend(self) -> None:
        """Send GOAWAY to all clients, reset their connections, and refuse new ones."""
        async with self._change:
            if not self.suspended:
                self.suspended = True
                with suppress(OSError):  # no descriptor to list them: they end without a reset
                    await asyncio.to_thread(reset_on_close, self._at[1])
                await self._door.drain(_SUSPEND_GRACE_S)

    async def resume(self) -> None:
        """Listen again at the same port; returns when it does."""
        async with self._change:
            while self.suspended:
                door = self._make()
                try:
                    await door.start(*self._at)
                except DoorError as error:
                    logger.warning("door.not_resumed reason=%s", error)
                    await asyncio.sleep(_PORT_PAUSE_S)
                    continue
                self._door, self.suspended = door, False

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let calls in flight finish within the grace time, close."""
        await self._door.drain(grace_s)

    def together(self) -> AbstractContextManager[object]:
        """As `Door.together`, for the current opening."""
        return self._door.together()

    def statistics(self) -> DoorStatistics:
        """Return the counters of the current opening."""
        return self._door.statistics()
