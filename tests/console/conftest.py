"""One console that may change the shared cluster, for each test file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cometmq.tests.console.served import Served, serve
from cometmq.tests.harness.cluster import Cluster


@pytest.fixture(scope="module")
def console(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a console that may change the cluster."""
    folder = tmp_path_factory.mktemp("console")
    with serve(folder, shared_cluster.endpoints, "--allow-changes") as found:
        yield found
