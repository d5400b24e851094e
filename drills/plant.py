"""Processes of a drill: nameservers and brokers, each controlled separately.

A drill controls every process and every edge of the network, so it does not use `cometmq up`. Each
cluster reserves its own net of 127/8, so all clusters use the default ports and run side by side.
Only processes started by this object are signalled, by id; `close` leaves none behind. Every fault
is written to events.jsonl with its time. Timers are those of the test profile (docs/formats/ha.md,
section 6.10) unless a drill sets others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ..proto import v1
from . import ask
from .history import History
from .network import CLIENT, Network
from .power_loss import arm
from .process import DrillError, Process, accepts, reserve_net
from .settings import (
    CLIENT_PORT,
    CLUSTER,
    GROUP,
    HA_PORT,
    NAMESRV_PORT,
    Setup,
    broker_conf,
    namesrv_conf,
)

START_S = 60.0  # for loaded machines; figures are computed from recorded events
STOP_S = 30.0
POLL_S = 0.04


class Plant:
    """All processes of one drill under `folder`."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder, self.setup = folder, setup
        folder.mkdir(parents=True, exist_ok=True)
        self.events = History(folder / "events.jsonl", "drill")
        self._seat, self._net = reserve_net()
        names = [f"ns{n}" for n in range(setup.nameservers)]
        names += [f"b{n}" for n in range(setup.brokers)]
        self.nodes = {name: self._process(at, name) for at, name in enumerate(names)}
        self.network = self._connect()
        self.client_command: list[str] = []  #: put before the command of a client process

    def _connect(self) -> Network:
        """Put a proxy before every port of every node."""
        network = Network(self._pids)
        for node in self.nodes.values():
            ports = (CLIENT_PORT, HA_PORT) if node.is_broker else (NAMESRV_PORT,)
            for port in ports:
                network.add(node.name, (node.public, port), (node.private, port))
        return network

    def _process(self, at: int, name: str) -> Process:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if name.startswith("b") and self.setup.shadows:
            arm(folder / "store")
        public, private = self._addresses(at, name)
        return Process(name, public, private, folder, env=dict(self.setup.env))

    def _addresses(self, at: int, name: str) -> tuple[str, str]:
        """Return the address that others dial and the one that the node binds."""
        return f"{self._net}.{10 + at}", f"{self._net}.{110 + at}"

    def _command(self, node: Process, file: Path) -> list[str]:
        """Return the command of a node's process: it ends with this process's end of its stdin."""
        role = "broker" if node.is_broker else "namesrv"
        command = [sys.executable, "-P", "-m", "cometmq.cli.main", role, "-c", str(file)]
        return [*command, "--grace", "3", "--supervised"]

    def _pids(self) -> dict[str, int]:
        return {n.name: n.popen.pid for n in self.nodes.values() if n.popen is not None and n.runs}

    @property
    def brokers(self) -> list[str]:
        return [node.name for node in self.nodes.values() if node.is_broker]

    @property
    def nameservers(self) -> list[str]:
        return [node.name for node in self.nodes.values() if not node.is_broker]

    @property
    def endpoints(self) -> str:
        """Return every broker's client address, in the form for official clients."""
        return ";".join(self.client_address(name) for name in self.brokers)

    @property
    def namesrv(self) -> str:
        return ";".join(f"{self.nodes[n].public}:{NAMESRV_PORT}" for n in self.nameservers)

    def client_address(self, name: str, *, direct: bool = False) -> str:
        """Return the client address of a broker; `direct`: without the proxy."""
        node = self.nodes[name]
        return f"{node.private if direct else node.public}:{CLIENT_PORT}"

    def ha_address(self, name: str) -> str:
        """Return the replication address without the proxy, for the drill itself."""
        return f"{self.nodes[name].private}:{HA_PORT}"

    def namesrv_address(self, name: str) -> str:
        """Return the nameserver's address without the proxy."""
        return f"{self.nodes[name].private}:{NAMESRV_PORT}"

    def store(self, name: str) -> Path:
        """Return the store directory of a broker."""
        return self.nodes[name].folder / "store"

    # Processes.

    def start(self) -> Self:
        """Start everything; return when a leader accepts writes and all replicas are in sync."""
        first = self.setup.first_brokers or self.setup.brokers
        started = [*self.nameservers, *self.brokers[:first]]
        for name in started:
            self.start_node(name, wait=False)
        for name in started:
            self.wait_serving(name)
        self.wait_leader()
        self.wait_in_sync(first)
        return self

    def start_node(self, name: str, *, wait: bool = True, conf: Mapping[str, str] = {}) -> None:
        """Start one process on its existing data."""
        node = self.nodes[name]
        if node.runs:
            raise DrillError(f"{name} runs already")
        file = node.folder / ("broker.conf" if node.is_broker else "namesrv.conf")
        if not file.exists() or conf:
            file.write_text("".join(f"{k}={v}\n" for k, v in {**self.conf(name), **conf}.items()))
        with (node.folder / "log.txt").open("ab") as log:
            node.popen = subprocess.Popen(
                self._command(node, file),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                env={"MALLOC_ARENA_MAX": "2", **os.environ, **node.env},
            )
        assert node.popen.stdin is not None
        node.popen.stdin.write(b"{}\n")
        node.popen.stdin.flush()
        node.starts += 1
        node.paused = False
        self.network.up(name)
        self.note("start", name)
        if wait:
            self.wait_serving(name)

    def conf(self, name: str) -> dict[str, str]:
        """Return the settings of a node's file."""
        node = self.nodes[name]
        if not node.is_broker:
            others = [
                f"{self.nodes[other].public}:{NAMESRV_PORT}"
                for other in self.nameservers
                if other != name
            ]
            return namesrv_conf(self.setup, node.private, node.folder, others)
        addresses = (node.public, node.private)
        return broker_conf(self.setup, node.number, addresses, node.folder, self.namesrv)

    def wait_serving(self, name: str, seconds: float = START_S) -> None:
        """Wait until its ports accept connections."""
        node = self.nodes[name]
        port = CLIENT_PORT if node.is_broker else NAMESRV_PORT

        def serves() -> bool:
            if not node.runs:
                raise DrillError(f"{name} ended with {node.code}\n{self.tail(name)}")
            return accepts(node.private, port)

        self.wait(f"{name} serves", serves, seconds)

    def kill(self, name: str, *, report: bool | None = None) -> None:
        """Send SIGKILL; report the exit to the controller if `report` (default: the setup's)."""
        node = self.nodes[name]
        incarnation = 0
        assert node.popen is not None
        self.note("kill", name)
        node.popen.send_signal(signal.SIGKILL)
        node.popen.wait(STOP_S)
        self.network.down(name)
        if node.is_broker and (self.setup.report_exits if report is None else report):
            self.report_exit(name, incarnation)

    def report_exit(self, name: str, incarnation: int = 0) -> None:
        """Report a broker's exit to every nameserver, as a supervisor does."""
        request = v1.ProcessExitedRequest(
            replica=v1.ReplicaIdentity(
                cluster=CLUSTER,
                group=GROUP,
                broker_id=self.nodes[name].number,
                incarnation=incarnation,
            ),
            status="signal 9 (SIGKILL)",
        )
        for server in self.nameservers:
            if self.nodes[server].runs and not self.nodes[server].paused:
                ask.process_exited(self.namesrv_address(server), request)

    def stop(self, name: str) -> int:
        """Send SIGTERM and wait; return the exit code."""
        node = self.nodes[name]
        assert node.popen is not None
        self.note("stop", name)
        node.popen.send_signal(signal.SIGTERM)
        try:
            code = node.popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise DrillError(f"{name} did not stop\n{self.tail(name)}") from None
        self.network.down(name)
        return code

    def pause(self, *names: str) -> None:
        """Send SIGSTOP."""
        for name in names:
            self._signal(name, signal.SIGSTOP)
            self.nodes[name].paused = True
        self.note("pause", ",".join(names))

    def resume(self, *names: str) -> None:
        """Send SIGCONT."""
        for name in names:
            self._signal(name, signal.SIGCONT)
            self.nodes[name].paused = False
        self.note("resume", ",".join(names))

    def _signal(self, name: str, number: signal.Signals) -> None:
        popen = self.nodes[name].popen
        assert popen is not None
        popen.send_signal(number)

    def restart(self, name: str) -> None:
        """Stop and start."""
        self.stop(name)
        self.start_node(name)

    def close(self) -> None:
        """End every process."""
        for node in self.nodes.values():
            if node.popen is not None and node.runs:
                with suppress(ProcessLookupError):
                    node.popen.send_signal(signal.SIGKILL)
                    node.popen.send_signal(signal.SIGCONT)
                node.popen.wait(STOP_S)
        self.network.close()
        ask.forget(self._net + ".")
        self._seat.close()
        self.events.close()

    # The network; every fault is recorded.

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Hold what two nodes send to each other."""
        self.note("cut", f"{one}{'-' if both else '>'}{other}")
        self.network.cut(one, other, both=both)

    def isolate(self, name: str, *, clients: bool = False) -> None:
        """Disconnect a node from all others; `clients`: from clients as well."""
        others = [other for other in self.nodes if other != name] + ([CLIENT] if clients else [])
        self.note("isolate", name)
        self.network.isolate(name, others)

    def heal(self) -> None:
        """Remove all network faults."""
        self.note("heal", "")
        self.network.heal_all()

    def note(self, event: str, what: str, **more: Any) -> None:
        """Write an event with its time."""
        self.events.write(event, what, **more)

    # Observation.

    def status(self, name: str) -> Any:
        """Return a broker's own status; None without an answer."""
        node = self.nodes[name]
        if not node.runs or node.paused:
            return None
        return ask.status(self.ha_address(name))

    def role(self, name: str) -> str:
        """Return follower, promoting, leader, fenced or hold; empty without an answer."""
        answer = self.status(name)
        return str(answer.role) if answer is not None else ""

    def leaders(self) -> list[str]:
        """Return every broker that reports to lead and may write."""
        return [name for name in self.brokers if self.role(name) == "leader"]

    def leader(self) -> str:
        """Return the leader of the highest epoch; empty without one."""
        found = [(s.beat.last_epoch, n) for n in self.brokers if (s := self.status(n)) is not None
                 and s.role == "leader"]  # fmt: skip
        return max(found)[1] if found else ""

    def followers(self) -> list[str]:
        """Return the other running brokers."""
        # Without a leader the followers are not known.
        leader = self.wait("a leader", self.leader, START_S)
        return [name for name in self.brokers if name != leader and self.nodes[name].runs]

    def report(self) -> Any:
        """Return the active controller's v1.GroupReport; None without an answer."""
        for server in self.nameservers:
            node = self.nodes[server]
            if not node.runs or node.paused:
                continue
            found = ask.groups(self.namesrv_address(server))
            for one in found:
                if one.active and one.state.group == GROUP:
                    return one
        return None

    def in_sync(self) -> list[str]:
        """Return the in-sync set as reported by the leader's client port."""
        leader = self.leader()
        if not leader:
            return []
        return [f"b{n}" for n in ask.in_sync(self.client_address(leader, direct=True))]

    def wait(self, what: str, test: Callable[[], Any], seconds: float = START_S) -> Any:
        """Poll until the condition holds. Raises DrillError."""
        end = time.monotonic() + seconds
        while True:
            answer = test()
            if answer:
                return answer
            if time.monotonic() > end:
                raise DrillError(f"not within {seconds:g} s: {what}; {self.places()}")
            time.sleep(POLL_S)

    def wait_leader(self, *, but: str = "", seconds: float = START_S) -> str:
        """Wait for a leader (other than `but`); return its name."""

        def led() -> str:
            found = self.leader()
            return found if found != but else ""

        name: str = self.wait(f"a leader{' that is not ' + but if but else ''}", led, seconds)
        self.note("leads", name)
        return name

    def wait_in_sync(self, count: int, seconds: float = START_S) -> list[str]:
        """Wait until a number of replicas are in sync; return their names."""

        def counted() -> list[str]:
            found = self.in_sync()
            return found if len(found) == count else []

        found: list[str] = self.wait(f"{count} in sync", counted, seconds)
        return found

    def tail(self, name: str, lines: int = 12) -> str:
        """Return the end of a node's log."""
        file = self.nodes[name].folder / "log.txt"
        text = file.read_text(errors="replace") if file.exists() else ""
        return f"--- {name}\n" + "\n".join(text.splitlines()[-lines:])

    def log(self, name: str) -> str:
        """Return the whole log of a node."""
        file = self.nodes[name].folder / "log.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    def places(self) -> str:
        """Return the positions of every broker, one line each."""
        lines = []
        for name in self.brokers:
            answer = self.status(name)
            if answer is None:
                lines.append(f"{name}: {'paused' if self.nodes[name].paused else 'silent'}")
                continue
            beat = answer.beat
            lines.append(
                f"{name}: {answer.role} promised={beat.promised_epoch} last={beat.last_epoch} "
                f"end={beat.log_end} confirm={beat.confirm} {beat.write_refusal} {answer.detail}"
            )
        return "\n".join(lines)

    def story(self) -> str:
        """Return the same with the ends of all logs, for the failure file."""
        return "\n".join([self.places(), *(self.tail(name) for name in self.nodes)])
