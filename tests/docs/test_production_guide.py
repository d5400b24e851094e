"""docs/production.md: its configuration files and units run as printed, on three hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cometmq.cli.main import cli
from cometmq.tests.drills.hosts import guide
from cometmq.tests.drills.hosts.lab import enter, missing


def test_the_guide_prints_both_files_of_three_hosts() -> None:
    files = guide.printed_files()
    assert len(files) == 6
    assert {Path(path).name for path, _ in files} == {"namesrv.conf", "broker.conf"}


@pytest.mark.parametrize("unit", ["cometmq-broker", "cometmq-namesrv"])
def test_the_command_line_accepts_the_command_of_a_unit(unit: str) -> None:
    program, name, *options = guide.start_command(unit)
    assert program == guide.PREFIX
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    command.make_context(name, list(options))
    assert f"/etc/cometmq/{name}.conf" in options


@pytest.mark.timeout(400)
def test_the_printed_files_run_on_three_hosts(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    command = [sys.executable, "-P", "-m", "cometmq.tests.drills.hosts.guide", str(tmp_path)]
    assert enter(command) == 0
