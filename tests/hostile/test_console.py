"""Hostile input at the HTTP port of the console harms only its own connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from cometmq.tests.console.served import Served, serve
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.hostile.console import ATTACKS, Attack
from cometmq.tests.hostile.memory import Memory

#: A page of the neighbour, on a machine that is busy with other tests.
PAGE_MAX_S = 10.0
PEAK_MIB = 64.0
#: The threads for pages and their arenas, once.
STAYS_MIB = 48.0
SETTLE_S = 20.0


class Neighbour:
    """A person who reads pages while the console is attacked."""

    def __init__(self, console: Served) -> None:
        self._console = console
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.pages, self.longest_s = 0, 0.0
        self.failures: list[str] = []

    def _read(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(0.05):
            try:
                status = self._console.ask("GET", "/topics").status
            except OSError as error:
                self.failures.append(repr(error))
                continue
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if status == 200:
                began = time.monotonic()
                self.pages += 1
            else:
                self.failures.append(str(status))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the folder of the console's log."""
    return tmp_path_factory.mktemp("attacked")


@pytest.fixture(scope="module")
def console(shared_cluster: Cluster, folder: Path) -> Iterator[Served]:
    """Serve a console that may change the cluster."""
    shared_cluster.create_topic("neighbour", queues=1)
    with serve(folder, shared_cluster.endpoints, "--allow-changes") as found:
        for path in ("/", "/topics", "/groups", "/messages"):  # templates are compiled once
            found.get(path)
        yield found


@pytest.mark.parametrize(
    ("attack", "statuses"), [pytest.param(*each, id=each[0].__name__) for each in ATTACKS]
)
async def test_hostile_input_at_the_console_harms_nobody_else(
    console: Served, folder: Path, attack: Attack, statuses: frozenset[int]
) -> None:
    memory, log = Memory(console.pid), folder / "console.log"
    before_mib = memory.own_mib()
    memory.reset_peak()
    resident_mib = memory.peak_mib()
    logged = log.stat().st_size
    with Neighbour(console) as neighbour:
        answers = await attack(console)
        pages = neighbour.pages
        wait_until("pages after the attack", lambda: neighbour.pages > pages + 1)
    text = log.read_text()[logged:]
    assert set(answers) <= statuses, answers
    # Open connections do not keep other clients out; a flood of requests may delay the neighbour.
    assert not neighbour.failures or 503 in statuses, neighbour.failures
    assert neighbour.longest_s < PAGE_MAX_S
    assert "Traceback" not in text, text[:3_000]
    assert len(text) < 10_000, "one line for each hostile request fills the disk"
    assert memory.peak_mib() - resident_mib < PEAK_MIB
    wait_until("the memory settles", lambda: memory.own_mib() - before_mib < STAYS_MIB, SETTLE_S)
