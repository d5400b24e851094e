"""The second part of `scripts/quickstart`: runs in .venv, controls the cluster and the two clients.

Counting: an identity is *acknowledged* if the client returned a receipt, *unknown* if it raised
(the identity is then sent again), and *lost* if it was acknowledged and not received; *duplicated*
is every delivery of an identity after its first, either *sent twice* (another message id) or
*redelivered after failover* (the same id).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cometmq.tests.harness.cluster import Cluster, wait_until

ROOT = Path(__file__).resolve().parent.parent
CLIENT = Path(__file__).with_name("quickstart_client.py")
TOPIC, GROUP = "quickstart", "quickstart-readers"
PHASE_S = 300.0  # time limit of a phase
QUIET_S = 3.0  # without a message for this long the slave is drained
LATE_S = 90.0  # after the last send: invisible messages are redelivered within this time

NEXT = """
Next, a cluster of your own:
    . .venv/bin/activate
    cometmq up                                # in a terminal of its own; Ctrl-C stops it
    cometmq topic create orders --queues 8
    cometmq message send orders "hello"
    cometmq message tail orders --from beginning
docs/getting-started.md continues from there."""


class Program:
    """One process of the official client; its lines go to `take` in a thread."""

    def __init__(self, home: Path, take: Any, *arguments: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._errors = (home / "stderr.txt").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(CLIENT), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "HOME": str(home), "GRPC_VERBOSITY": "NONE"},
            cwd=home,
        )
        self._take = take
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._take(json.loads(line))

    def close(self) -> None:
        """Close its input and wait; kill it after a timeout."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()


class Tally:
    """The events of both programs, and two progress bars."""

    def __init__(self, messages: int, progress: Progress) -> None:
        self.lock = threading.Lock()
        self.acknowledged: set[int] = set()
        self.unknown: Counter[int] = Counter()
        self.ids: dict[int, set[str]] = {}
        self.deliveries: Counter[int] = Counter()
        self.failed: Counter[str] = Counter()
        self.killed = False
        self.redelivered = self.sent_twice = self.from_slave = 0
        self.master_down = False
        self.last_delivery = 0.0
        self._progress = progress
        self._sent = progress.add_task("acknowledged", total=messages)
        self._read = progress.add_task("received", total=messages)

    def take(self, event: dict[str, Any]) -> None:
        """Process one event."""
        with self.lock:
            if "acknowledged" in event:
                self.acknowledged.add(event["acknowledged"])
                self._progress.update(self._sent, completed=len(self.acknowledged))
            elif "unknown" in event:
                self.unknown[event["unknown"]] += 1
            elif "received" in event:
                self._delivered(event["received"], event["id"])
            elif "failed" in event:
                self.failed[event["failed"]] += 1

    def _delivered(self, identity: int, message_id: str) -> None:
        ids = self.ids.setdefault(identity, set())
        if message_id in ids:
            self.redelivered += self.killed
        elif ids:
            self.sent_twice += 1
        ids.add(message_id)
        self.deliveries[identity] += 1
        self.last_delivery = time.monotonic()
        self.from_slave += self.master_down
        self._progress.update(self._read, completed=len(self.deliveries))

    def slave_is_drained(self) -> bool:
        """Return True if all messages were received, or the slave returns no more.

        A slave serves messages below the confirm offset that its master sent last. Messages
        acknowledged just before the kill may lie above it; they are read when the master is back.
        """
        with self.lock:
            quiet = time.monotonic() - self.last_delivery
            return (self.from_slave > 0 and quiet > QUIET_S) or not self.acknowledged - set(
                self.ids
            )

    def missing(self) -> set[int]:
        """Return the identities that were acknowledged and not received."""
        with self.lock:
            return self.acknowledged - self.deliveries.keys()

    def verdict(self, messages: int, seconds: float) -> dict[str, Any]:
        """Return the contents of verdict.json."""
        lost = self.missing()
        return {
            "sent": messages,
            "acknowledged": len(self.acknowledged),
            "received": len(self.deliveries),
            "lost": len(lost),
            "duplicated": sum(self.deliveries.values()) - len(self.deliveries),
            "redelivered_after_failover": self.redelivered,
            "sent_twice": self.sent_twice,
            "outcome_unknown_and_sent_again": len(self.unknown),
            "received_while_the_master_was_down": self.from_slave,
            "failed_client_calls": sum(self.failed.values()),
            "seconds": round(seconds, 1),
        }


class Steps:
    """Prints one line for each step that ended, with its duration."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def ended(self, name: str) -> None:
        """Print the line of the step that ends now; the next one begins."""
        now = time.monotonic()
        self._console.print(f"{name:<64}{now - self._began:6.1f} s", highlight=False)
        self._began = now


def drive(cluster: Cluster, home: Path, tally: Tally, messages: int, steps: Steps) -> None:
    """Run the scenario, from the first send to the last message read."""
    half = messages // 2
    producer = Program(
        home / "producer", tally.take, "producer", cluster.endpoints, TOPIC, "0", str(messages)
    )
    consumer = None
    try:
        # The reader starts late, so that messages are left when the master is killed.
        wait_until("the first sends", lambda: len(tally.acknowledged) >= half // 2, PHASE_S)
        consumer = Program(
            home / "consumer", tally.take, "consumer", cluster.endpoints, TOPIC, GROUP
        )
        wait_until("half of the sends", lambda: len(tally.acknowledged) >= half, PHASE_S)
        pid = cluster.kill9("master")
        tally.killed = tally.master_down = True
        steps.ended(f"Half of the messages sent; kill -9 {pid}: the master is down")
        wait_until("what the slave may serve", tally.slave_is_drained, PHASE_S)
        steps.ended(f"{tally.from_slave:,} messages read from the slave")
        tally.master_down = False
        cluster.restart("master")
        steps.ended("cometmq up restart master: the master is back")
        wait_until("the rest is sent", lambda: len(tally.acknowledged) >= messages, PHASE_S)
        read_the_rest(tally)
        steps.ended("The other half sent, the rest read")
    finally:
        for program in (producer, consumer):
            if program is not None:
                program.close()


def read_the_rest(tally: Tally) -> None:
    """Wait for missing messages; those that do not arrive in time count as lost."""
    end = time.monotonic() + LATE_S
    while tally.missing() and time.monotonic() < end:
        time.sleep(0.1)


def show(console: Console, verdict: dict[str, Any]) -> None:
    """Print the results as a table."""
    good = verdict["lost"] == 0
    table = Table(title="Verdict: nothing lost" if good else "Verdict: MESSAGES LOST")
    table.add_column("what")
    table.add_column("count", justify="right")
    for key, value in verdict.items():
        bad = key == "lost" and value
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(key.replace("_", " "), shown, style="bold red" if bad else "")
    console.print(table)


def main() -> int:
    """Run the quickstart; returns 1 if a message was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--verdict", type=Path, default=ROOT / "verdict.json")
    options = parser.parse_args()
    console = Console()
    steps = Steps(console)
    folder = Path(tempfile.mkdtemp(prefix="cometmq-quickstart-"))
    cluster = Cluster(folder / "data", segment_size=None)
    started = time.monotonic()
    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            cluster.start().wait_in_sync()
            steps.ended("cometmq up: a nameserver, a master and a slave")
            cluster.create_topic(TOPIC)
            cluster.create_group(GROUP)
            tally = Tally(options.messages, progress)
            drive(cluster, folder, tally, options.messages, steps)
        verdict = tally.verdict(options.messages, time.monotonic() - started)
    finally:
        if not options.keep:
            cluster.stop()
    options.verdict.write_text(json.dumps(verdict, indent=2) + "\n")
    show(console, verdict)
    if verdict["lost"]:
        console.print(f"The files of the processes are in {folder}")
    elif not options.keep:
        shutil.rmtree(folder)
    if options.keep:
        console.print(
            f"The cluster stays up: endpoints {cluster.endpoints}, data {cluster.data}; "
            f"stop it with: kill -INT {cluster.supervisor_pid}"
        )
    console.print(NEXT, highlight=False, soft_wrap=True)
    return 1 if verdict["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
