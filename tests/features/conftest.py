"""Fixtures of the feature tests: one real broker per module, called over gRPC by coroutine tests.

Tests take `client`; all tests of a module run on one event loop, which is also the broker's, so
that the broker starts once. Every test uses its own topics and groups (`client.name`), and moves
the wall clock forward only.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.front.event_loop import loop_factory
from cometmq.tests.broker.live import Live, Settings, running, settings
from cometmq.tests.features.client import Client
from cometmq.tests.features.house import PATIENCE_S, House


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return the settings of the module's broker; a module may override them."""
    return settings(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="module")
def house(chosen: Settings) -> Iterator[House]:
    """Run the module's broker."""
    made = House(chosen)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def client(house: House, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Yield a client of the module's broker, with names that no other test uses."""
    made = house.run(_client(house.live, request.node.name))
    try:
        yield made
    finally:
        house.run(made.close())


async def _client(live: Live, test: str) -> Client:
    return Client(live.bound.client, test)


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


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on its module's loop, or on one of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    work = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    house = pyfuncitem.funcargs.get("house")
    if isinstance(house, House):
        house.run(work)
    else:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(asyncio.wait_for(work, PATIENCE_S))
    return True
