"""Control service `cometmq.v1.ReplicaControl` on the replication port: calls of operators and
peers.

Every call needs the identity of a node. Code OK means that the action is complete, or started
where the message states it. Actions that can lose bytes need `accept_loss`; `dry_run` changes
nothing. In controller mode calls that would promote or redirect a replica are refused, because only
the controller decides; the roles of a static group change by exactly these calls
(`scripts/promote`). See docs/formats/ha.md, sections 6.6 and 6.14.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ..front.admission import Admission
from ..front.context import RequestContext
from ..front.service import Kind, Method, refuse_wire_error
from ..proto import paths, v1, v2
from ..proto.errors import UNIMPLEMENTED, RpcFailure
from .core import (
    role_machine as core,
)
from .core.role_machine import Order, Role
from .core.static_state import is_newer
from .events import ReplicaServices
from .role import (
    heartbeats,
)
from .role.role_driver import RoleDriver
from .state.replica import Replica
from .state.state_codec import state_from, state_message
from .stream import (
    frames,
)

logger = logging.getLogger(__name__)

#: A promotion that takes longer continues, and the answer reports the role.
_PROMOTE_WAIT_S = 20.0
_DRAIN_MAX_MS = 60_000
_POLL_S = 0.01
#: Largest request: a group's state, or the places of `record_reads.py`.
_REQUEST_BYTES = 256 << 10

_MODE = (
    "this group is led by its controller (enableControllerMode=true): use cometmq ha "
    "switchover, failover or force-elect"
)


class Control:
    def __init__(
        self,
        replica: Replica,
        roles: RoleDriver,
        heartbeat: Callable[[], v1.BrokerBeat],
    ) -> None:
        self._replica = replica
        self._roles = roles
        self.services: ReplicaServices | None = None  #: once the broker is open
        self._heartbeat = heartbeat

    def methods(self, admit: Admission) -> list[Method]:
        """Return the rows of the service table."""
        rows: list[tuple[str, Kind, Any, Callable[..., Any]]] = [
            (paths.REPLICA_STATUS, Kind.UNARY, v1.StatusRequest, self._status),
            (paths.FENCE, Kind.UNARY, v1.FenceRequest, self._fence),
            (paths.STEP_DOWN, Kind.UNARY, v1.StepDownRequest, self._step_down),
            (paths.PROMOTE, Kind.UNARY, v1.PromoteRequest, self._promote),
            (paths.FOLLOW, Kind.UNARY, v1.FollowRequest, self._follow),
            (paths.RESEED, Kind.UNARY, v1.ReseedRequest, self._reseed),
            (paths.CUT_TAIL, Kind.UNARY, v1.CutTailRequest, self._cut_tail),
            (paths.REPLAY_TAIL, Kind.UNARY, v1.ReplayTailRequest, self._replay_tail),
            (paths.READ_PLACES, Kind.UNARY, v1.ReadPlacesRequest, self._read_places),
            (paths.GET_DIGESTS, Kind.SERVER_STREAM, v1.DigestsRequest, self._get_digests),
            (paths.READ_RANGE, Kind.SERVER_STREAM, v1.ReadRangeRequest, self._read_range),
        ]
        return [
            Method(
                path,
                kind,
                request.FromString,
                handler,
                refuse_wire_error,
                admit=admit,
                request_bytes_max=_REQUEST_BYTES,
            )
            for path, kind, request, handler in rows
        ]

    # --- answers ----------------------------------------------------------------------------------

    def status(self, code: int = v2.OK, message: str = "") -> v1.ReplicaStatus:
        replica, roles = self._replica, self._roles
        state = replica.state
        return v1.ReplicaStatus(
            code=code,
            message=message,
            beat=self._heartbeat(),
            state=None if state is None else state_message(state),
            epochs=frames.epoch_points(replica.history),
            role=roles.role.value,
            detail=heartbeats.status_detail(roles),
            local_ok=roles.local_ok,
            tails=[] if self.services is None else self.services.archived_tails(),
            may_write_ms=heartbeats.may_write_ms(replica, roles),
        )

    def _answer(self, message: str, *steps: str, code: int = v2.OK) -> v1.ControlResponse:
        return v1.ControlResponse(code=code, message=message, steps=steps, status=self.status())

    def _refuse(self, message: str) -> v1.ControlResponse:
        return self._answer(message, code=v2.BAD_REQUEST)

    # --- calls ------------------------------------------------------------------------------------

    async def _status(self, request: v1.StatusRequest, _ctx: RequestContext) -> v1.ReplicaStatus:
        return self.status()

    async def _fence(self, request: v1.FenceRequest, _ctx: RequestContext) -> v1.ReplicaStatus:
        promised = self._replica.promised_epoch
        if request.epoch < promised:
            return self.status(v2.BAD_REQUEST, f"epoch {promised} was promised already")
        self._roles.feed(core.FenceOrdered(request.epoch))
        if self._replica.promised_epoch < request.epoch:
            return self.status(v2.INTERNAL_ERROR, "the promise could not be saved")
        logger.warning("ha.fenced_by_order epoch=%d", request.epoch)
        return self.status(message=f"epochs below {request.epoch} are refused from now on")

    async def _step_down(
        self, request: v1.StepDownRequest, _ctx: RequestContext
    ) -> v1.ControlResponse:
        roles = self._roles
        if roles.role is not Role.LEADER:
            return self._refuse(f"this replica does not lead, it is {roles.role.value}")
        if request.drain_ms > _DRAIN_MAX_MS:
            return self._refuse(f"drain_ms may be at most {_DRAIN_MAX_MS}")
        steps = []
        if request.drain_ms > 0:
            drained = await roles.drain(request.drain_ms / 1000)
            if not drained and roles.role is Role.LEADER:
                roles.end_drain()
                return self._refuse(
                    f"the followers do not have everything after {request.drain_ms} ms: this "
                    "replica still leads"
                )
            if drained:
                end = self._replica.log.log_end
                steps.append(f"the followers have everything up to {end}")
        roles.feed(core.StepDownOrdered(request.epoch, "an operator's order"))
        steps.append("stepped down")
        if request.HasField("state"):
            roles.directive(core.DirectiveArrived(state_from(request.state), Order.FOLLOW))
            steps.append("follows the leader of the new state")
        return self._answer("this replica no longer leads", *steps)

    async def _promote(
        self, request: v1.PromoteRequest, _ctx: RequestContext
    ) -> v1.ControlResponse:
        roles, replica = self._roles, self._replica
        state = state_from(request.state)
        if not roles.is_static:
            return self._refuse(_MODE)
        if state.leader != replica.ref:
            return self._refuse(
                f"the state names {state.leader} as the leader, this is {replica.ref}"
            )
        if state.epoch < replica.promised_epoch:
            return self._refuse(
                f"epoch {replica.promised_epoch} was promised, the state is of {state.epoch}"
            )
        known = replica.state
        if known is not None and not is_newer(state, known) and state != known:
            return self._refuse(
                f"a state of epoch {known.epoch}, version {known.version} is known here"
            )
        roles.directive(
            core.DirectiveArrived(
                state, Order.PROMOTE, old_leader_is_dead=request.old_leader_is_dead
            )
        )
        waited_s = 0.0
        while roles.role is Role.PROMOTING and waited_s < _PROMOTE_WAIT_S:
            await asyncio.sleep(_POLL_S)
            waited_s += _POLL_S
        if roles.role is Role.LEADER:
            return self._answer(f"this replica leads epoch {state.epoch}")
        return self._answer(f"this replica is {roles.role.value}", code=v2.INTERNAL_ERROR)

    async def _follow(self, request: v1.FollowRequest, _ctx: RequestContext) -> v1.ControlResponse:
        if not self._roles.is_static:
            return self._refuse(_MODE)
        state = state_from(request.state)
        if state.leader is None or state.leader == self._replica.ref:
            return self._refuse("the state names no other replica as the leader")
        self._roles.directive(core.DirectiveArrived(state, Order.FOLLOW))
        if self._roles.machine.state != state:
            return self._refuse("a newer state is known here")
        return self._answer(f"this replica follows broker {state.leader.broker_id}")

    async def _reseed(self, request: v1.ReseedRequest, _ctx: RequestContext) -> v1.ControlResponse:
        roles = self._roles
        if roles.role in (Role.LEADER, Role.PROMOTING):
            return self._refuse("a leader cannot reseed: switch over first")
        if not roles.may_reseed() and not request.accept_loss:
            return self._refuse(
                "the group may count on this replica's data: accept the loss (--accept-loss) if "
                "another replica has all of it"
            )
        steps = [
            "stop serving",
            "move the store aside; nothing is deleted",
            "copy everything again",
        ]
        if request.dry_run:
            return self._answer("this would be done", *steps)
        roles.reseed("an operator's order")
        return self._answer("reseed started", *steps)

    async def _cut_tail(
        self, request: v1.CutTailRequest, _ctx: RequestContext
    ) -> v1.ControlResponse:
        roles, log = self._roles, self._replica.log
        if roles.role in (Role.LEADER, Role.PROMOTING):
            return self._refuse("a leader's log cannot be cut: switch over first")
        if not log.log_start <= request.to < log.log_end:
            return self._refuse(f"the log reaches from {log.log_start} to {log.log_end}")
        if request.to < roles.confirm and not request.accept_loss:
            return self._refuse(
                f"bytes up to {roles.confirm} are confirmed: accept the loss to cut them"
            )
        size = log.log_end - request.to
        steps = [
            f"archive {size} bytes from {request.to} on",
            "cut the log",
            "reconnect to the leader",
        ]
        if request.dry_run:
            return self._answer("this would be done", *steps)
        roles.cut(
            request.to,
            self._replica.epoch,
            request.reason or "an operator's order",
            "an operator",
            accept_loss=request.accept_loss,
        )
        return self._answer("cut started", *steps)

    async def _replay_tail(
        self, request: v1.ReplayTailRequest, _ctx: RequestContext
    ) -> v1.ControlResponse:
        if self.services is None:
            return self._refuse("this replica cannot replay tails")
        return await self.services.replay_tail(request)

    async def _read_places(
        self, request: v1.ReadPlacesRequest, _ctx: RequestContext
    ) -> v1.ReadPlacesResponse:
        if self.services is None:
            text = "this replica has not started to serve records: try again"
            return v1.ReadPlacesResponse(code=v2.NOT_IMPLEMENTED, message=text)
        return await self.services.read_places(request)

    def _get_digests(self, request: v1.DigestsRequest, _ctx: RequestContext) -> Any:
        return self._started().get_digests(request)

    def _read_range(self, request: v1.ReadRangeRequest, _ctx: RequestContext) -> Any:
        return self._started().read_range(request)

    def _started(self) -> ReplicaServices:
        """Return the services. Raises RpcFailure before the broker is open."""
        if self.services is None:
            text = "this replica has not started to serve its segments: try again"
            raise RpcFailure(UNIMPLEMENTED, text)
        return self.services
