"""Versions, completion of shells, suggestions for mistyped commands; help without heavy imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

import cometmq
from cometmq.tests.harness.cluster import cometmq_command

pytestmark = pytest.mark.real_start


def run(*words: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(
        [*cometmq_command(), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_version_prints_what_is_installed() -> None:
    found = json.loads(run("version", "-o", "json"))
    assert found["cometmq"] == cometmq.__version__
    assert {"python", "grpcio", "protobuf"} <= set(found)
    assert cometmq.__version__ in run("version")


def test_help_shows_what_the_option_shows() -> None:
    assert run("help", "topic", "create") == run("topic", "create", "--help")
    assert run("help") == run("--help")
    assert "Did you mean 'create'?" in run("help", "topic", "creat", code=2)
    assert "cometmq version has no commands." in run("help", "version", "x", code=2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    assert "_COMETMQ_COMPLETE" in run("completion", shell)
    # What the script of bash asks: the words of the line, and the number of the incomplete one.
    ask = {"_COMETMQ_COMPLETE": f"{shell}_complete"}
    if shell == "fish":
        nouns = {"COMP_WORDS": "cometmq ", "COMP_CWORD": "to"}
        options = {"COMP_WORDS": "cometmq topic create ", "COMP_CWORD": "--qu"}
    else:
        nouns = {"COMP_WORDS": "cometmq to", "COMP_CWORD": "1"}
        options = {"COMP_WORDS": "cometmq topic create --qu", "COMP_CWORD": "3"}
    told = run(env={**ask, **nouns})
    assert "topic" in told
    assert "group" not in told
    assert "--queues" in run(env={**ask, **options})


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("topci", "list"), "'topic'"),
        (("topic", "creat", "x"), "'create'"),
        (("stor", "ls"), "'store'"),
        (("updateTopc",), "'updateTopic'"),
        (("topic", "create", "x", "--queus", "3"), "'--queues'"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(words: tuple[str, ...], wanted: str) -> None:
    told = run(*words, code=2)
    assert "Did you mean" in told
    assert wanted in told


@pytest.mark.parametrize("words", [[], ["consume"], ["top"], ["config", "list"]])
def test_help_without_requests_imports_no_protobuf(words: list[str]) -> None:
    code = (
        "import sys; from cometmq.cli.root import cli\n"
        f"cli.main({[*words, '--help']}, standalone_mode=False)\n"
        "print('google' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage:" in done.stdout
    assert done.stderr == "False\n"
