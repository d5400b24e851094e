"""Controller: runs the group controllers, with the sessions of brokers and the store of states.

Effects of the state machines are executed in order on the event loop. Changes of a state run in a
task on the `MetaStore` and return as events. A slow, dead or inactive controller never stops a
group: brokers only miss its directives. Everything is bounded: groups, sessions, a session's
outbound queue (a broker that does not read its directives is dropped), one change and one operator
command per group at a time.

Not durable here: heartbeats, sessions, and the last reports of cuts (the archives are on the
replicas). Protocol: docs/formats/ha.md, sections 6.6 to 6.8.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from ..front.clock import Clock
from ..ha.core.controller.events import (
    FOREVER_NS,
    ActiveChanged,
    CasDone,
    ClaimRenewed,
    CompareAndSet,
    Direct,
    Effect,
    Event,
    HeartbeatArrived,
    Limits,
    LogEvent,
    OperationAnswer,
    ProcessExited,
    ProposalAnswer,
    ReadState,
    RefusalCode,
    Refuse,
    SessionClosed,
    Started,
    StateChanged,
    StateRead,
    Tick,
)
from ..ha.core.controller.group_controller import GroupController
from ..ha.core.group_state import GroupState, names
from ..proto import v1
from ..proto.errors import RpcFailure
from .active import Claim
from .config import NameserverConfig
from .controller_messages import directive_message
from .controller_session import BrokerSession, HostedGroup
from .meta_store import MetaStore, StoreUnavailableError
from .process_watch import ProcessWatch

logger = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000
#: As many groups as the routes can list.
GROUPS_MAX = 1_024
#: Far above one session for every replica of every group of one nameserver.
SESSIONS_MAX = 4_096
LOAD_RETRY_S = 0.5
_GRPC = {
    RefusalCode.ID_IN_USE: 6,  # ALREADY_EXISTS
    RefusalCode.STALE: 9,  # FAILED_PRECONDITION
    RefusalCode.INVALID: 3,  # INVALID_ARGUMENT
    RefusalCode.FULL: 8,  # RESOURCE_EXHAUSTED
}
_UNAVAILABLE = 14


class Controller:
    """Runs the state machines. `on_state` receives every committed state, for the routes."""

    def __init__(
        self,
        config: NameserverConfig,
        clock: Clock,
        store: MetaStore,
        on_state: Callable[[GroupState], None],
        *,
        active: bool,
    ) -> None:
        self.config = config
        self.clock = clock
        self.active = active
        self.name = ""
        self.groups: dict[str, HostedGroup] = {}
        self.sessions: dict[int, BrokerSession] = {}
        self.refused = 0
        #: Committed changes, by group and what changed: "leader", "in_sync", "other".
        self.changes = Counter[tuple[str, str]]()
        self._claim_until_ns = FOREVER_NS
        self._store = store
        self._on_state = on_state
        self._limits = Limits(
            config.controller_lease_ms * _NS_PER_MS,
            config.controller_beat_interval_ms * _NS_PER_MS,
        )
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._events: deque[tuple[HostedGroup, Event]] = deque()
        self._is_handling = False
        self._processes = ProcessWatch(self._process_ended)
        #: Called with the exit of a broker on this host, for the other nameservers.
        self.on_exit: Callable[[v1.ProcessExitedRequest], None] = lambda _request: None
        self.hint: Callable[[], str] = lambda: ""  #: text about the active nameserver, for messages
        #: Whether this nameserver's claim is valid at a time: during a pause it may have expired.
        self.may_decide: Callable[[int], bool] = lambda _now_ns: True

    async def start(self, name: str) -> None:
        """Start to tick; `name` identifies this nameserver for operators."""
        self.name = name
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        if self.active:
            await self._load()

    async def stop(self) -> None:
        """Drop all sessions; pending writes are completed."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        self._processes.close()
        for session in list(self.sessions.values()):
            session.drop(RpcFailure(_UNAVAILABLE, "this nameserver is stopping"))
        for future in self._waiting.values():
            future.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        for task in self._tasks:
            task.cancel()

    # --- groups -----------------------------------------------------------------------------------

    def group_for(self, cluster: str, name: str) -> HostedGroup:
        """Return the group of a broker's heartbeat, created if it is new. Raises RpcFailure."""
        group = self.groups.get(name)
        if group is not None:
            known = group.core.state.cluster
            if known != cluster:
                text = (
                    f"group {name} belongs to cluster {known}; this replica has cluster {cluster}"
                )
                raise RpcFailure(_GRPC[RefusalCode.ID_IN_USE], text)
            return group
        if not cluster or not name:
            raise RpcFailure(_GRPC[RefusalCode.INVALID], "a heartbeat needs a cluster and a group")
        if len(self.groups) >= GROUPS_MAX:
            text = f"this nameserver already hosts {GROUPS_MAX} groups, its limit"
            raise RpcFailure(_GRPC[RefusalCode.FULL], text)
        return self._begin(cluster, name)

    def _begin(self, cluster: str, name: str) -> HostedGroup:
        group = HostedGroup(GroupController(cluster, name, self._limits))
        self.groups[name] = group
        self.handle(group, self._started())
        return group

    def _started(self) -> Started:
        return Started(None, self.active, self._claim_until_ns)

    async def _load(self) -> None:
        """Load every group that has a state, before its brokers register."""
        while self.active:
            try:
                groups = await self._store.groups()
            except StoreUnavailableError as error:
                logger.warning("controller.store_unavailable error=%s", error)
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            for cluster, name in groups:
                if name not in self.groups and len(self.groups) < GROUPS_MAX:
                    self._begin(cluster, name)
            return

    def set_claim(self, claim: Claim | None) -> None:
        """Become active, extend the right to decide, or become inactive (None)."""
        if claim is None:
            if self.active:
                self._deactivate()
            return
        self._claim_until_ns = claim.until_ns
        event: Event = ClaimRenewed(claim.until_ns)
        begins = not self.active
        if begins:
            self.active = True
            logger.info("controller.active name=%s", self.name)
            event = ActiveChanged(True, claim.until_ns, claim.leases_are_over)
        for group in list(self.groups.values()):
            self.handle(group, event)
        if begins:
            self._task(self._load())

    def _deactivate(self) -> None:
        """Stop granting leases before any other event is handled."""
        self.active = False
        logger.info("controller.not_active name=%s", self.name)
        now_ns = self.clock.steady_ns()
        for group in list(self.groups.values()):
            for effect in group.core.on_event(ActiveChanged(False), now_ns):
                self._do(group, effect)

    # --- events and effects -----------------------------------------------------------------------

    def handle(self, group: HostedGroup, event: Event) -> None:
        """Pass an event to the group's state machine and execute the effects.

        A nested event is queued: no broker may receive an older order after a newer one.
        """
        self._events.append((group, event))
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                group, event = self._events.popleft()
                now_ns = self.clock.steady_ns()
                if self.active and not self.may_decide(now_ns):
                    self._events.appendleft((group, event))
                    self._deactivate()
                    continue
                self._handle_event(group, event, now_ns)
        finally:
            self._is_handling = False

    def _handle_event(self, group: HostedGroup, event: Event, now_ns: int) -> None:
        """Handle one event of one group; an exception restarts only that group's state machine."""
        try:
            effects = group.core.on_event(event, now_ns)
        except Exception:
            state = group.core.state
            logger.exception(
                "controller.core_failed group=%s: restarting group state machine", state.group
            )
            group.core = GroupController(state.cluster, state.group, self._limits)
            for session in [s for s in self.sessions.values() if s.group is group]:
                session.drop(
                    RpcFailure(
                        _UNAVAILABLE, "the controller restarts the group's state machine; reconnect"
                    )
                )
            self._events.append((group, self._started()))
            return
        for effect in effects:
            self._do(group, effect)

    def adopt(self, state: GroupState) -> None:
        """Adopt a state that a majority holds, while another nameserver is active."""
        group = self.groups.get(state.group)
        if group is None and len(self.groups) < GROUPS_MAX:
            group = self._begin(state.cluster, state.group)
        if group is not None and not self.active and group.core.state.cluster == state.cluster:
            self.handle(group, StateRead(state))

    def request(self, group: HostedGroup, event: Callable[[int], Event]) -> asyncio.Future[Any]:
        """Pass in an event with a request number; the future has the answer."""
        self._number += 1
        number = self._number
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        self.handle(group, event(number))
        return future

    def _do(self, group: HostedGroup, effect: Effect) -> None:
        match effect:
            case Direct():
                session = self.sessions.get(effect.session)
                if session is not None:
                    session.send(directive_message(effect))
            case CompareAndSet():
                self._task(self._compare_and_set(group, effect))
            case ReadState():
                self._task(self._read(group))
            case StateChanged():
                self._state_changed(effect)
            case Refuse():
                self._refuse(group, effect)
            case ProposalAnswer() | OperationAnswer():
                future = self._waiting.get(effect.request)
                if future is not None and not future.done():
                    future.set_result(effect)
            case LogEvent():
                logger.info("%s group=%s %s", effect.event, group.core.state.group, effect.detail)

    def _state_changed(self, change: StateChanged) -> None:
        old, new = change.old, change.new
        changed = [
            name for name in ("leader", "in_sync") if getattr(old, name) != getattr(new, name)
        ]
        for name in changed or ("other",):
            self.changes[new.group, name] += 1
        level = logging.WARNING if new.hold_reason or new.accept_loss else logging.INFO
        logger.log(
            level,
            "group.state group=%s version=%d epoch=%d leader=%s in_sync=%s eligible=%s%s why=%s",
            new.group,
            new.version,
            new.epoch,
            "none" if new.leader is None else new.leader,
            names(new.in_sync),
            names(new.eligible),
            f" hold={new.hold_reason!r}" if new.hold_reason != old.hold_reason else "",
            change.why,
        )
        self._on_state(new)

    def _refuse(self, group: HostedGroup, refusal: Refuse) -> None:
        session = self.sessions.get(refusal.session)
        if session is None:
            return
        self.refused += 1
        logger.warning(
            "session.refused group=%s peer=%s code=%s reason=%s",
            group.core.state.group,
            session.peer,
            refusal.code.value,
            refusal.reason,
        )
        session.drop(RpcFailure(_GRPC[refusal.code], refusal.reason))

    # --- the store --------------------------------------------------------------------------------

    def _task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compare_and_set(self, group: HostedGroup, effect: CompareAndSet) -> None:
        try:
            taken, state = await self._store.compare_and_set(effect.expected_version, effect.state)
        except StoreUnavailableError as error:
            logger.warning(
                "controller.store_unavailable group=%s error=%s", effect.state.group, error
            )
            self.handle(group, CasDone(effect.ticket, False, None))
            return
        self.handle(group, CasDone(effect.ticket, taken, state))

    async def _read(self, group: HostedGroup) -> None:
        state = group.core.state
        try:
            stored = await self._store.read(state.cluster, state.group)
        except StoreUnavailableError as error:
            logger.debug("controller.store_unavailable group=%s error=%s", state.group, error)
            self.handle(group, StateRead(None))
            return
        self.handle(group, StateRead(stored))

    # --- time -------------------------------------------------------------------------------------

    @property
    def _tick_s(self) -> float:
        return min(0.25, max(0.02, self.config.controller_lease_ms / 20_000))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            tick = Tick(self.clock.wall_ms())
            for group in list(self.groups.values()):
                self.handle(group, tick)
            now_ns = self.clock.steady_ns()
            for session in list(self.sessions.values()):
                session.check_silence(now_ns)

    # --- sessions ---------------------------------------------------------------------------------

    def on_closed(self, session: BrokerSession) -> None:
        """Remove a session whose stream has ended."""
        group = session.group
        if self.sessions.pop(session.number, None) is None or group is None:
            return
        self.handle(group, SessionClosed(session.number))
        unused = group.core.state.is_new and group.core.pending is None
        if unused and all(other.group is not group for other in self.sessions.values()):
            # A wrong name or an unknown peer: no decision was made for this group.
            self.groups.pop(group.core.state.group, None)

    def on_heartbeat(self, session: BrokerSession, event: HeartbeatArrived) -> None:
        """Handle a heartbeat of a session whose group is set."""
        assert session.group is not None
        self.handle(session.group, event)

    # --- exits ------------------------------------------------------------------------------------

    def watch(self, message: v1.BrokerBeat) -> None:
        """Watch the broker's process if it runs on this host."""
        if self.config.watch_local_brokers and message.HasField("process"):
            self._processes.heartbeat(message.replica, message.process)

    def process_exited(self, request: v1.ProcessExitedRequest) -> bool:
        """Handle the exit of a broker's process; returns whether its incarnation is known."""
        replica = request.replica
        group = self.groups.get(replica.group)
        known = False
        if group is not None:
            event = ProcessExited(replica.broker_id, replica.replica_uuid, replica.incarnation)
            self.handle(group, event)
            row = group.core.replicas.get(replica.broker_id)
            known = row is not None and row.dead
        logger.info(
            "process.exited group=%s broker_id=%d incarnation=%d status=%s known=%s",
            replica.group,
            replica.broker_id,
            replica.incarnation,
            request.status,
            known,
        )
        return known

    def _process_ended(self, replica: v1.ReplicaIdentity) -> None:
        request = v1.ProcessExitedRequest(replica=replica, status="ended on this host")
        self.process_exited(request)
        self.on_exit(request)
