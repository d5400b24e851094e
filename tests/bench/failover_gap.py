"""Failover as seen by an unmodified client: longest time without an OK, and number of errors.

    python -m cometmq.tests.bench.failover_gap [--rounds N] [--client NAME]...
        [--seconds S] [--dial NODE]

For each client and round this starts `cometmq up`, lets the client send one message after another,
kills the leader with SIGKILL in the middle (the supervisor reports its exit), and reads everything
back: a message that was acknowledged and is missing is lost. Clients dial both brokers; the
reference's gap is 8.5 s (docs/formats/front-door.md). Go's client uses TLS unless disabled
(`go-plain`), and over TLS only one address; `--dial slave` gives it the surviving one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cometmq
from cometmq.client.pull_consumer import Position

from ..harness.cluster import Cluster, temporary
from ..interop.programs import CACHE, go, java, node

SECONDS = 12
KILL_AFTER_S = 4.0
WORKER = Path(__file__).parent / "workers" / "failover_gap_worker.py"
MARK = "gap"
TOPIC = f"{MARK}-normal"


def _python(which: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(WORKER)]


def run(name: str, command: list[str], dial: str, seconds: int) -> dict[str, Any]:
    """Run one client through one failover."""
    with temporary("--replication", "sync", "--controller") as cluster:
        cluster.create_topic(TOPIC, queues=4)
        cluster.wait_in_sync()
        client = start(name, command, cluster.address(dial), seconds)
        time.sleep(KILL_AFTER_S)
        cluster.kill9(leader(cluster))
        output, errors = client.communicate(timeout=seconds + 60)
        if client.returncode != 0:
            raise RuntimeError(f"{name}: {errors[-2000:]}")
        seen: dict[str, Any] = json.loads(output.splitlines()[-1])
        seen["lost"] = len(set(seen["sent"]) - stored(cluster))
        return seen


def start(name: str, command: list[str], endpoint: str, seconds: int) -> subprocess.Popen[str]:
    home = tempfile.mkdtemp()
    mine = {"HOME": home, "JAVA_TOOL_OPTIONS": f"-Duser.home={home}", "GRPC_VERBOSITY": "NONE"}
    if name == "go-plain":
        mine["rocketmq.client.enableSsl"] = "false"
    if name in ("python", "sdk"):
        which = "official" if name == "python" else "sdk"
        arguments = [endpoint, TOPIC, str(seconds), which]
    else:
        arguments = [endpoint, MARK, f"load:{seconds}"]
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **mine},
    )


def leader(cluster: Cluster) -> str:
    """Return the name of the leading process."""
    described = json.loads(
        cluster.run(
            "cluster", "describe", "-o", "json", "--endpoint", cluster.address("slave")
        ).stdout
    )
    for member in described["members"]:
        if member["role"] == "leader":
            return "master" if int(member["broker_id"]) == 0 else "slave"
    raise RuntimeError(f"no leader: {described}")


def stored(cluster: Cluster) -> set[str]:
    """Return the ids of all messages of the surviving leader."""
    found: set[str] = set()
    with cometmq.sync.PullConsumer(
        cluster.address("slave"), group=f"{MARK}-reader", topics=TOPIC
    ) as consumer:
        consumer.seek(TOPIC, Position.BEGINNING)
        while (message := consumer.poll(wait=2.0)) is not None:
            found.add(message.message_id)
    return found


CLIENTS: dict[str, Callable[[], list[str]]] = {
    "python": _python("official"),
    "go": go,
    "go-plain": go,
    "java": java,
    "node": node,
    "sdk": _python("sdk"),
}


def main() -> None:
    """Print one line per client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", action="append", choices=tuple(CLIENTS))
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, help="of load; the kill comes after 4"
    )
    parser.add_argument("--dial", choices=("master", "slave"), default="master")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in arguments.client or CLIENTS:
        command = CLIENTS[name]()
        seen = [
            run(name, command, arguments.dial, arguments.seconds) for _ in range(arguments.rounds)
        ]
        gaps = sorted(one["gap_ms"] for one in seen)
        errors = [len(one["errors"]) for one in seen]
        print(
            f"{name}: gap median {statistics.median(gaps):.0f} ms, max {gaps[-1]} ms; "
            f"errors {errors}; "
            f"lost {sum(one['lost'] for one in seen)} of "
            f"{sum(len(one['sent']) for one in seen)} acknowledged"
        )
        for one in seen:
            for error in dict.fromkeys(one["errors"]):
                print(f"    {error}")


if __name__ == "__main__":
    main()
