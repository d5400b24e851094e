"""The supervisor of `cometmq up`: watches the children, restarts failed ones, stops them in order.

    a child ends after it served  the supervisor notifies the nameserver (the group's controller
                                  elects at once) and restarts the child: at once, and after a
                                  pause if it ends again soon. With --no-restart it stays down
    a child cannot start          during the first start: all stop, exit code 1, its error is
                                  printed; later: retried, at most five times in a row
    Ctrl-C, SIGTERM, SIGHUP       electing nameservers stop first (so that they elect no one), then
                                  the leaders drain (their sync sends still need the followers),
                                  then the rest; a second signal kills
    the supervisor is killed      the children see the end of their stdin and stop

The ready file is written when every child is serving and the leaders accept writes, and again with
every new process id; the addresses file of the directory with every child that is serving.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...operations import private_file
from ...operations.errors import CliError, Exit
from .banner import banner, durability, endpoints, groups_of, in_sync, nameservers
from .child import Child, command_of
from .control_server import ControlServer
from .forking import ForkServer
from .layout import DataDirectory
from .plan import Plan
from .policy import set_replication
from .ports import HOST

#: Pauses before a restart: the first after an end, the next ones while a process ends again within
#: `_SOON_S`, so that one that ends at once is not started all the time.
RESTART_PAUSES_S = (0.0, 0.2, 1.0)
_SOON_S = 2.0
# Enough attempts for a port or directory that is released late.
START_ATTEMPTS = 5
# Longest wait of the banner for the slave to be in sync.
BANNER_AFTER_S = 1.0
GRACE_S = 5.0
# After the grace time a child still flushes and closes; then it is killed. Acknowledged messages
# are not lost.
KILL_AFTER_S = GRACE_S + 3.0
# Longest start of a broker group that is added.
_GROUP_S = 90.0
# Parts of the error of a process whose port another one has.
_PORT_IN_USE = ("is in use by another process", "another process may use it")
# SIGTERM before the child has installed its handlers ends it by the signal.
_ORDERLY = (0, -signal.SIGTERM)


@dataclass(slots=True)
class Slot:
    """A child and its state in the supervisor."""

    child: Child
    failed_starts: int = 0
    #: Restarts since the process last served for a while.
    restarts: int = 0
    serving_since_s: float = 0.0
    served: bool = False
    #: Process id for the ready file: that of the last process that was serving.
    pid: int = 0
    #: Set while the process does not exist.
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    #: The supervisor stops it: its end is expected.
    stopping: bool = False
    restart: asyncio.TimerHandle | None = None
    #: Done when the process is serving again; fails with its start error.
    waiter: asyncio.Future[None] | None = None
    #: The leader's last reason for refusing it.
    refused: str = ""


@dataclass(slots=True)
class Shown:
    """What was printed last about a group."""

    replicas: int
    leading: str = ""
    in_sync: str = ""
    durability: str = ""


class Supervisor:
    """Supervises the children that `up` has spawned, until a signal."""

    def __init__(
        self,
        data: DataDirectory,
        children: Iterable[Child],
        fork_server: ForkServer | None,
        *,
        restarts: bool,
        replication: str | None,
        another_group: Callable[[Sequence[Plan]], list[Plan]],
        ready_file: Path | None,
        say: Callable[[str], None],
        version: str,
        started_s: float,
    ) -> None:
        self._data = data
        self._slots = {child.name: Slot(child) for child in children}
        self._fork_server = fork_server
        self._restarts = restarts
        #: Requested replication (sync, async), which the group has before it is ready.
        self._replication = replication
        #: Makes the plans of one more broker group beside those that run. Raises CliError.
        self._another_group = another_group
        self._policy_changes: dict[str, asyncio.Task[None]] = {}
        self._ready_file = ready_file
        self._say = say
        self._version = version
        self._started_s = started_s
        self._ready = False
        self._failure: str | None = None
        self._stop_signals = 0
        self._stopping = asyncio.Event()
        #: Set by every report of a child.
        self._reported = asyncio.Event()
        self._banner_timer: asyncio.TimerHandle | None = None
        groups = groups_of([slot.child.plan for slot in self._slots.values()])
        self._groups = {name: Shown(len(plans)) for name, plans in groups.items()}

    async def run(self) -> None:
        """Run until a signal. Raises CliError if a child fails in the first start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        handlers = {
            "restart": self._restart_by_hand,
            "status": self._status,
            "stop": self._stop_by_hand,
            "add_group": self._add_group,
        }
        control = ControlServer(self._data.socket, handlers)
        await control.start()
        try:
            for slot in self._slots.values():
                self._watch(slot)
            self._reap()
            await self._stopping.wait()
            if self._failure is None:
                self._say("Stopping: refusing new calls, finishing calls in flight.")
            await self._stop_all()
        finally:
            for change in self._policy_changes.values():
                change.cancel()
            await control.stop()
            self._data.addresses.unlink(missing_ok=True)
        if self._failure is not None:
            raise CliError(self._failure)
        self._say("Stopped.")

    # --- reports and exits ---

    def _watch(self, slot: Slot) -> None:
        """Read the reports of a child that was just started."""
        slot.gone.clear()
        slot.served = slot.stopping = False
        asyncio.get_running_loop().add_reader(slot.child.report_fd, self._on_report, slot)

    def _on_report(self, slot: Slot) -> None:
        if not slot.child.read_reports():
            asyncio.get_running_loop().remove_reader(slot.child.report_fd)
        self._reported.set()
        if slot.child.bound is not None and not slot.served:
            self._on_serving(slot)
        if self._ready:
            self._show_state(slot)
        elif self._accepts_sends() and self._has_requested_replication():
            self._on_ready()

    def _on_serving(self, slot: Slot) -> None:
        slot.served = True
        slot.serving_since_s = asyncio.get_running_loop().time()
        slot.pid = slot.child.pid
        slot.failed_starts = 0
        port = slot.child.plan.ports.get("namesrv")
        if port is not None:
            self._send_namesrv(f"{HOST}:{port}")
        if slot.waiter is not None and not slot.waiter.done():
            slot.waiter.set_result(None)
        self._write_addresses()
        if self._ready:
            self._say(f"{slot.child.name} is serving again (process {slot.child.pid}).")

    def _accepts_sends(self) -> bool:
        """Return True if all children are serving, each group's leader accepts writes, and every
        broker knows the leaders of the other groups."""
        if not all(slot.served for slot in self._slots.values()):
            return False
        states = [self._leader(group).state for group in self._groups]
        if not all(state.get("role") == "leader" for state in states):
            return False
        brokers = [slot.child for slot in self._slots.values() if slot.child.plan.group]
        return not any(state["write_refusal"] for state in states) and (
            len(states) == 1
            or all(self._groups.keys() <= set(child.state.get("led", ())) for child in brokers)
        )

    def _has_requested_replication(self) -> bool:
        """Return True if the replication in force is the requested one; otherwise change it.

        A group with a controller keeps its first policy; a later `brokerRole` does not change it.
        """
        if self._replication is None:
            return True
        others = [
            group
            for group in self._groups
            if self._leader(group).state["replication"] != self._replication
        ]
        for group in others:
            if group not in self._policy_changes:
                change = self._change_replication(group, self._replication)
                self._policy_changes[group] = asyncio.get_running_loop().create_task(change)
        return not others

    async def _change_replication(self, group: str, replication: str) -> None:
        self._say(f"Changing the replication of {group} to {replication}.")
        try:
            await set_replication(self._data.path, group, replication)
        except (CliError, OSError) as error:
            self._failure = str(error)
            self._stopping.set()

    def _leader(self, group: str) -> Child:
        """Return the child that reports to be the group's leader, or else its initial master."""
        children = [slot.child for slot in self._slots.values() if slot.child.plan.group == group]
        for child in children:
            if child.state.get("role") == "leader" and child.is_running():
                return child
        return next(child for child in children if child.plan.role == "master")

    def _send_namesrv(self, namesrv: str) -> None:
        """Send the nameserver's address to the children that wait for it."""
        for slot in self._slots.values():
            if slot.child.plan.needs_namesrv:
                slot.child.plan.needs_namesrv = False
                slot.child.plan.flags["namesrv_addr"] = namesrv
                slot.child.send_flags({"namesrv_addr": namesrv})

    def _on_ready(self) -> None:
        """Write the ready file; the banner waits a moment longer for the slave to catch up."""
        self._ready = True
        self._write_addresses()
        self._banner_timer = asyncio.get_running_loop().call_later(
            BANNER_AFTER_S, self._show_banner
        )
        self._show_banner_if_in_sync()

    def _show_banner_if_in_sync(self) -> None:
        if all(
            self._leader(group).state.get("in_sync") == shown.replicas
            for group, shown in self._groups.items()
        ):
            self._show_banner()

    def _show_banner(self) -> None:
        if self._banner_timer is None or self._stopping.is_set():
            return
        self._banner_timer.cancel()
        leaders = {group: self._leader(group) for group in self._groups}
        if any(child.state.get("role") != "leader" for child in leaders.values()):
            # One has just stepped down.
            loop = asyncio.get_running_loop()
            self._banner_timer = loop.call_later(BANNER_AFTER_S, self._show_banner)
            return
        self._banner_timer = None
        for group, shown in self._groups.items():
            shown.durability = durability(leaders[group].state, shown.replicas)
            shown.in_sync = in_sync(leaders[group].state, shown.replicas)
            shown.leading = leaders[group].name
        children = [slot.child for slot in self._slots.values()]
        self._say(
            banner(
                version=self._version,
                plans=[child.plan for child in children],
                pids={child.name: child.pid for child in children},
                bound=next(iter(leaders.values())).bound or {},
                states={group: child.state for group, child in leaders.items()},
                data=str(self._data.path),
                seconds=time.monotonic() - self._started_s,
            )
        )

    def _show_state(self, slot: Slot) -> None:
        """Print changes of the in-sync set, the leader, the durability, and of refusals."""
        state = slot.child.state
        refused = state.get("refused", "")
        if refused != slot.refused:
            slot.refused = refused
            self._say(f"{slot.child.name}: {refused or 'accepted by the leader again'}")
        if state.get("role") != "leader":
            return
        group = slot.child.plan.group
        shown = self._groups[group]
        of_group = f" of {group}" if len(self._groups) > 1 else ""
        if slot.child.name != shown.leading and self._banner_timer is None:
            shown.leading = slot.child.name
            replica = slot.child.plan.replica
            self._say(f"{replica} ({slot.child.name}) is the leader{of_group} now.")
        if self._banner_timer is not None:
            self._show_banner_if_in_sync()
            return
        words = in_sync(state, shown.replicas)
        meaning = durability(state, shown.replicas)
        if meaning != shown.durability:
            shown.durability = meaning
            self._say(f"Durability{of_group}: {meaning}.")
        if words and words != shown.in_sync:
            shown.in_sync = words
            self._say(f"In sync{of_group}: {words}.")

    def _reap(self) -> None:
        """Find the children that have ended (SIGCHLD)."""
        if self._fork_server is not None:
            self._fork_server.reap()
        for slot in self._slots.values():
            if not slot.gone.is_set() and not slot.child.is_running():
                self._on_gone(slot)

    def _on_gone(self, slot: Slot) -> None:
        child = slot.child
        slot.gone.set()
        self._on_report(slot)
        asyncio.get_running_loop().remove_reader(child.report_fd)
        child.ended()
        self._report_exit(slot)
        if slot.stopping or self._stopping.is_set():
            if child.bound is not None and child.returncode not in _ORDERLY:
                self._failure = f"{child.name} did not stop cleanly: {child.exit_text()}."
            return
        if slot.served:
            self._on_exit(slot)
        else:
            self._on_failed_start(slot)

    def _report_exit(self, slot: Slot) -> None:
        """Notify the nameserver of a broker's end: it elects without waiting for the lease."""
        replica = slot.child.state.get("replica")
        if replica is None or self._stopping.is_set():
            return
        for other in self._slots.values():
            if other.child.plan.role == "nameserver":
                other.child.send_event({"exited": replica, "status": slot.child.exit_text()})

    def _on_exit(self, slot: Slot) -> None:
        how = f"{slot.child.name} ended with {slot.child.exit_text()}"
        if self._restarts:
            lasted_s = asyncio.get_running_loop().time() - slot.serving_since_s
            slot.restarts = 0 if lasted_s > _SOON_S else slot.restarts + 1
            pause_s = RESTART_PAUSES_S[min(slot.restarts, len(RESTART_PAUSES_S) - 1)]
            self._say(f"{how}; restarting{f' in {pause_s:g} s' if pause_s else ''}.")
            self._restart_later(slot, pause_s)
        else:
            self._say(f"{how} and stays down. {self._how_to_start(slot)}")

    def _on_failed_start(self, slot: Slot) -> None:
        why = f"{slot.child.name} cannot start: {slot.child.start_error()}"
        if not self._ready:
            if any(words in why for words in _PORT_IN_USE):
                why += " `cometmq up --port N` uses the ports from N on instead."
            self._failure = why
            self._stopping.set()
            return
        slot.failed_starts += 1
        by_hand = slot.waiter is not None and not slot.waiter.done()
        if by_hand:
            assert slot.waiter is not None
            slot.waiter.set_exception(CliError(why))
        if by_hand or not self._restarts:
            self._say(f"{why} It stays down. {self._how_to_start(slot)}")
        elif slot.failed_starts >= START_ATTEMPTS:
            self._say(
                f"{why} It stays down after {START_ATTEMPTS} attempts. {self._how_to_start(slot)}"
            )
        else:
            self._say(f"{why} Retrying in {RESTART_PAUSES_S[-1]:g} s.")
            self._restart_later(slot, RESTART_PAUSES_S[-1])

    def _how_to_start(self, slot: Slot) -> str:
        return f"Start it with `cometmq up restart {slot.child.name} --data {self._data.path}`."

    # --- restarts ---

    def _restart_later(self, slot: Slot, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        slot.restart = loop.call_later(pause_s, self._start, slot)

    def _start(self, slot: Slot) -> None:
        if slot.restart is not None:
            slot.restart.cancel()
            slot.restart = None
        if self._stopping.is_set():
            return
        slot.child.start()
        self._watch(slot)

    async def _restart_by_hand(self, name: str) -> dict[str, Any]:
        """Serve `cometmq up restart NAME`: stop the process if it runs, start it, wait for it."""
        slot = self._slots.get(name) or next(
            (each for each in self._slots.values() if each.child.plan.replica == name), None
        )
        if slot is None:
            known = ", ".join(self._slots)
            raise CliError(
                f"Unknown process '{name}'. The processes are {known}; `cometmq up status` shows"
                " their states.",
                Exit.NOT_FOUND,
            )
        if not self._ready:
            raise CliError("The cluster is still starting. Try again when it is ready.")
        if slot.waiter is not None:
            raise CliError(f"{name} is already being restarted.")
        slot.waiter = asyncio.get_running_loop().create_future()
        try:
            if not slot.gone.is_set():
                await self._stop([slot])
            self._start(slot)
            await slot.waiter
        finally:
            slot.waiter = None
        return {"name": slot.child.name, "pid": slot.child.pid, "ports": slot.child.plan.ports}

    async def _add_group(self, _: str) -> dict[str, Any]:
        """Serve `cometmq cluster add-group`: start one more broker group, wait until it serves."""
        if not self._ready or self._stopping.is_set():
            raise CliError("The cluster is starting or stopping. Try again when it is ready.")
        plans = self._another_group([slot.child.plan for slot in self._slots.values()])
        group, loop = plans[0].group, asyncio.get_running_loop()
        children = [Child(plan, self._fork_server) for plan in plans]
        slots = [Slot(child, waiter=loop.create_future()) for child in children]
        self._groups[group] = Shown(len(plans))
        for slot in slots:
            self._slots[slot.child.name] = slot
        try:
            for slot in slots:
                self._start(slot)
            async with asyncio.timeout(_GROUP_S):
                await asyncio.gather(*(slot.waiter for slot in slots if slot.waiter))
                while not self._serves(group):
                    self._reported.clear()
                    await self._reported.wait()
        except TimeoutError:
            text = f"{group} does not serve within {_GROUP_S:g} s: see the logs of its processes."
            raise CliError(text) from None
        finally:
            for slot in slots:
                slot.waiter = None
        self._write_addresses()
        return {"group": group, "processes": [plan.name for plan in plans]}

    def _serves(self, group: str) -> bool:
        """Return True if the group's leader accepts writes and every broker that runs knows it."""
        state = self._leader(group).state
        return (
            state.get("role") == "leader"
            and not state["write_refusal"]
            and all(
                group in slot.child.state.get("led", ())
                for slot in self._slots.values()
                if slot.child.plan.group and slot.child.is_running()
            )
        )

    async def _status(self, _: str) -> dict[str, Any]:
        """Serve `cometmq up status`."""
        self._reap()  # the signal of a process that has ended may not have been handled yet
        return {
            "ready": self._ready,
            "processes": [self._state_of(s) for s in self._slots.values()],
        }

    def _state_of(self, slot: Slot) -> dict[str, Any]:
        return {
            "name": slot.child.name,
            "group": slot.child.plan.group,
            "replica": slot.child.plan.replica,
            "role": slot.child.state.get("role") or slot.child.plan.role,
            "state": "ended" if slot.gone.is_set() else "serving" if slot.served else "starting",
            "process": None if slot.gone.is_set() else slot.child.pid,
            "ports": slot.child.plan.ports,
        }

    async def _stop_by_hand(self, _: str) -> dict[str, Any]:
        """Serve `cometmq up stop`: begin to stop; the lock of the directory is free at the end."""
        self._stopping.set()
        return {}

    # --- stopping ---

    def _on_stop_signal(self) -> None:
        self._stop_signals += 1
        self._stopping.set()
        if self._stop_signals > 1:
            self._say("Killing the remaining processes.")
            for slot in self._slots.values():
                slot.child.signal(signal.SIGKILL)

    async def _stop_all(self) -> None:
        for slot in self._slots.values():
            if slot.restart is not None:
                slot.restart.cancel()
            if slot.waiter is not None and not slot.waiter.done():
                slot.waiter.set_exception(CliError("The cluster is being stopped."))
        leading = {self._leader(group).name for group in self._groups}
        electing = [
            slot
            for slot in self._slots.values()
            if slot.child.plan.flags.get("controller") == "true"
        ]
        leaders = [slot for slot in self._slots.values() if slot.child.name in leading]
        await self._stop(electing)
        await self._stop(leaders)
        await self._stop([s for s in self._slots.values() if s not in (*electing, *leaders)])

    async def _stop(self, slots: list[Slot]) -> None:
        """Send SIGTERM, wait, then SIGKILL."""
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
                self._say(f"{slot.child.name} did not stop within {KILL_AFTER_S:g} s; killing it.")
                slot.child.signal(signal.SIGKILL)
        await asyncio.wait(late)

    def _write_addresses(self) -> None:
        """Replace the addresses file of the directory and, once ready, the ready file."""
        plans = [slot.child.plan for slot in self._slots.values()]
        document = {
            "endpoints": endpoints(plans),
            "nameservers": nameservers(plans),
            "processes": [
                {
                    "name": slot.child.name,
                    "group": slot.child.plan.group,
                    "role": slot.child.plan.role,
                    "pid": slot.pid,
                    "ports": slot.child.plan.ports,
                    "data": str(slot.child.plan.data),
                    "command": command_of(slot.child.plan),
                }
                for slot in self._slots.values()
            ],
        }
        text = json.dumps(document, indent=2) + "\n"
        for file in (self._data.addresses, self._ready_file if self._ready else None):
            if file is None:
                continue
            try:
                private_file.replace(file, text)
            except OSError as error:
                self._say(f"Cannot write {file}: {error.strerror}.")
