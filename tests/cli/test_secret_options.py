"""`--secret-file` keeps secret keys out of command lines: from a private file, the input, a prompt."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cometmq.cli.access.secret_options import secret_options
from cometmq.cli.errors import CliError


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


def test_a_terminal_is_asked_twice_without_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Terminal:
        def isatty(self) -> bool:
            return True

    def prompt(text: str, **options: bool) -> str:
        asked.append((text, options))
        return "key-of-prompt"

    monkeypatch.setattr(click, "get_text_stream", lambda _name: Terminal())
    monkeypatch.setattr(click, "prompt", prompt)
    assert output("--secret-file", "-") == "got 'key-of-prompt'"
    assert asked == [("Secret key", {"hide_input": True, "confirmation_prompt": True})]
