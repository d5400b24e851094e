"""The lines of docs/install.md, run as they are printed in a clone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path

import pyspark
import pytest

from cometmq import __version__
from cometmq.tests.harness.cluster import Cluster

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = (_ROOT / "docs" / "install.md").read_text()


#: Imports every command of the package, and what the console serves; runs the given commands.
_WALK = """
import click, shlex, sys
from cometmq.cli.root import cli
import cometmq.console.server, cometmq.console.views

def walk(command):
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            walk(command.get_command(ctx, name))

walk(cli)
templates = cometmq.console.views.templates("", allow_changes=True)
for language in cometmq.console.language.LANGUAGES:
    templates.environment(language).get_template("overview.html")
for line in sys.argv[1:]:
    print("==", line)
    cli.main(shlex.split(line), standalone_mode=False)
print("done")
"""
#: One command of each noun that can be called beside a cluster of `up`.
_NOUNS = (
    *("topic create t --queues 1", "group create g", "client list", "offset reset g t earliest"),
    *("message send t x", "top --once", "dlq ls", "timer ls", "consume g t --count 1"),
    *("cluster describe", "backup create saved", "context list"),
    *("user create u", "acl create --user u --resource Topic:t --actions Pub", "auth dev-ca n=::1"),
    *("quota set User:u --messages 5", "cheat", "healthcheck", "doctor", "config show --changed"),
    *("store ls data/single/store", "help topic", "version", "completion bash", "up status"),
)
_SPARK = ("--master", "local[1]", "--driver-memory", "512m", "-o", "json")


def block(section: str) -> str:
    """Return the commands of a section."""
    return _PAGE.split(f"\n## {section}\n", 1)[1].split("```\n", 2)[1]


def test_the_extras_of_the_page_exist_and_are_complete() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(r"^\| (`.+?`) \|", _PAGE.split("\n## Extras\n")[1], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(project["optional-dependencies"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "section", ["From the wheel", pytest.param("From a clone", marks=pytest.mark.slow)]
)
def test_the_lines_of_an_install_work_in_a_clone(section: str, tmp_path: Path) -> None:
    clone, target = tmp_path / "clone", tmp_path / "opt"
    subprocess.run(["git", "clone", "-q", str(_ROOT), str(clone)], check=True)
    lines = block(section).replace("/opt/cometmq", str(target))
    # A Python without pip, as Debian's, and no Rust: another test builds the native crate.
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    path = os.pathsep.join((str(tmp_path / "bare" / "bin"), "/usr/local/bin", "/usr/bin", "/bin"))
    kept = {name: text for name, text in os.environ.items() if "COMETMQ" not in name}
    done = subprocess.run(
        ["sh", "-ec", lines],
        cwd=clone,
        # Half of the time would go to compiling modules that the two commands do not import.
        env={**kept, "PATH": path, "PIP_NO_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if re.search(r"NewConnectionError|Temporary failure in name resolution", done.stderr):
        pytest.skip("no package index is reachable: the lines install from one")
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert f"cometmq   {__version__}" in done.stdout
    home = target if section == "From the wheel" else clone / ".venv"
    printed = subprocess.run(
        [home / "bin" / "cometmq", "config", "list", "--search", "flush disk"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "flushDiskType" in printed.stdout, printed.stderr
    # Outside of the repository: the package has the module of every command, and the console.
    cluster = Cluster(tmp_path / "data", "--single").start()
    walked = subprocess.run(
        [home / "bin" / "python", "-P", "-c", _WALK, *_NOUNS],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    cluster.stop()
    assert walked.stdout.endswith("done\n"), walked.stdout + walked.stderr
    # Spark is that of the tests: its installation takes minutes.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "spark.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n")
    verified = subprocess.run(
        [home / "bin" / "cometmq", "pipeline", "verify", "data/single/store", *_SPARK],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["records"] > 0
