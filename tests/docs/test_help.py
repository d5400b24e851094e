"""`--help` of every command: what it imports, that it works, and that a test runs the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cometmq.cli import help_texts
from cometmq.cli.root import cli

_TESTS = Path(__file__).resolve().parents[1]
#: Modules that only running commands need; each costs the start of a command 10 to 200 ms.
_HEAVY = {
    *("asyncio", "cryptography", "docker", "grpc", "http", "jinja2", "lark", "multiprocessing"),
    *("numpy", "prometheus_client", "psutil", "pyarrow", "pyspark", "rich", "ssl", "starlette"),
    *("tenacity", "uvicorn", "uvloop"),
}
#: Of the interpreter and the help of all commands; `tests/bench/help.py` measures the time.
_MOST_MODULES = 450
#: Prints the help of every command in one process, then what it imported on the way.
_PROGRAM = """
import json, sys, click
from cometmq.cli.root import cli

helped, first = [], {}

class Finder:
    def find_spec(self, name, path=None, target=None):
        first.setdefault(name, " ".join(helped[-1]) if helped else "")

sys.meta_path.insert(0, Finder())

def walk(command, context, path):
    helped.append(path)
    assert command.get_help(context).startswith("Usage: "), path
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            helped.append([*path, name])
            found = command.get_command(context, name)
            walk(found, click.Context(found, parent=context, info_name=name), [*path, name])

walk(cli, click.Context(cli, info_name="cometmq"), [])
print(json.dumps({"helped": helped, "imported": first, "modules": len(sys.modules)}))
"""
#: Commands that a test runs by way of a function that adds the words before: the file, and a call.
_THROUGH_A_FUNCTION = {
    "store diff": ("cli/store/test_store_commands.py", 'store("diff"'),
    "store dump": ("cli/store/test_store_commands.py", '"dump", root'),
    "store export": ("cli/store/test_store_commands.py", '"export"'),
    "store ls": ("cli/store/test_store_commands.py", '"ls", root'),
    "store query": ("cli/store/test_store_commands.py", '"query", root'),
    "store repair": ("cli/store/test_store_commands.py", '"repair", root'),
    "timer recall": ("broker/delay/test_timer_list.py", 'command(live, "recall"'),
}


def _leaves(group: click.Group, context: click.Context, *path: str) -> list[tuple[str, ...]]:
    """Return the words of each listed command that is not a group."""
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += _leaves(command, click.Context(command, parent=context), *path, name)
        else:
            found.append((*path, name))
    return found


def test_help_works_and_imports_no_heavy_module() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {tuple(words) for words in answer["helped"]} >= set(_leaves(cli, click.Context(cli)))
    imported = {name: words for name, words in answer["imported"].items() if name in _HEAVY}
    assert imported == {}, "module: the command whose help imports it first"
    assert answer["modules"] <= _MOST_MODULES


def test_help_from_the_file_is_that_of_click() -> None:
    program = (
        "import sys\n"
        "from cometmq.cli import help_texts\n"
        "from cometmq.cli.root import cli\n"
        "for words in ((), ('store',), ('ha', 'switchover'), ('broker',)):\n"
        "    text = help_texts.help_of([*words, '--help'])\n"
        "    assert text == help_texts.help_of(['help', *words])\n"
        "    {}\n"
    )
    environment = {**os.environ, "COLUMNS": str(help_texts.COLUMNS_MIN)}
    # A process each: click keeps the help option that a command got first, with its names.
    by_click, from_file = (
        subprocess.check_output(
            [sys.executable, "-P", "-c", program.format(line)], env=environment, text=True
        )
        for line in (
            "cli.main([*words, '--help'], 'cometmq', standalone_mode=False)",
            "print(text, end='')",
        )
    )
    assert "\nUsage: cometmq ha switchover" in by_click
    assert from_file == by_click


def test_help_imports_no_click() -> None:
    program = (
        "import sys\n"
        "from cometmq.cli.main import main\n"
        "sys.argv = ['cometmq', 'broker', '--help']\n"
        "try: main()\n"
        "finally: print([name for name in sys.modules if name == 'click'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("columns", ["79", "40"])
def test_a_narrower_terminal_gets_the_help_of_click(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert help_texts.help_of(["store", "--help"]) is None


@pytest.mark.real_start
def test_a_process_prints_its_help_and_ends_with_0() -> None:
    for words in (("--help",), ("cluster", "apply", "-h"), ("help", "ha", "switchover")):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cometmq.cli.main", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: cometmq")


def test_a_test_runs_every_command_as_a_process() -> None:
    texts = {str(file.relative_to(_TESTS)): file.read_text() for file in _TESTS.rglob("*.py")}
    together = "\n".join(
        text
        for text in texts.values()
        if any(word in text for word in ("subprocess", ".run(", " run(", "cometmq_command"))
        and ("subprocess" in text or "CliRunner" not in text)
    )
    together = re.sub(r'",\s+"', '", "', together)
    missing = []
    for words in _leaves(cli, click.Context(cli)):
        name, quoted = " ".join(words), ", ".join(f'"{word}"' for word in words)
        if name in _THROUGH_A_FUNCTION:
            file, call = _THROUGH_A_FUNCTION[name]
            assert call in texts[file], (name, file)
            continue
        forms = [f"{quoted}{end}" for end in (",", ")", "]")]
        forms += [f'"{start}{name}{end}' for start in ("", "cometmq ") for end in (" ", '"')]
        if not any(form in together for form in forms):
            missing.append(name)
    assert not missing, ", ".join(missing)
