"""Fixtures that create topics and groups on the shared cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.tests.harness.cluster import Cluster

Make = Callable[..., str]


@pytest.fixture
def new_topic(shared_cluster: Cluster) -> Make:
    """Create a topic: `new_topic(kind="fifo", queues=2)`."""

    def make(**options: Any) -> str:
        return shared_cluster.create_topic(f"sdk-{uuid.uuid4().hex[:10]}", **options)

    return make


@pytest.fixture
def new_group(shared_cluster: Cluster) -> Make:
    """Create a group: `new_group(order=True, attempts=3)`."""

    def make(**options: Any) -> str:
        return shared_cluster.create_group(f"sdk-{uuid.uuid4().hex[:10]}", **options)

    return make
