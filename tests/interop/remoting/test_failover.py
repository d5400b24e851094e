"""Unmodified Java and Go clients while their leader is killed: nothing acknowledged is lost, and
queues stay in order."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from cometmq.tests.harness.cluster import Cluster
from cometmq.tests.interop.remoting.test_go_client import program
from cometmq.tests.interop.remoting.test_java_clients import java
from cometmq.tests.remoting.client import wait_for_routes

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
        self.killed = asyncio.Event()

    async def run(self, nameserver: str, home: Path) -> None:
        arguments = [each.format(nameserver) for each in self._command]
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env={**os.environ, "HOME": str(home), "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        telling = asyncio.create_task(self._tell(process))
        assert process.stdout is not None
        async for line in process.stdout:
            self.lines.append(line.decode().rstrip())
            if self.lines[-1] == "SENDING":
                self.sending.set()
        self.sending.set()
        telling.cancel()
        await process.wait()

    async def _tell(self, process: asyncio.subprocess.Process) -> None:
        """Tell the program of the kill by a line."""
        await self.killed.wait()
        assert process.stdin is not None
        process.stdin.write(b"\n")


def java_runs(name: str) -> list[Run]:
    """Return a run of a program with the Java client of each generation."""
    runs = []
    for version in VERSIONS:
        mark = f"java-{version.partition('.')[0]}"
        runs.append(Run(f"rocketmq-client {version}", mark, [*java(version), name, "{}", mark]))
    return runs


def client_runs() -> list[Run]:
    """Return a run of each client: Java of both generations, and Go."""
    go = Run("rocketmq-client-go", "go", [*program(), "{}", "go", "failover"])
    return [*java_runs("Failover"), go]


async def killing(cluster: Cluster, runs: list[Run], home: Path, nameserver: str = "") -> None:
    """Run the clients; kill the leader when all of them send. `nameserver`: not the cluster's."""
    nameserver = nameserver or f"127.0.0.1:{cluster.node('namesrv').ports['namesrv_remoting']}"
    async with asyncio.timeout(RUN_S), asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(run.run(nameserver, home / run.mark))
        for run in runs:
            await run.sending.wait()
        await asyncio.to_thread(cluster.kill9, "master")
        for run in runs:
            run.killed.set()


def run_on_cluster(runs: list[Run], kind: str, folder: Path) -> None:
    """Run the clients on a cluster of two replicas and kill its leader; topics end with `kind`."""
    cluster = Cluster(folder / "d", "--remoting", restart=True, controller=True).start()
    try:
        for run in runs:
            (folder / run.mark).mkdir()
            cluster.create_topic(f"{run.mark}-{kind}", queues=4)
        cluster.wait_in_sync()
        nameserver = cluster.node("namesrv").ports["namesrv_remoting"]
        # The clients do not ask twice at their start.
        asyncio.run(wait_for_routes(nameserver, [f"{run.mark}-{kind}" for run in runs]))
        asyncio.run(killing(cluster, runs, folder))
    finally:
        cluster.stop()


def said(run: Run, word: str) -> str:
    """Return the line of a successful run that begins with a word."""
    assert run.lines[-1] == "OK", run.lines[-40:]
    (line,) = (line for line in run.lines if line.startswith(word))
    return line


@pytest.mark.timeout(700)  # the first run fetches the clients
def test_nothing_acknowledged_is_lost_when_the_leader_is_killed(tmp_path: Path) -> None:
    runs = client_runs()
    run_on_cluster(runs, "failover", tmp_path)
    for run in runs:
        print(f"{run.name}: {said(run, 'GAP')}", file=sys.stderr)


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_queues_are_consumed_in_order_when_the_leader_is_killed(tmp_path: Path) -> None:
    runs = java_runs("Ordered")
    run_on_cluster(runs, "ordered", tmp_path)
    for run in runs:
        print(f"{run.name}: {said(run, 'REPEATED')}", file=sys.stderr)
