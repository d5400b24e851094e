"""The table of drills is complete, and each drill is in one of the test files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cometmq.cli.root import cli
from cometmq.drills.table import DRILLS, cases, drill
from cometmq.operations.errors import CliError


def test_the_drills_are_numbered() -> None:
    assert [row.number for row in DRILLS] == list(range(1, 44))
    assert all(row.title and row.expected and row.modes for row in DRILLS)
    assert len(cases()) == len(set(cases()))
    with pytest.raises(KeyError):
        drill(44)


def test_every_drill_is_in_a_test_file() -> None:
    numbers: list[int] = []
    for path in Path(__file__).parent.glob("test_table_*.py"):
        found = re.search(r"cases_of\(([\d, ]+)\)", path.read_text())
        assert found is not None, path
        numbers += [int(number) for number in found[1].split(",")]
    assert sorted(numbers) == list(range(1, 44))


def test_the_list_has_every_drill() -> None:
    done = CliRunner().invoke(cli, ["drill", "--list"])
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 43)


@pytest.mark.parametrize("words", [[], ["5", "--random", "2"], ["99"], ["--all", "5"]])
def test_one_kind_of_drill_is_chosen(words: list[str]) -> None:
    done = CliRunner().invoke(cli, ["drill", *words], standalone_mode=False)
    assert isinstance(done.exception, CliError)


def test_modes_set_the_required_in_sync_replicas() -> None:
    assert drill(8).setup_of("sync 2").min_in_sync == 2
    assert not drill(5).setup_of("async").sync
