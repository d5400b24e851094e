"""docs/production.md: its configuration files and units run as printed, on three hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cometmq.cli.root import cli
from cometmq.proto.native import is_available
from cometmq.tests.drills.hosts import guide
from cometmq.tests.drills.hosts.lab import enter, missing
from cometmq.tests.interop.programs import MissingTool, go, java


def test_the_guide_prints_both_files_of_three_hosts() -> None:
    files = guide.printed_files()
    assert len(files) == 6
    assert {Path(path).name for path, _ in files} == {"namesrv.conf", "broker.conf"}


def test_each_block_of_the_guide_is_a_file_or_a_command_that_the_walk_runs() -> None:
    blocks = guide.GUIDE.read_text().count("\n```\n") // 2
    assert blocks == len(guide.printed_files()) + len(guide.printed_commands())


@pytest.mark.parametrize("unit", ["cometmq-broker", "cometmq-namesrv"])
def test_the_command_line_accepts_the_command_of_a_unit(unit: str) -> None:
    program, name, *options = guide.start_command(unit)
    assert program == guide.PREFIX
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    command.make_context(name, list(options))
    assert f"/etc/cometmq/{name}.conf" in options


@pytest.mark.timeout(600)
def test_the_printed_files_run_on_three_hosts_and_a_rolling_restart_costs_no_error(
    tmp_path: Path,
) -> None:
    if reason := missing():
        pytest.skip(reason)
    programs, absent = {}, []
    for build in (go, java):
        if build is java and not is_available():
            absent.append("Java needs TLS, which the native door has")
            continue
        try:
            programs[build.__name__] = build()
        except MissingTool as tool:
            absent.append(str(tool))
    module = "cometmq.tests.drills.hosts.guide"
    command = [sys.executable, "-P", "-m", module, str(tmp_path), json.dumps(programs)]
    assert enter(command) == 0
    if absent:
        pytest.skip(f"passed, but not with all official clients: {'; '.join(absent)}")
