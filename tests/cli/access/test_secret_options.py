"""`--secret-file` keeps secret keys out of command lines: a private file, the input, a prompt."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cometmq.cli.access.secret_options import secret_options
from cometmq.operations.errors import CliError


@click.command()
@secret_options
def shown(*, secret: str) -> None:
    click.echo(f"got {secret!r}")


def output(*words: str, text: str = "") -> str:
    found = CliRunner().invoke(shown, words, input=text, catch_exceptions=True)
    if isinstance(found.exception, CliError):
        return str(found.exception)
    return found.output.strip()


def test_a_secret_comes_from_the_option_a_private_file_or_the_input(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("key-of-file\n")
    file.chmod(0o600)
    assert output("--secret", "key") == "got 'key'"
    assert output("--secret-file", str(file)) == "got 'key-of-file'"
    assert output("--secret-file", "-", text="key-of-input\nmore\n") == "got 'key-of-input'"
    assert output() == "got ''"


def test_a_file_that_others_read_and_an_empty_input_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("key-of-file\n")
    file.chmod(0o644)
    assert "chmod 600" in output("--secret-file", str(file))
    assert "Cannot read" in output("--secret-file", str(tmp_path / "absent"))
    assert "no secret key" in output("--secret-file", "-", text="\n")
    assert "not both" in output("--secret-file", "-", "--secret", "key")


def test_a_terminal_is_asked_twice_without_an_echo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def prompt(text: str, **options: bool) -> str:
        asked.append((text, options))
        return "key-of-prompt"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "prompt", prompt)
    shown.main(["--secret-file", "-"], standalone_mode=False)
    assert "got 'key-of-prompt'" in capsys.readouterr().out
    assert asked == [("Secret key", {"hide_input": True, "confirmation_prompt": True})]
