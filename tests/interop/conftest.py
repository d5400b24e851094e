"""Fixtures that run tests with the official Python client, unmodified, and with the SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cometmq.tests.harness.official import AGENT, SDK_AGENT, Official

AGENTS = {"official": AGENT, "sdk": SDK_AGENT}


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[str, str], Official]]:
    """Start processes that run a Python client: `start_agent("sdk", endpoints)`."""
    made: list[Official] = []

    def begin(kind: str, endpoints: str) -> Official:
        made.append(Official(endpoints, tmp_path / f"agent{len(made)}", agent=AGENTS[kind]))
        return made[-1]

    try:
        yield begin
    finally:
        for client in made:
            client.close()


@pytest.fixture(params=AGENTS)
def start(
    request: pytest.FixtureRequest, start_agent: Callable[[str, str], Official]
) -> Callable[[str], Official]:
    """Start a process with each client in turn: `start(endpoints)`."""
    return partial(start_agent, str(request.param))
