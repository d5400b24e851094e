"""Unmodified Java clients while their leader is killed: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from cometmq.tests.harness.cluster import Cluster
from cometmq.tests.interop.remoting.test_java_clients import java

VERSIONS = ("5.5.0", "4.9.8")
RUN_S = 300


class Run:
    """One client with default settings, and the lines that it prints."""

    def __init__(self, version: str) -> None:
        self.mark = f"java-{version.partition('.')[0]}"
        self.version = version
        self.lines: list[str] = []
        self.sending = asyncio.Event()

    async def run(self, command: list[str], nameserver: str, home: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *(*command, "Failover", nameserver, self.mark),
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


async def killing(cluster: Cluster, runs: list[Run], commands: list[list[str]], home: Path) -> None:
    """Run the clients; kill the leader when all of them send."""
    nameserver = f"127.0.0.1:{cluster.node('namesrv').ports['namesrv_remoting']}"
    async with asyncio.timeout(RUN_S), asyncio.TaskGroup() as group:
        for run, command in zip(runs, commands, strict=True):
            group.create_task(run.run(command, nameserver, home / run.mark))
        for run in runs:
            await run.sending.wait()
        await asyncio.to_thread(cluster.kill9, "master")


@pytest.mark.timeout(700)  # the first run fetches the clients
def test_nothing_acknowledged_is_lost_when_the_leader_is_killed(tmp_path: Path) -> None:
    commands = [java(version) for version in VERSIONS]
    cluster = Cluster(tmp_path / "d", "--remoting", restart=True, controller=True).start()
    runs = [Run(version) for version in VERSIONS]
    try:
        for run in runs:
            (tmp_path / run.mark).mkdir()
            cluster.create_topic(f"{run.mark}-failover", queues=4)
        cluster.wait_in_sync()
        asyncio.run(killing(cluster, runs, commands, tmp_path))
        for run in runs:
            assert run.lines[-1] == "OK", run.lines[-40:]
            (gap,) = (line for line in run.lines if line.startswith("GAP"))
            print(f"rocketmq-client {run.version}: {gap}", file=sys.stderr)
    finally:
        cluster.stop()
