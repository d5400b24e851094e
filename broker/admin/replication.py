"""Replication of this node's group, for operators: its state, and its changes by the controller.

The node asks the nameservers and the replicas with its own token, so that a caller needs only the
user's right on the cluster. Any node of the group serves it, because a group without a leader needs
it most. Each call opens its own channels: these calls are rare. Nothing is kept.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ...ha.rejoin.replay_plan import ReplayPlan
from ...ha.stream.node_call import NodeCallError, call_node
from ...nodes.addresses import host_port
from ...proto import paths, v1, v2
from ...proto.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from ...front.context import RequestContext
    from ...nodes.node_links import NodeLinks
    from ..base.cluster_view import ClusterView
    from ..base.config import BrokerConfig

R = TypeVar("R", bound="Message")

#: A page that is drawn every second waits no longer for a paused nameserver or replica.
_LOOK_S: Final = 1.0
#: The controller's own steps beside the wait for the next leader.
_STEPS_S: Final = 15.0
#: The controller's limit of that wait.
_CATCH_UP_MAX_MS: Final = 60_000
_REPLAY_S: Final = 600.0


class _Reports(NamedTuple):
    """What the nameservers report of the group."""

    #: Of the active controller, or else the newest; None: the group is static, or none answers.
    best: v1.GroupReport | None
    silent: list[str]


class ReplicationAdmin:
    """The handlers."""

    def __init__(self, config: BrokerConfig, links: NodeLinks, cluster: ClusterView) -> None:
        self._group = config.broker_name
        self._nameservers = [host_port(*each) for each in config.namesrv_addresses()]
        self._links = links
        self._cluster = cluster

    async def describe(
        self, request: v1.DescribeReplicationRequest, ctx: RequestContext
    ) -> v1.DescribeReplicationResponse:
        """Return the controller's report and the status of every replica."""
        reports = await self._reports()
        return v1.DescribeReplicationResponse(
            code=v2.OK,
            message="OK",
            group=self._group,
            report=reports.best,
            replicas=await self._replicas(reports.best),
            silent_nameservers=reports.silent,
        )

    async def change(
        self, request: v1.ChangeReplicationRequest, ctx: RequestContext
    ) -> v1.ChangeReplicationResponse:
        """Carry out a change, or return its steps. Raises WireError."""
        what = request.WhichOneof("change")
        report = (await self._reports()).best
        if what == "replay":
            return await self._replay(request.replay, report, dry_run=request.dry_run)
        if what is None:
            raise WireError(v2.BAD_REQUEST, "the request names no change")
        if report is None:
            text = "no controller decides for this group: use `cometmq ha`"
            raise WireError(v2.HA_NOT_AVAILABLE, text)
        if not report.active:
            text = "no active controller of this group answers: try again"
            raise WireError(v2.HA_NOT_AVAILABLE, text)
        if what == "drain":
            return await self._drain(request.drain.drain, report, dry_run=request.dry_run)
        wait_s = _STEPS_S
        asked: v1.SwitchoverRequest | v1.SetPolicyRequest
        if what == "switchover":
            path, asked = paths.SWITCHOVER, v1.SwitchoverRequest()
            asked.CopyFrom(request.switchover)
            asked.max_wait_ms = min(max(0, asked.max_wait_ms), _CATCH_UP_MAX_MS)
            wait_s += asked.max_wait_ms / 1_000
        else:
            path, asked = paths.SET_POLICY, v1.SetPolicyRequest()
            asked.CopyFrom(request.policy)
        asked.group, asked.dry_run = self._group, request.dry_run
        return await self._decide(report, path, asked, wait_s)

    # --- changes ----------------------------------------------------------------------------------

    async def _drain(
        self, drain: bool, report: v1.GroupReport, *, dry_run: bool
    ) -> v1.ChangeReplicationResponse:
        if not dry_run:
            asked = v1.SetDrainRequest(group=self._group, drain=drain)
            return await self._decide(report, paths.SET_DRAIN, asked, _STEPS_S)
        if report.state.drain == drain:
            already = "is drained already" if drain else "accepts messages already"
            raise WireError(v2.BAD_REQUEST, f"group {self._group} {already}")
        others = sorted(set(self._cluster.groups) - {self._group})
        if not drain:
            steps = ["producers get this group in their routes again"]
        elif others:
            steps = [
                f"producers send to the other groups: {', '.join(others)}",
                "consumers receive what this group still holds",
            ]
        else:
            steps = [
                "there is no other group, so producers go on to send to this one",
            ]
        return v1.ChangeReplicationResponse(code=v2.OK, message="this would be done", steps=steps)

    async def _decide(
        self, report: v1.GroupReport, path: str, request: Message, timeout_s: float
    ) -> v1.ChangeReplicationResponse:
        answer = await self._call(report.controller, path, request, v1.GroupsResponse, timeout_s)
        if answer.code != v2.OK:
            raise WireError(answer.code, answer.message)
        return v1.ChangeReplicationResponse(code=v2.OK, message=answer.message, steps=answer.steps)

    async def _replay(
        self, request: v1.ReplayTails, report: v1.GroupReport | None, *, dry_run: bool
    ) -> v1.ChangeReplicationResponse:
        replicas = await self._replicas(report)
        chosen = [one for one in replicas if request.broker_id in (-1, one.broker_id)]
        if not chosen:
            raise WireError(v2.NOT_FOUND, f"the group has no broker with id {request.broker_id}")
        answering = [one.status.tails for one in replicas if one.HasField("status")]
        plan = ReplayPlan(answering, request.file_id)
        done = v1.ChangeReplicationResponse(code=v2.OK, message="replayed")
        for one in chosen:
            name = f"broker {one.broker_id}"
            if not one.HasField("status"):
                done.steps.append(f"{name} does not answer: {one.error}")
                continue
            asked = plan.next(name, one.status.tails, dry_run=dry_run)
            done.steps.extend(asked.steps)
            if asked.request is None:
                continue
            answer = await self._call(
                one.addresses.ha, paths.REPLAY_TAIL, asked.request, v1.ControlResponse, _REPLAY_S
            )
            if answer.code != v2.OK:
                raise WireError(answer.code, f"{name}: {answer.message}")
            done.steps.extend(f"{name}: {step}" for step in answer.steps)
            done.messages += answer.messages
        return done

    # --- looks ------------------------------------------------------------------------------------

    async def _reports(self) -> _Reports:
        request = v1.GetGroupRequest(group=self._group)
        answers = await self._ask_all(
            self._nameservers, paths.GET_GROUPS, request, v1.GroupsResponse
        )
        best: v1.GroupReport | None = None
        for address, answer in answers.items():
            if isinstance(answer, NodeCallError):
                continue
            for report in answer.groups:
                report.controller = address
                if report.state.version and (best is None or _weight(report) > _weight(best)):
                    best = report
        silent = [
            address
            for address, answer in answers.items()
            if isinstance(answer, NodeCallError) and answer.silent
        ]
        return _Reports(best, silent)

    async def _replicas(self, report: v1.GroupReport | None) -> list[v1.ReplicaView]:
        """Return every replica with its own status, by broker id."""
        if report is not None:
            views = [
                v1.ReplicaView(broker_id=one.replica.broker_id, addresses=one.addresses)
                for one in report.replicas
            ]
        else:
            views = [
                v1.ReplicaView(
                    broker_id=one.broker_id,
                    addresses=v1.ReplicaAddresses(
                        client=one.client, ha=one.ha, metrics=one.metrics
                    ),
                    leads=one.is_leader,
                )
                for one in self._cluster.own().members
            ]
        addresses = [one.addresses.ha for one in views if one.addresses.ha]
        request = v1.StatusRequest()
        statuses = await self._ask_all(addresses, paths.REPLICA_STATUS, request, v1.ReplicaStatus)
        for one in views:
            answer = statuses.get(one.addresses.ha)
            if isinstance(answer, v1.ReplicaStatus):
                one.status.CopyFrom(answer)
            else:
                one.error = str(answer or "its replication port is unknown")
        return sorted(views, key=lambda one: one.broker_id)

    async def _ask_all(
        self, addresses: Sequence[str], path: str, request: Message, kind: type[R]
    ) -> dict[str, R | NodeCallError]:
        async def ask(address: str) -> R | NodeCallError:
            try:
                return await call_node(self._links, address, path, request, kind, timeout_s=_LOOK_S)
            except NodeCallError as error:
                return error

        answers = await asyncio.gather(*map(ask, addresses))
        return dict(zip(addresses, answers, strict=True))

    async def _call(
        self, address: str, path: str, request: Any, kind: type[R], timeout_s: float
    ) -> R:
        try:
            return await call_node(self._links, address, path, request, kind, timeout_s=timeout_s)
        except NodeCallError as error:
            raise WireError(v2.PROXY_TIMEOUT, str(error)) from error


def _weight(report: v1.GroupReport) -> tuple[bool, int]:
    return report.active, report.state.version
