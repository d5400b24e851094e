"""Nodes of the previous release and of the present tree in one cluster, under load.

`tests/proto/released/VERSION-nodes.tar.xz` (written by `scripts/record_protocol`) has the modules
of a release. The cluster starts with them, is upgraded node by node to the present tree, and
returned to the release, in the order of `cometmq ha rolling-restart`: followers, then the leader
after a switchover, then the nameservers. So a leader of each version has a follower of the other
one, brokers of each version have nameservers of the other one, the deciding nameserver has peers of
the other version, and commands of both versions act on nodes of both. All protocols between nodes
are in use: replication, registration and election, control, and the metadata records of the log.

Nodes of the release run without the native crate: the one that is installed belongs to the present
tree, and the archive has no sources of the release's own crate. Its build would add about a minute,
where Rust is installed, to the two minutes of this test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cometmq.drills.run import perform
from cometmq.drills.settings import Setup
from cometmq.drills.stage import TOPIC, Stage, Workload
from cometmq.drills.verdict import Verdict
from cometmq.tests.drills.judging import settle

RELEASED = sorted((Path(__file__).parents[1] / "proto" / "released").glob("*-nodes.tar.xz"))
COMMAND_S = 60.0
#: A starved process must not lose its lease: an unplanned change of the leader is no upgrade.
PATIENT = {"controllerLeaseMs": "6000", "haInSyncLagMs": "12000"}
ACKS = 30


#: Runs commands in one process, which would be busy with imports otherwise; prints a document.
SEVERAL = """
import json, sys
from click.testing import CliRunner
from cometmq.cli.root import cli
def run(words):
    done = CliRunner().invoke(cli, [*words, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, (words, done.output)
    return json.loads(done.stdout) if done.stdout.strip() else {}
print(json.dumps([run(words) for words in json.loads(sys.argv[1])]))
"""


class Versions:
    """The environments of the two versions."""

    def __init__(self, folder: Path) -> None:
        with tarfile.open(RELEASED[-1]) as archive:
            archive.extractall(folder, filter="data")
        self.env: dict[str, dict[str, str]] = {
            "old": {"PYTHONPATH": str(folder), "COMETMQ_NATIVE": "off"},
            "new": {},
        }

    def run(self, version: str, *words: str) -> str:
        """Run Python with the modules of a version; return its output."""
        done = subprocess.run(
            [sys.executable, "-P", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            stdin=subprocess.DEVNULL,
            check=False,
            env={**os.environ, **self.env[version]},
        )
        assert done.returncode == 0, (version, words[-1], done.stdout, done.stderr)
        return done.stdout

    def cli(self, version: str, *commands: tuple[str, ...]) -> list[Any]:
        """Run commands of a version; return their documents."""
        found: list[Any] = json.loads(self.run(version, "-c", SEVERAL, json.dumps(commands)))
        return found


class Upgrade:
    """The steps of one drill."""

    def __init__(self, stage: Stage, versions: Versions) -> None:
        self.stage, self.plant, self.versions = stage, stage.plant, versions
        self.topics: list[str] = []
        self.groups: list[str] = []

    def all_to(self, version: str) -> None:
        """Replace the brokers, then the nameservers; work and compare in between."""
        plant = self.plant
        leader = plant.wait_leader()
        (follower,) = plant.followers()
        self._replace(follower, version)
        plant.wait_in_sync(2)
        self.change(f"{version}-follower", version)
        self._switch(follower, version)
        self.change(f"{version}-leader", version)
        self._replace(leader, version)
        plant.wait_in_sync(2)
        self.compare(f"{version} brokers", version)
        for at, name in enumerate(plant.nameservers):
            self._replace(name, version)
            plant.wait("a nameserver decides", lambda: plant.report() is not None)
            if not at:
                self._switch(leader, version)
        self.change(f"{version}-nameservers", version)
        self.compare(f"{version} nameservers", "old" if version == "new" else "new")

    def _replace(self, name: str, version: str) -> None:
        self.plant.note("version", f"{name} {version}")
        self.plant.nodes[name].env = self.versions.env[version]
        self.plant.restart(name)

    def _switch(self, to: str, version: str) -> None:
        """Change the leader with the command of a version."""
        plant = self.plant
        number = str(plant.nodes[to].number)
        namesrv = ";".join(plant.namesrv_address(name) for name in plant.nameservers)
        plant.note("switchover", to)
        words = ("ha", "switchover", "--to", number, "--namesrv", namesrv)
        self.versions.cli(version, words)
        plant.wait("the new leader leads", lambda: plant.leader() == to)

    def change(self, name: str, version: str) -> None:
        """Write metadata records of every kind, with a command of a version, and go on sending."""
        self.stage.more_acks(ACKS)
        leader = self.plant.client_address(self.plant.wait_leader(), direct=True)
        commands = (
            ("topic", "create", f"t-{name}", "--type", "fifo", "--queues", "2"),
            ("topic", "create", f"gone-{name}"),
            ("topic", "delete", f"gone-{name}", "--yes"),
            ("group", "create", f"g-{name}", "--max-attempts", "7"),
        )
        self.versions.cli(version, *((*words, "--endpoint", leader) for words in commands))
        self.topics.append(f"t-{name}")
        self.groups.append(f"g-{name}")

    def compare(self, when: str, version: str) -> None:
        """Every broker, asked by commands of a version, has the same metadata."""
        commands = [
            (noun, "list", "--endpoint", self.plant.client_address(node, direct=True))
            for node in self.plant.brokers
            for noun in ("topic", "group")
        ]
        found = self.versions.cli(version, *commands)
        for node, topics, groups in zip(self.plant.brokers, found[::2], found[1::2], strict=True):
            differ = {row["topic"] for row in topics} ^ {TOPIC, *self.topics}
            differ |= set(self.groups) - {row["group"] for row in groups}
            what = f"{when}: {version} commands see all metadata on {node}"
            self.stage.check(what, not differ, differ)


def roll_both_ways(stage: Stage, versions: Versions) -> None:
    """From the release to the present tree and back, under load."""
    stage.load(Workload(senders=5, official=1, pause_s=0.05, official_pause_s=0.05))
    upgrade = Upgrade(stage, versions)
    upgrade.change("start", "old")
    upgrade.all_to("new")
    upgrade.all_to("old")
    stage.finish()
    result = stage.verdict
    stage.check("the official client saw no error", result.official_errors == 0, result.reasons)
    stage.check("no replica truncated its log", not result.archived, result.archived)


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "release")


def test_the_two_versions_run_different_modules(versions: Versions) -> None:
    places = {
        version: versions.run(version, "-c", "import cometmq; print(cometmq.__file__)")
        for version in versions.env
    }
    assert "release" in places["old"] and "release" not in places["new"]


@pytest.mark.slow  # about two minutes; `tests/proto/test_released.py` runs always
@pytest.mark.timeout(900)
def test_a_cluster_is_upgraded_and_returned_node_by_node_under_load(
    versions: Versions, tmp_path: Path
) -> None:
    result = Verdict("mixed versions", (roll_both_ways.__doc__ or "").strip(), "sync")
    timers = {"controllerLeaseMs": PATIENT["controllerLeaseMs"]}
    env = versions.env["old"]
    setup = Setup(nameservers=3, conf=PATIENT, namesrv_conf=timers, shadows=False, env=env)

    def body(stage: Stage) -> None:
        roll_both_ways(stage, versions)

    settle(perform(tmp_path / "drill", result, setup, body), tmp_path / "drill")
