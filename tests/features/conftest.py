"""Fixtures of the feature tests: one real broker per module, called over gRPC by coroutine tests.

Tests take `client`; all tests of a module run on one event loop, which is also the broker's, so
that the broker starts once. Every test uses its own topics and groups (`client.name`), and moves
the wall clock forward only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cometmq.front.process import loop_factory
from cometmq.tests.broker.live import Live, Settings, running, settings
from cometmq.tests.features.client import Client
from cometmq.tests.features.house import House


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return the settings of the module's broker; a module may override them."""
    return settings(tmp_path_factory.mktemp("features"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(chosen: Settings) -> AsyncIterator[House]:
    """Run the module's broker."""
    async with running(chosen) as live:
        yield House(live)


@pytest_asyncio.fixture(loop_scope="module")
async def client(house: House, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """Yield a client of the module's broker, with names that no other test uses."""
    async with Client(house.live.bound.client, request.node.name) as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., Any]:
    """Return a context manager for a test's own broker: `async with alone(setting=...) as (live,
    client)`.
    """

    @asynccontextmanager
    async def start(**broker: Any) -> AsyncIterator[tuple[Live, Client]]:
        chosen = settings(tmp_path, **broker)
        async with running(chosen) as live, Client(live.bound.client, "alone") as client:
            yield live, client

    return start


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on the event loop of server processes."""
    return {"server": loop_factory()}
