"""The bench of the feature tests: one real broker a module, asked over gRPC by coroutines.

Tests are coroutines that take `client`; all tests of a module run on one loop, which is the broker's
too, so that nothing is started twice. Every test uses topics and groups of its own (`client.name`), and
moves the wall clock forward only.
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
    """What the module's broker is started with; a module may have its own."""
    return settings(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="module")
def house(chosen: Settings) -> Iterator[House]:
    """The module's broker."""
    made = House(chosen)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def client(house: House, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of the module's broker, with names that no other test uses."""
    made = house.run(_client(house.live, request.node.name))
    try:
        yield made
    finally:
        house.run(made.close())


async def _client(live: Live, test: str) -> Client:
    return Client(live.bound.client, test)


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., Any]:
    """`async with alone(setting=...) as (live, client)`: a broker of the test's own."""

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
