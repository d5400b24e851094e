"""Controller link: the broker's sessions with the group controllers, one per nameserver.

Heartbeats report the positions of this replica every `controllerBeatIntervalMs` and immediately on
a change; directives of the active nameserver name the leader. States are accepted from any
nameserver, because a committed version is final. Leases count from the send time of the answered
heartbeat (R4).

Nothing waits for a nameserver: a failed, slow or restarted one costs only its own session, which is
reopened. A proposal goes to the active nameserver, or to each of the others once while none is
known active; a newer proposal replaces it. Reports of cuts are repeated until a controller
acknowledges them.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from ...proto import paths, v1
from ...proto.channels import PEER_OPTIONS, cancel_requests
from ...store.format.disk import Disk
from ..core.group_state import GroupState
from ..core.in_sync_events import ProposeIsr
from ..core.role_machine import DirectiveArrived, LeaseRenewed, Order
from ..errors import DamagedStateError
from ..rejoin import archive
from ..state.replica import Replica
from ..state.state_codec import ref_from, ref_message, state_from
from ..stream.channel import is_stream_end

logger = logging.getLogger(__name__)

_RECONNECT_MIN_S = 0.05
_RECONNECT_MAX_S = 1.0
#: Heartbeats whose answers are awaited; the lease of an older one would have expired.
_ANSWERS_MAX = 64
_CALL_TIMEOUT_S = 2.0
_REPORT_EVERY_S = 2.0
#: Minimum interval between heartbeats on a change.
_HEARTBEAT_PAUSE_S = 0.005
_MESSAGE_BYTES_MAX = 1 << 20


class LinkContext(Protocol):
    """The engine's interface for the link."""

    def heartbeat(self) -> v1.BrokerBeat: ...
    def directive(self, event: DirectiveArrived) -> None: ...
    def lease(self, event: LeaseRenewed) -> None: ...
    def proposal_answered(self, seq: int, state: GroupState | None, *, accepted: bool) -> None: ...


class _Session:
    """The session with one nameserver."""

    def __init__(self, link: "ControllerLink", address: str) -> None:
        self.address = address
        self.active = False
        self.channel: Any = None
        self._link = link
        self._changed = asyncio.Event()
        self._sent: deque[tuple[int, int]] = deque(maxlen=_ANSWERS_MAX)
        self._first = True

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        reconnect_s = _RECONNECT_MIN_S
        while True:
            answered = False
            try:
                answered = await self._run_stream()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not is_stream_end(error):
                    logger.exception("ha.controller.failed address=%s", self.address)
            if cancel_requests():
                raise asyncio.CancelledError
            if self.active:
                logger.info("ha.controller.lost address=%s", self.address)
            self.active = False
            reconnect_s = _RECONNECT_MIN_S if answered else min(_RECONNECT_MAX_S, reconnect_s * 2)
            await asyncio.sleep(reconnect_s * (0.75 + random.random() / 2))

    async def _run_stream(self) -> bool:
        """Run one stream; returns whether it was ever answered."""
        link = self._link
        options = [
            *PEER_OPTIONS,
            ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
        ]
        answered = False
        async with link.links.channel(self.address, options) as channel:
            self.channel = channel
            token = link.links.metadata(self.address)
            call = channel.stream_stream(paths.CONTROLLER_SESSION)(metadata=token)
            self._first = True
            self._sent.clear()
            writer = asyncio.get_running_loop().create_task(self._write_heartbeats(call))
            try:
                while True:
                    raw = await call.read()
                    if raw is grpc.aio.EOF:
                        return answered
                    self._on_directive(raw)
                    answered = True
            finally:
                self.channel = None
                writer.cancel()
                call.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def _write_heartbeats(self, call: Any) -> None:
        link = self._link
        while True:
            self._changed.clear()
            heartbeat = link.next_heartbeat(with_state=self._first)
            self._first = False
            self._sent.append((heartbeat.seq, heartbeat.sent_ns))
            await call.write(heartbeat.SerializeToString())
            await asyncio.sleep(_HEARTBEAT_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(link.interval_s):
                    await self._changed.wait()

    def _on_directive(self, raw: bytes) -> None:
        try:
            directive = v1.Directive.FromString(raw)
        except DecodeError:
            logger.warning("ha.controller.invalid_directive address=%s", self.address)
            return
        if directive.active is not self.active:
            self.active = directive.active
            logger.info("ha.controller active=%s address=%s", self.active, self.address)
        link = self._link
        if directive.active:
            link.heard_ns = link.replica.steady_ns()
        if directive.active and directive.lease_for_seq:
            for seq, sent_ns in self._sent:
                if seq == directive.lease_for_seq:
                    link.owner.lease(LeaseRenewed(sent_ns, directive.lease_ms * 1_000_000))
        state = state_from(directive.state) if directive.HasField("state") else None
        if state is not None and not state.version:
            state = None
        order = Order.NONE
        if directive.active:
            order = _ORDERS.get(directive.order, Order.NONE)
        event = DirectiveArrived(
            state,
            order,
            old_leader_is_dead=directive.old_leader_is_dead and directive.active,
            detail=directive.detail,
            wait_ns=directive.wait_ms * 1_000_000,
            drain_ns=directive.drain_ms * 1_000_000,
            next=ref_from(directive.next) if directive.HasField("next") else None,
        )
        link.owner.directive(event)


_ORDERS = {
    v1.ORDER_FOLLOW: Order.FOLLOW,
    v1.ORDER_PROMOTE: Order.PROMOTE,
    v1.ORDER_STEP_DOWN: Order.STEP_DOWN,
    v1.ORDER_HOLD: Order.HOLD,
    v1.ORDER_RESEED: Order.RESEED,
}


class ControllerLink:
    def __init__(self, replica: Replica, owner: LinkContext, nameservers: Sequence[str]) -> None:
        self.replica = replica
        self.owner = owner
        self.interval_s = replica.config.controller_beat_interval_ms / 1000
        self.links = replica.links
        self._sessions = [_Session(self, address) for address in nameservers]
        self._tasks: list[asyncio.Task[None]] = []
        self._proposal: ProposeIsr | None = None
        self._proposed = asyncio.Event()
        self.heard_ns = 0  #: time of the last directive of an active nameserver
        self._seq = 0
        self._reported_empty = False

    @property
    def has_controller(self) -> bool:
        """Whether an active nameserver answers."""
        return any(session.active for session in self._sessions)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        runs: list[Callable[[], Any]] = [session.run for session in self._sessions]
        runs += [self._propose, self._report_cuts]
        self._tasks = [loop.create_task(run()) for run in runs]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def changed(self) -> None:
        """Send a heartbeat soon, because something changed."""
        for session in self._sessions:
            session.changed()

    def log_grew(self) -> None:
        """Report the first bytes of an empty log: a replica whose last heartbeat says empty may not
        be elected."""
        log = self.replica.log
        if self._reported_empty and log.log_end > log.log_start:
            self.changed()

    def next_heartbeat(self, *, with_state: bool) -> v1.BrokerBeat:
        heartbeat = self.owner.heartbeat()
        self._reported_empty = heartbeat.log_is_empty
        self._seq += 1
        heartbeat.seq = self._seq
        heartbeat.sent_ns = self.replica.steady_ns()
        if not with_state:
            heartbeat.ClearField("known")
        return heartbeat

    # --- calls ------------------------------------------------------------------------------------

    def propose(self, proposal: ProposeIsr) -> None:
        """Propose another in-sync set; replaces an unanswered proposal."""
        self._proposal = proposal
        self._proposed.set()

    async def _propose(self) -> None:
        while True:
            await self._proposed.wait()
            self._proposed.clear()
            proposal, self._proposal = self._proposal, None
            if proposal is None:
                continue
            request = self._alter(proposal)
            for session in self._by_activity():
                answer = await self._call(session, paths.ALTER_ISR, request, v1.AlterIsrResponse)
                if answer is None or not answer.active:
                    continue
                state = state_from(answer.state) if answer.HasField("state") else None
                logger.info(
                    "ha.isr.answered seq=%d accepted=%s reason=%s",
                    proposal.seq,
                    answer.accepted,
                    answer.reason,
                )
                self.owner.proposal_answered(proposal.seq, state, accepted=answer.accepted)
                break

    def _alter(self, proposal: ProposeIsr) -> v1.AlterIsrRequest:
        replica = self.replica
        return v1.AlterIsrRequest(
            cluster=replica.identity.cluster,
            group=replica.identity.group,
            epoch=replica.epoch,
            state_version=proposal.version,
            proposal_seq=proposal.seq,
            members=[ref_message(ref) for ref in proposal.members],
            confirm=proposal.confirm,
            leader=ref_message(replica.ref),
        )

    def _by_activity(self) -> list[_Session]:
        return sorted(self._sessions, key=lambda session: not session.active)

    async def _call(self, session: _Session, path: str, request: Any, kind: Any) -> Any:
        channel = session.channel
        if channel is None:
            return None
        asked_to_end = cancel_requests()
        try:
            raw = await channel.unary_unary(path)(
                request.SerializeToString(),
                metadata=self.links.metadata(session.address),
                timeout=_CALL_TIMEOUT_S,
            )
            return kind.FromString(raw)
        except (grpc.RpcError, asyncio.InvalidStateError, DecodeError) as error:
            logger.info("ha.controller.call_failed address=%s error=%s", session.address, error)
        except asyncio.CancelledError:
            pass  # of this task, or the channel was closed under the call
        if cancel_requests() > asked_to_end:
            raise asyncio.CancelledError
        return None

    async def switch_over(self, to: int, max_wait_ms: int) -> v1.GroupsResponse | None:
        """Ask the active controller for a switchover; None without an answer."""
        request = v1.SwitchoverRequest(
            group=self.replica.identity.group, to=to, max_wait_ms=max_wait_ms
        )
        for session in self._by_activity():
            if session.active:
                answer = await self._call(session, paths.SWITCHOVER, request, v1.GroupsResponse)
                if isinstance(answer, v1.GroupsResponse):
                    return answer
        return None

    # --- reports ----------------------------------------------------------------------------------

    async def _report_cuts(self) -> None:
        """Report every archived tail that no controller has acknowledged."""
        replica = self.replica
        try:
            waiting = [t for t in archive.load_tails(replica.directory) if not t.reported]
        except DamagedStateError as error:
            logger.error("ha.tails.damaged error=%s", error)
            return
        while waiting:
            still = []
            for tail in waiting:
                if not await self._report(tail):
                    still.append(tail)
            waiting = still
            if waiting:
                await asyncio.sleep(_REPORT_EVERY_S)

    async def _report(self, tail: archive.DivergedTail) -> bool:
        request = v1.ReportCutRequest(
            replica=self.owner.heartbeat().replica,
            epoch=tail.decided_epoch,
            start=tail.start,
            end=tail.end,
            messages=tail.messages,
            below_local_ok=tail.answered_ok,
            below_confirm=tail.below_confirm,
            sample_ids=tail.sample_ids,
            archive=tail.file_id,
        )
        for session in self._by_activity():
            if not session.active:
                continue
            if await self._call(session, paths.REPORT_CUT, request, v1.ReportCutResponse) is None:
                continue
            # Reloaded before each save: a replay may have moved its own mark meanwhile.
            for now in archive.load_tails(self.replica.directory):
                if now.file_id == tail.file_id:
                    archive.save(self.replica.directory, replace(now, reported=True), Disk())
            logger.info("ha.cut.reported archive=%s", tail.file_id)
            return True
        return False
