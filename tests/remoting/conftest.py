"""The tests of this folder run on the event loop of server processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cometmq.front.process import loop_factory


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use uvloop where it is installed."""
    return {"server": loop_factory()}
