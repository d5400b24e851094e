"""House: a broker for the tests of one module, and the event loop that both share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from cometmq.front.event_loop import loop_factory
from cometmq.tests.broker.live import Live, Settings, running

PATIENCE_S = 90.0


class House:
    """The loop of a module, its broker, and what is closed with it."""

    def __init__(self, chosen: Settings) -> None:
        self.chosen = chosen
        self._runner = asyncio.Runner(loop_factory=loop_factory())
        self._stack = AsyncExitStack()
        self.live: Live = self.run(self._stack.enter_async_context(running(chosen)))

    def run(self, work: Any) -> Any:
        """Run one coroutine to its end on the loop."""
        return self._runner.run(asyncio.wait_for(work, PATIENCE_S))

    def close(self) -> None:
        """Stop the broker, close the loop."""
        self.run(self._stack.aclose())
        self._runner.close()
