"""The table of drills is complete, and each drill is in one of the test files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cometmq.tests.drills import run
from cometmq.tests.drills.table import DRILLS, cases, drill


def test_the_drills_are_numbered() -> None:
    assert [row.number for row in DRILLS] == list(range(1, 42))
    assert all(row.title and row.expected and row.modes for row in DRILLS)
    assert len(cases()) == len(set(cases()))
    with pytest.raises(KeyError):
        drill(42)


def test_every_drill_is_in_a_test_file() -> None:
    numbers: list[int] = []
    for path in Path(__file__).parent.glob("test_table_*.py"):
        found = re.search(r"cases_of\(([\d, ]+)\)", path.read_text())
        assert found is not None, path
        numbers += [int(number) for number in found[1].split(",")]
    assert sorted(numbers) == list(range(1, 42))


def test_the_list_has_every_drill(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 41


def test_modes_set_the_required_in_sync_replicas() -> None:
    assert drill(8).setup_of("sync 2").min_in_sync == 2
    assert not drill(5).setup_of("async").sync
