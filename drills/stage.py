"""One run of a drill: processes, workload, role watcher, expectations, and the final comparison.

`finish` is the same for every drill (docs/formats/ha.md, section 6.12): heal, start stopped nodes,
wait until all are in sync, stop the senders, let the consumers drain, wait until all logs end
alike, stop the processes, and run the checker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import grpc

from . import ask, history, verdict
from .logwalk import log_end
from .plant import POLL_S, START_S, Plant
from .process import DrillError
from .settings import Setup

#: The module that loads through the official client, and what it imports: a development extra.
OFFICIAL_LOAD, OFFICIAL_CLIENT = "cometmq.drills.official_load", "rocketmq"
TOPIC, READERS = "drill", "drill-readers"
WATCH_S = 0.1
SETTLE_S = 60.0
UNLOAD_S = 40.0
# Longer than the invisible time of a message whose answer was lost (load.py: 10 s).
DRAIN_IDLE_S = 13.0
# Read in a tenth of a second.
READ_HERE_BYTES = 2 << 20


#: Of the sends between two steps of a drill, and of their rate, in the shortest one: tens of every
#: sender's remain.
LEAST_SHARE = 0.25
#: Of a client after a failed send, at full length.
RETRY_S = 0.03


@dataclass(frozen=True, slots=True)
class Workload:
    """Amount of load, and the clients that produce it."""

    senders: int = 10
    readers: int = 2
    official: int = 2  # threads of the official client; 0: without it
    official_reads: bool = False
    pause_s: float = 0.02  # of a raw sender between messages, at full length
    size: int = 200
    official_pause_s: float = 0.005  # of a thread of the official client, at full length


class Stage:
    """One run of one drill."""

    def __init__(
        self,
        folder: Path,
        setup: Setup,
        result: verdict.Verdict,
        *,
        scale: float = 0.0,
        seed: int = 1,
        plant: Plant | None = None,
    ) -> None:
        """`scale` stretches long drills: 1 is the full length, 0 the shortest useful one.

        `plant` holds the processes; default: processes of this host behind proxies.
        """
        self.folder, self.setup, self.verdict = folder, setup, result
        self.scale, self.seed = scale, seed
        self.plant = Plant(folder, setup) if plant is None else plant
        self.histories: list[Path] = []
        self.ok, self.refused = history.Counter("ok"), history.Counter("fail")
        self._loads: list[subprocess.Popen[bytes]] = []
        self._readers: list[subprocess.Popen[bytes]] = []
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="watcher")
        #: Checks skipped by drills that delete old segments deliberately.
        self.compare_queues = self.check_content = True
        self.compare_ends = True  #: not if the leader writes records of its own until it stops

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.set()
        if self._watcher.ident is not None:
            self._watcher.join(10.0)
        for process in [*self._loads, *self._readers]:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.plant.close()

    def open(self, *, topic: bool = True) -> Self:
        """Start the cluster and create the workload's topic and group."""
        self.plant.start()
        self._watcher.start()
        if topic:
            leader = self.plant.client_address(self.plant.wait_leader(), direct=True)
            self.retry("create the topic", lambda: ask.create_topic(leader, TOPIC))
            self.retry("create the group", lambda: ask.create_group(leader, READERS))
        return self

    def retry(self, what: str, do: Callable[[], Any], seconds: float = START_S) -> Any:
        """Call until the status is OK (code 20000) or the time is over."""

        def answered() -> Any:
            try:
                answer = do()
            except grpc.RpcError:
                return None
            return answer if answer.code == 20000 else None

        return self.plant.wait(what, answered, seconds)

    # The workload.

    def load(self, workload: Workload = Workload(), run: str = "a") -> None:
        """Start the senders and readers; return after the first acknowledged message."""
        plant = self.plant
        plant.note("load", run)
        before = self.acks()
        if workload.senders:
            self._loads.append(
                self._client(
                    f"raw-{run}",
                    *("-m", "cometmq.drills.load", "--run", run),
                    *("--senders", str(workload.senders), "--size", str(workload.size)),
                    *("--pause", str(workload.pause_s / self.share)),
                    *("--retry", str(RETRY_S / self.share)),
                )
            )
        if workload.official and find_spec(OFFICIAL_CLIENT) is not None:
            more = ("--group", READERS) if workload.official_reads else ()
            self._loads.append(
                self._client(
                    f"official-{run}",
                    *(
                        "-m",
                        OFFICIAL_LOAD,
                        "--run",
                        run,
                        "--senders",
                        str(workload.official),
                        *more,
                    ),
                    *("--pause", str(workload.official_pause_s / self.share)),
                )
            )
        if workload.readers:
            self.read(workload.readers, run)
        if workload.senders:
            self.wait_acks(before + 1)

    def read(self, readers: int = 2, run: str = "a") -> None:
        """Start consumers."""
        self._readers.append(
            self._client(
                f"reads-{run}",
                *("-m", "cometmq.drills.load", "--run", run, "--senders", "0"),
                *("--readers", str(readers), "--group", READERS, "--resolve", "3"),
            )
        )

    def _client(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = self.history(name)
        words = ["--endpoints", self.endpoints, "--topic", TOPIC, "--history", str(path)]
        return self._start(name, [sys.executable, "-P", *arguments, *words])

    def history(self, name: str) -> Path:
        """Return the history file of a client; `compare` reads it."""
        path = self.folder / f"history-{name}.jsonl"
        if path not in self.histories:
            self.histories.append(path)
        return path

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        with (self.folder / f"client-{name}.txt").open("ab") as log:
            return subprocess.Popen(
                [*self.plant.client_command, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "HOME": str(home),
                    "JAVA_TOOL_OPTIONS": f"-Duser.home={home}",
                    # The Go client accepts several addresses only without TLS.
                    "rocketmq.client.enableSsl": "false",
                    "GRPC_VERBOSITY": "NONE",
                },
                cwd=home,
            )

    def start_load(self, name: str, command: Sequence[str]) -> None:
        """Start a load of another program, which writes `history(name)` and ends on SIGTERM."""
        self._loads.append(self._start(name, command))

    def start_sdk(self, run: str, pause_s: float) -> None:
        """Start the load through the project's SDK."""
        module = ("-m", "cometmq.drills.sdk_load")
        words = ("--run", run, "--pause", str(pause_s))
        self._loads.append(self._client(f"sdk-{run}", *module, *words))

    @property
    def share(self) -> float:
        """The share of the full load."""
        return max(self.scale, LEAST_SHARE)

    @property
    def endpoints(self) -> str:
        """Return the endpoints for the clients."""
        return self.plant.endpoints

    def acks(self) -> int:
        """Return the number of acknowledged sends."""
        return self.ok.poll(self.histories)

    def wait_acks(self, count: int, seconds: float = START_S) -> int:
        """Wait for a total number of acknowledged sends."""
        self.plant.wait(f"{count} acknowledged sends", lambda: self._enough(count), seconds)
        return self.ok.count

    def more_acks(self, count: int, seconds: float = START_S) -> int:
        """Wait for a number of further acknowledged sends: at full length `count`."""
        return self.wait_acks(self.acks() + round(count * self.share), seconds)

    def _enough(self, count: int) -> bool:
        for process in self._loads:
            if process.poll() is not None:
                raise DrillError(f"a load ended with {process.returncode}: {self.client_errors()}")
        return self.acks() >= count

    def client_errors(self) -> str:
        """Return what the clients' processes printed."""
        files = sorted(self.folder.glob("client-*.txt"))
        return " ".join(path.read_text(errors="replace")[-600:] for path in files)

    def wait_refused(self) -> None:
        """Wait until another send is refused, and none was acknowledged for half a second."""
        before = self.refused.poll(self.histories)
        self.plant.wait(
            "a write is refused", lambda: self.refused.poll(self.histories) > before, START_S
        )
        self.plant.wait("no write is acknowledged", lambda: self.acks_within(0.5) == 0)

    def acks_within(self, seconds: float) -> int:
        """Return the number of sends acknowledged within a time."""
        before = self.acks()
        time.sleep(seconds)
        return self.acks() - before

    def unload(self) -> None:
        """Stop the senders; unknown outcomes are resolved if possible."""
        self.plant.note("unload", "")
        for process in self._loads:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._loads:
            try:
                process.wait(UNLOAD_S)
            except subprocess.TimeoutExpired:
                raise DrillError(f"a load did not stop: {self.client_errors()}") from None
        self._loads.clear()

    # Expectations.

    def check(self, what: str, passed: bool, found: object = "") -> None:
        """Record an expectation and its result."""
        self.verdict.checks.append(verdict.Check(what, bool(passed), str(found)))
        self.plant.note("check", what, passed=bool(passed))

    # The end.

    def finish(self, *, settle: bool = True, drain: bool = True) -> None:
        """Heal, drain, stop, compare."""
        plant = self.plant
        if settle:
            self.settle()
        if self._loads:
            self.unload()
        if drain and self._readers:
            self._drain()
        for process in self._readers:
            process.terminate()
        for process in self._readers:
            process.wait(UNLOAD_S)
        self._readers.clear()
        if settle:
            self.wait_alike()
        leader = plant.leader()
        # Without a controller no election follows. The leader stops first: its records about
        # messages in flight must reach its followers. On a busy machine clean stops of the
        # nameservers would last longer than its lease: it would resume its epoch with a record that
        # no follower gets.
        brokers = sorted(plant.brokers, key=lambda name: name != leader)
        for name in plant.nameservers:
            if plant.nodes[name].runs:
                plant.kill(name)
        for name in brokers:
            if plant.nodes[name].runs:
                plant.stop(name)
        self.compare()

    def settle(self) -> None:
        """Heal the network, resume and start all nodes, wait for a complete in-sync set."""
        plant = self.plant
        plant.heal()
        for node in plant.nodes.values():
            if node.paused:
                plant.resume(node.name)
            if not node.runs:
                plant.start_node(node.name, wait=False)
        for node in plant.nodes.values():
            plant.wait_serving(node.name)
        plant.wait_leader(seconds=SETTLE_S)
        plant.wait_in_sync(len(plant.brokers), SETTLE_S)

    def _drain(self) -> None:
        """Wait until the readers have received nothing new for a while."""
        got = history.Counter("got")
        seen, since = -1, time.monotonic()
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end and time.monotonic() - since < DRAIN_IDLE_S:
            count = got.poll(self.histories)
            if count != seen:
                seen, since = count, time.monotonic()
            elif self._all_delivered():
                return
            time.sleep(POLL_S * 5)

    def _all_delivered(self) -> bool:
        """Return whether everything was delivered.

        A separate process reads long histories: in this process, reading would block the threads
        of the network proxy.
        """
        size = sum(path.stat().st_size for path in self.histories if path.exists())
        if size < READ_HERE_BYTES:
            return verdict.all_delivered(self.histories)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as reader:
            return reader.submit(verdict.all_delivered, self.histories).result()

    def wait_alike(self) -> None:
        """Wait until all logs end at the same position and stay there."""
        stores = [self.plant.store(name) / "commitlog" for name in self.plant.brokers]

        if not self.compare_ends:
            return

        def alike() -> bool:
            return len({log_end(store) for store in stores}) == 1

        self.plant.wait("all logs end alike", alike, SETTLE_S)

    def compare(self) -> None:
        """Run the checker."""
        plant, result = self.plant, self.verdict
        stores = {name: plant.store(name) for name in plant.brokers}
        promises = verdict.Promises.read(self.histories)
        events = list(history.read(self.folder / "events.jsonl"))
        best = max(stores, key=lambda name: log_end(stores[name] / "commitlog"))
        found = verdict.records(stores[best], TOPIC)
        if self.check_content:
            tails = verdict.archived(stores.values(), TOPIC)
            times = verdict.repeat_times(events)
            verdict.check_log(result, promises, found, tails, times)
            if self.setup.sync:
                result.late = verdict.late(promises, found)
        if self.check_content and any("reads-" in path.name for path in self.histories):
            verdict.check_deliveries(result, promises, found)
        verdict.check_stores(result, stores, queues=self.compare_queues, ends=self.compare_ends)
        verdict.measure(result, promises, events)

    def _watch(self) -> None:
        """Record every change of a role."""
        seen: dict[str, tuple[str, int]] = {}
        while not self._watching.wait(WATCH_S):
            for name in self.plant.brokers:
                try:
                    answer = self.plant.status(name)
                except ValueError:  # the channel was closed: the drill ends
                    return
                now = ("down", 0) if answer is None else (answer.role, answer.beat.last_epoch)
                if seen.get(name) != now:
                    seen[name] = now
                    self.plant.note("role", name, role=now[0], epoch=now[1])
