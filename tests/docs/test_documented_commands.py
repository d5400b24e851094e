"""The command line accepts every `cometmq` line of the guides and of its own help."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cometmq.cli.root import cli

_ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```.*\n(?s:(.*?))^```$", re.MULTILINE)
_COMMAND = re.compile(r"^(?:\.venv/bin/)?cometmq (.+)$", re.MULTILINE)


def _commands(
    group: click.Group, context: click.Context, *path: str
) -> Iterator[tuple[str, click.Command]]:
    """Yield the path and the command of each listed command that is not a group."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command, parent=context), *path, name)
        else:
            yield " ".join((*path, name)), command


def _examples(command: click.Command) -> list[str]:
    return _COMMAND.findall(inspect.cleandoc(command.help or "").replace("\b", ""))


_INLINE = re.compile(r"`cometmq\s+([^`]+)`")


_ALL = dict(_commands(cli, click.Context(cli)))


def _pages() -> list[str]:
    pages = [_ROOT / "README.md", _ROOT / "examples" / "README.md", *(_ROOT / "docs").glob("*.md")]
    # A command may go on in the next line.
    return [page.read_text().replace("\\\n", "") for page in pages]


def _documented() -> list[str]:
    blocks = (block for text in _pages() for block in _BLOCK.findall(text))
    lines = {line for block in blocks for line in _COMMAND.findall(block)}
    return sorted(lines.union(*map(_examples, _ALL.values())))


def _named() -> list[str]:
    return sorted({" ".join(line.split()) for text in _pages() for line in _INLINE.findall(text)})


@pytest.mark.parametrize("name", sorted(_ALL))
def test_the_help_of_a_command_has_an_example_of_it(name: str) -> None:
    assert any(line.split()[: len(name.split())] == name.split() for line in _examples(_ALL[name]))


@pytest.mark.parametrize("line", _documented())
def test_the_command_line_accepts_documented_commands(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("prod", "staging"):  # the contexts of the examples
        words = ["context", "add", name, "--endpoint", "127.0.0.1:8081"]
        cli.main(words, standalone_mode=False)
    words = [
        word.partition("|")[0] for word in shlex.split(line.partition(" > ")[0], comments=True)
    ]
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


@pytest.mark.parametrize("line", _named())
def test_a_command_named_in_a_sentence_exists_with_its_options(line: str) -> None:
    """Such a command may lack its arguments, and have a placeholder for the next word."""
    words = shlex.split(line)
    command: click.Command | None = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and words[0][0].islower():
        context = click.Context(command, parent=context)
        command = command.get_command(context, words.pop(0))
        assert command is not None, line
    assert command is not None
    known = {
        name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)
    }
    named = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert named <= known
