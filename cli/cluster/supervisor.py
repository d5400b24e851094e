"""The supervisor of `cometmq up`: watches the children, restarts the dead, stops them in order.

    a child dies after it served     the nameserver is told (a broker: the group's controller elects at
                                     once), and it is restarted after 1 s, or left dead with --no-restart
    a child cannot start             at first: all stop, exit code 1, its own sentence is printed
                                     later: tried again, five times in a row at most
    Ctrl-C, SIGTERM, SIGHUP          the nameserver stops first where it elects (nobody shall be elected
                                     now), then whoever leads drains (its sync sends still need the
                                     others), then the rest; a second signal kills
    the supervisor dies              the children see the end of their stdin and stop

The ready file is written when every child serves and whoever leads may write, which is when the first
send would succeed, and again with every new process id.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CliError, Exit
from .banner import banner, endpoints, in_sync, replicas_of
from .child import Child, command_of
from .control import ControlServer
from .layout import DataDirectory
from .plan import HOST

RESTART_AFTER_S = 1.0
# Five attempts outlast a port or a directory that is given back late, and end a hopeless start.
START_ATTEMPTS = 5
# A slave is in sync well within this; without it the banner says what is the case.
BANNER_AFTER_S = 1.0
GRACE_S = 5.0
# After the grace time a child still flushes and closes; then it is killed, which loses nothing that
# was promised.
KILL_AFTER_S = GRACE_S + 3.0
# A child that is asked to stop before it listens to signals ends by the signal itself.
_ORDERLY = (0, -signal.SIGTERM)


@dataclass(slots=True)
class Slot:
    """A child and what the supervisor remembers of it."""

    child: Child
    failed_starts: int = 0
    served: bool = False
    #: Of the process that served last: what the ready file names is never a process that only starts.
    pid: int = 0
    #: Set while the process does not exist.
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    #: Somebody asked for its end: its death is no news.
    stopping: bool = False
    restart: asyncio.TimerHandle | None = None
    #: Who waits for it to serve; an error is its sentence.
    waiter: asyncio.Future[None] | None = None
    #: What its leader refuses it for, as it was last said.
    refused: str = ""


class Supervisor:
    """Runs the children that `up` has spawned until it is told to stop."""

    def __init__(
        self,
        data: DataDirectory,
        children: Iterable[Child],
        *,
        restarts: bool,
        ready_file: Path | None,
        say: Callable[[str], None],
        version: str,
        started_s: float,
    ) -> None:
        self._data = data
        self._slots = {child.name: Slot(child) for child in children}
        self._restarts = restarts
        self._ready_file = ready_file
        self._say = say
        self._version = version
        self._started_s = started_s
        self._ready = False
        self._failure: str | None = None
        self._stop_signals = 0
        self._stopping = asyncio.Event()
        self._banner_timer: asyncio.TimerHandle | None = None
        self._in_sync = ""
        self._leading = ""

    async def run(self) -> None:
        """Until a signal; raises CliError when a child could not start at first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        control = ControlServer(self._data.socket, self._restart_by_hand)
        await control.start()
        try:
            for slot in self._slots.values():
                self._watch(slot)
            self._reap()
            await self._stopping.wait()
            if self._failure is None:
                self._say("Stopping: new calls are refused, what is in flight is finished.")
            await self._stop_all()
        finally:
            await control.stop()
        if self._failure is not None:
            raise CliError(self._failure)
        self._say("Stopped.")

    # --- reports and deaths ---

    def _watch(self, slot: Slot) -> None:
        """Listen to a child that was just started."""
        slot.gone.clear()
        slot.served = slot.stopping = False
        asyncio.get_running_loop().add_reader(slot.child.report_fd, self._on_report, slot)

    def _on_report(self, slot: Slot) -> None:
        if not slot.child.read_reports():
            asyncio.get_running_loop().remove_reader(slot.child.report_fd)
        if slot.child.bound is not None and not slot.served:
            self._on_serving(slot)
        if self._ready:
            self._show_state(slot)
        elif self._a_send_would_succeed():
            self._on_ready()

    def _on_serving(self, slot: Slot) -> None:
        slot.served = True
        slot.pid = slot.child.pid
        slot.failed_starts = 0
        port = slot.child.plan.ports.get("namesrv")
        if port is not None:
            self._introduce(f"{HOST}:{port}")
        if slot.waiter is not None and not slot.waiter.done():
            slot.waiter.set_result(None)
        if self._ready:
            self._write_ready_file()
            self._say(f"{slot.child.name} serves again (process {slot.child.pid}).")

    def _a_send_would_succeed(self) -> bool:
        """Everybody serves, and the master has enough replicas (with minInSyncReplicas=2: the slave)."""
        state = self._leader().state
        served = all(slot.served for slot in self._slots.values())
        return served and bool(state) and not state.get("write_refusal")

    def _leader(self) -> Child:
        """Who says so of itself, or else whoever begins as the master."""
        children = [slot.child for slot in self._slots.values()]
        for child in children:
            if child.state.get("role") == "leader" and child.is_running():
                return child
        return next(child for child in children if child.plan.role == "master")

    def _introduce(self, namesrv: str) -> None:
        """Tell the children that wait for it where the nameserver is."""
        for slot in self._slots.values():
            if slot.child.plan.needs_namesrv:
                slot.child.plan.needs_namesrv = False
                slot.child.plan.flags["namesrv_addr"] = namesrv
                slot.child.tell({"namesrv_addr": namesrv})

    def _on_ready(self) -> None:
        """The first send would succeed. The banner waits a moment longer, for the slave to catch up."""
        self._ready = True
        self._write_ready_file()
        self._banner_timer = asyncio.get_running_loop().call_later(
            BANNER_AFTER_S, self._show_banner
        )
        self._show_banner_if_in_sync()

    def _show_banner_if_in_sync(self) -> None:
        plans = [slot.child.plan for slot in self._slots.values()]
        if self._leader().state.get("in_sync") == replicas_of(plans):
            self._show_banner()

    def _show_banner(self) -> None:
        if self._banner_timer is None or self._stopping.is_set():
            return
        self._banner_timer.cancel()
        self._banner_timer = None
        children = [slot.child for slot in self._slots.values()]
        plans = [child.plan for child in children]
        leader = self._leader()
        self._in_sync = in_sync(leader.state, plans)
        self._leading = leader.name
        self._say(
            banner(
                version=self._version,
                plans=plans,
                pids={child.name: child.pid for child in children},
                bound=leader.bound or {},
                state=leader.state,
                data=str(self._data.path),
                seconds=time.monotonic() - self._started_s,
            )
        )

    def _show_state(self, slot: Slot) -> None:
        """Say what has changed of the in-sync set, or why a slave is refused."""
        refused = slot.child.state.get("refused", "")
        if refused != slot.refused:
            slot.refused = refused
            self._say(f"{slot.child.name}: {refused or 'the leader accepts it again'}")
        if slot.child.state.get("role") != "leader":
            return
        if slot.child.name != self._leading and self._banner_timer is None:
            self._leading = slot.child.name
            self._say(f"{slot.child.name} leads now.")
        plans = [other.child.plan for other in self._slots.values()]
        words = in_sync(slot.child.state, plans)
        if self._banner_timer is not None:
            self._show_banner_if_in_sync()
        elif words and words != self._in_sync:
            self._in_sync = words
            self._say(f"In sync: {words}.")

    def _reap(self) -> None:
        """Somebody's child has ended: look whose."""
        for slot in self._slots.values():
            if not slot.gone.is_set() and not slot.child.is_running():
                self._on_gone(slot)

    def _on_gone(self, slot: Slot) -> None:
        child = slot.child
        slot.gone.set()
        self._on_report(slot)
        asyncio.get_running_loop().remove_reader(child.report_fd)
        child.ended()
        self._tell_of_end(slot)
        if slot.stopping or self._stopping.is_set():
            if child.bound is not None and child.returncode not in _ORDERLY:
                self._failure = f"{child.name} did not stop cleanly: {child.how_it_ended()}."
            return
        if slot.served:
            self._on_death(slot)
        else:
            self._on_failed_start(slot)

    def _tell_of_end(self, slot: Slot) -> None:
        """A broker's process has gone, so that its lease need not be waited for."""
        replica = slot.child.state.get("replica")
        if replica is None or self._stopping.is_set():
            return
        for other in self._slots.values():
            if other.child.plan.role == "nameserver":
                other.child.news({"exited": replica, "status": slot.child.how_it_ended()})

    def _on_death(self, slot: Slot) -> None:
        how = f"{slot.child.name} has ended with {slot.child.how_it_ended()}"
        if self._restarts:
            self._say(f"{how}; it is started again in {RESTART_AFTER_S:g} s.")
            self._restart_later(slot)
        else:
            self._say(f"{how} and stays down; {self._how_to_start(slot)}")

    def _on_failed_start(self, slot: Slot) -> None:
        why = f"{slot.child.name} cannot start: {slot.child.why_not_started()}"
        if not self._ready:
            self._failure = why
            self._stopping.set()
            return
        slot.failed_starts += 1
        by_hand = slot.waiter is not None and not slot.waiter.done()
        if by_hand:
            assert slot.waiter is not None
            slot.waiter.set_exception(CliError(why))
        if by_hand or not self._restarts:
            self._say(f"{why} It stays down; {self._how_to_start(slot)}")
        elif slot.failed_starts >= START_ATTEMPTS:
            self._say(
                f"{why} That was attempt {START_ATTEMPTS}: it stays down;"
                f" {self._how_to_start(slot)}"
            )
        else:
            self._say(f"{why} It is tried again in {RESTART_AFTER_S:g} s.")
            self._restart_later(slot)

    def _how_to_start(self, slot: Slot) -> str:
        return f"`cometmq up restart {slot.child.name} --data {self._data.path}` starts it."

    # --- restarts ---

    def _restart_later(self, slot: Slot) -> None:
        loop = asyncio.get_running_loop()
        slot.restart = loop.call_later(RESTART_AFTER_S, self._start, slot)

    def _start(self, slot: Slot) -> None:
        if slot.restart is not None:
            slot.restart.cancel()
            slot.restart = None
        if self._stopping.is_set():
            return
        slot.child.start()
        self._watch(slot)

    async def _restart_by_hand(self, name: str) -> dict[str, Any]:
        """`cometmq up restart NAME`: stop it if it runs, start it, wait until it serves."""
        slot = self._slots.get(name)
        if slot is None:
            known = ", ".join(self._slots)
            raise CliError(f"There is no process '{name}' here, only {known}.", Exit.NOT_FOUND)
        if not self._ready:
            raise CliError("The cluster is still starting; try again when it is ready.")
        if slot.waiter is not None:
            raise CliError(f"{name} is being restarted already.")
        slot.waiter = asyncio.get_running_loop().create_future()
        try:
            if not slot.gone.is_set():
                await self._stop([slot])
            self._start(slot)
            await slot.waiter
        finally:
            slot.waiter = None
        return {"name": name, "pid": slot.child.pid, "ports": slot.child.plan.ports}

    # --- the end ---

    def _on_stop_signal(self) -> None:
        self._stop_signals += 1
        self._stopping.set()
        if self._stop_signals > 1:
            self._say("Killing what is left.")
            for slot in self._slots.values():
                slot.child.signal(signal.SIGKILL)

    async def _stop_all(self) -> None:
        for slot in self._slots.values():
            if slot.restart is not None:
                slot.restart.cancel()
            if slot.waiter is not None and not slot.waiter.done():
                slot.waiter.set_exception(CliError("The cluster is being stopped."))
        leader = self._leader().name
        electing = [
            slot
            for slot in self._slots.values()
            if slot.child.plan.flags.get("controller") == "true"
        ]
        leaders = [slot for slot in self._slots.values() if slot.child.name == leader]
        await self._stop(electing)
        await self._stop(leaders)
        await self._stop([s for s in self._slots.values() if s not in (*electing, *leaders)])

    async def _stop(self, slots: list[Slot]) -> None:
        """Ask, wait, kill."""
        for slot in slots:
            slot.stopping = True
            slot.child.signal(signal.SIGTERM)
        waits = [asyncio.ensure_future(slot.gone.wait()) for slot in slots]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=KILL_AFTER_S)
        if not late:
            return
        for slot in slots:
            if not slot.gone.is_set():
                self._say(f"{slot.child.name} did not stop in {KILL_AFTER_S:g} s and is killed.")
                slot.child.signal(signal.SIGKILL)
        await asyncio.wait(late)

    def _write_ready_file(self) -> None:
        """Replace the ready file; readers see all of it or none."""
        if self._ready_file is None:
            return
        plans = [slot.child.plan for slot in self._slots.values()]
        document = {
            "endpoints": endpoints(plans),
            "processes": [
                {
                    "name": slot.child.name,
                    "role": slot.child.plan.role,
                    "pid": slot.pid,
                    "ports": slot.child.plan.ports,
                    "data": str(slot.child.plan.data),
                    "command": command_of(slot.child.plan),
                }
                for slot in self._slots.values()
            ],
        }
        temporary = self._ready_file.with_name(self._ready_file.name + ".tmp")
        try:
            temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            temporary.replace(self._ready_file)
        except OSError as error:
            self._say(f"Cannot write the ready file {self._ready_file}: {error.strerror}.")
