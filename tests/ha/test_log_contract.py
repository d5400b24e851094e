"""The store and the log in memory pass the conformance suite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.ha.core.replicated_log import ReplicatedLog
from cometmq.tests.ha.log_contract import SEGMENT, LogContract, MakeLog
from cometmq.tests.ha.memory_log import MemoryLog
from cometmq.tests.ha.real_store import RealLog


class InMemory:
    def __init__(self) -> None:
        self.memory = MemoryLog(SEGMENT)
        self.log: ReplicatedLog = self.memory

    def append(self, body: bytes) -> int:
        return self.memory.append(body)

    def flush(self) -> None:
        self.memory.flush()


class TestMemoryLog(LogContract):
    @pytest.fixture
    def make_log(self) -> MakeLog:
        return InMemory


class TestMessageStore(LogContract):
    @pytest.fixture
    def make_log(self, tmp_path: Path) -> Iterator[MakeLog]:
        made: list[RealLog] = []

        def make() -> RealLog:
            made.append(
                RealLog(tmp_path / str(len(made)), SEGMENT, flush_commit_log_thorough_interval=50)
            )
            return made[-1]

        yield make
        for log in made:
            log.close()
