"""A topic and a group of one test's own, on the shared cluster; coroutine tests on a user's loop."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.tests.harness.cluster import Cluster

Make = Callable[..., str]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests as users do: with `asyncio.run`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def new_topic(shared_cluster: Cluster) -> Make:
    """Makes a topic: `new_topic(kind="fifo", queues=2)`."""

    def make(**options: Any) -> str:
        return shared_cluster.create_topic(f"sdk-{uuid.uuid4().hex[:10]}", **options)

    return make


@pytest.fixture
def new_group(shared_cluster: Cluster) -> Make:
    """The same for groups: `new_group(order=True, attempts=3)`."""

    def make(**options: Any) -> str:
        return shared_cluster.create_group(f"sdk-{uuid.uuid4().hex[:10]}", **options)

    return make
