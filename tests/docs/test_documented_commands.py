"""The command line accepts every `cometmq` line of the guides."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from cometmq.cli.main import cli

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = re.compile(r"^(?:\.venv/bin/)?cometmq (.+)$", re.MULTILINE)


def _documented() -> list[str]:
    pages = [_ROOT / "README.md", *(_ROOT / "docs").glob("*.md")]
    return sorted({line for page in pages for line in _COMMAND.findall(page.read_text())})


@pytest.mark.parametrize("line", _documented())
def test_the_command_line_accepts_documented_commands(line: str) -> None:
    words = [word.partition("|")[0] for word in shlex.split(line, comments=True)]
    command: click.Command | None = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, parent=context)
        command = command.get_command(context, words[0])
        assert command is not None, line
        words = words[1:]
    assert command is not None
    # Parses and checks the arguments without running the command.
    command.make_context(command.name, words, parent=context)
