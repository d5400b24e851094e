"""Unmodified Java and Go clients while their leader is killed: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from cometmq.tests.harness.cluster import Cluster
from cometmq.tests.interop.remoting.test_go_client import program
from cometmq.tests.interop.remoting.test_java_clients import java

VERSIONS = ("5.5.0", "4.9.8")
RUN_S = 300


class Run:
    """One client with default settings, and the lines that it prints."""

    def __init__(self, name: str, mark: str, command: list[str]) -> None:
        """`mark`: of topics and groups; `command` gets the nameserver in place of `{}`."""
        self.name = name
        self.mark = mark
        self._command = command
        self.lines: list[str] = []
        self.sending = asyncio.Event()

    async def run(self, nameserver: str, home: Path) -> None:
        arguments = [each.format(nameserver) for each in self._command]
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env={**os.environ, "HOME": str(home), "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        async for line in process.stdout:
            self.lines.append(line.decode().rstrip())
            if self.lines[-1] == "SENDING":
                self.sending.set()
        self.sending.set()
        await process.wait()


def client_runs() -> list[Run]:
    """Return a run of each client: Java of both generations, and Go."""
    runs = []
    for version in VERSIONS:
        mark = f"java-{version.partition('.')[0]}"
        runs.append(
            Run(f"rocketmq-client {version}", mark, [*java(version), "Failover", "{}", mark])
        )
    runs.append(Run("rocketmq-client-go", "go", [*program(), "{}", "go", "failover"]))
    return runs


async def killing(cluster: Cluster, runs: list[Run], home: Path) -> None:
    """Run the clients; kill the leader when all of them send."""
    nameserver = f"127.0.0.1:{cluster.node('namesrv').ports['namesrv_remoting']}"
    async with asyncio.timeout(RUN_S), asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(run.run(nameserver, home / run.mark))
        for run in runs:
            await run.sending.wait()
        await asyncio.to_thread(cluster.kill9, "master")


@pytest.mark.timeout(700)  # the first run fetches the clients
def test_nothing_acknowledged_is_lost_when_the_leader_is_killed(tmp_path: Path) -> None:
    runs = client_runs()
    cluster = Cluster(tmp_path / "d", "--remoting", restart=True, controller=True).start()
    try:
        for run in runs:
            (tmp_path / run.mark).mkdir()
            cluster.create_topic(f"{run.mark}-failover", queues=4)
        cluster.wait_in_sync()
        asyncio.run(killing(cluster, runs, tmp_path))
        for run in runs:
            assert run.lines[-1] == "OK", run.lines[-40:]
            (gap,) = (line for line in run.lines if line.startswith("GAP"))
            print(f"{run.name}: {gap}", file=sys.stderr)
    finally:
        cluster.stop()
