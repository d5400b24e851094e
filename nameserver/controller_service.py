"""Controller service `cometmq.v1.GroupController`: sessions of brokers, commands of operators.

Answers to operators have a code, a sentence and the completed steps. An inactive nameserver refuses
commands and names the active one if it is known.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..front.service import Kind, Method, Outbound, status_failure
from ..ha.core.controller.directives import explain, phase
from ..ha.core.controller.events import (
    ForceElect,
    OperationAnswer,
    ProposalAnswer,
    SetDrain,
    SetPolicy,
    Switchover,
)
from ..nodes.node_links import NodeLinks
from ..proto import paths, v1, v2
from ..proto.errors import RpcFailure, WireError
from .controller import SESSIONS_MAX, Controller
from .controller_messages import (
    group_report,
    operation_response,
    proposal_from,
    proposal_response,
)
from .controller_session import BrokerSession, HostedGroup
from .node_method import node_method

if TYPE_CHECKING:
    from ..front.context import RequestContext

logger = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000
_RESOURCE_EXHAUSTED = 8


class ControllerService:
    """The handlers; plain functions on the event loop."""

    def __init__(self, controller: Controller, links: NodeLinks, peers: Sequence[str]) -> None:
        self._controller = controller
        self._peers = peers
        self._links = links
        self._session_number = 0

    def methods(self) -> list[Method]:
        """Return the rows of the service table."""
        links = self._links
        brokers = (
            (paths.ALTER_ISR, v1.AlterIsrRequest, v1.AlterIsrResponse, self.alter_isr),
            (paths.REPORT_CUT, v1.ReportCutRequest, v1.ReportCutResponse, self.report_cut),
            (
                paths.PROCESS_EXITED,
                v1.ProcessExitedRequest,
                v1.ProcessExitedResponse,
                self.process_exited,
            ),
        )
        groups = v1.GroupsResponse
        operators = (
            (paths.SWITCHOVER, v1.SwitchoverRequest, self.switchover),
            (paths.FORCE_ELECT, v1.ForceElectRequest, self.force_elect),
            (paths.SET_DRAIN, v1.SetDrainRequest, self.set_drain),
            (paths.SET_POLICY, v1.SetPolicyRequest, self.set_policy),
            (paths.GET_GROUPS, v1.GetGroupRequest, self.get_groups),
        )
        beat, directive = v1.BrokerBeat, v1.Directive
        return [
            *(
                node_method(path, request, response, handler, links)
                for path, request, response, handler in brokers
            ),
            *(
                node_method(path, request, groups, handler, links, fail=status_failure(groups))
                for path, request, handler in operators
            ),
            node_method(
                paths.CONTROLLER_SESSION, beat, directive, self.session, links, kind=Kind.BIDI
            ),
        ]

    # --- brokers ----------------------------------------------------------------------------------

    def session(self, ctx: "RequestContext", outbound: Outbound) -> BrokerSession:
        """Open a broker's session."""
        controller = self._controller
        if len(controller.sessions) >= SESSIONS_MAX:
            text = f"this nameserver already has {SESSIONS_MAX} sessions, its limit"
            raise RpcFailure(_RESOURCE_EXHAUSTED, text)
        self._session_number += 1
        session = BrokerSession(controller, self._session_number, ctx.peer, outbound)
        controller.sessions[session.number] = session
        return session

    def alter_isr(self, request: v1.AlterIsrRequest, ctx: "RequestContext") -> Any:
        """Handle a leader's proposal for the in-sync set."""
        group = self._controller.groups.get(request.group)
        if group is None or group.core.state.cluster != request.cluster:
            return v1.AlterIsrResponse(reason=f"group {request.group} is not known here")

        def respond(answer: ProposalAnswer) -> v1.AlterIsrResponse:
            logger.info(
                "isr.%s group=%s seq=%d members=%s reason=%s",
                "altered" if answer.accepted else "refused" if answer.decided else "undecided",
                request.group,
                request.proposal_seq,
                ",".join(str(ref.broker_id) for ref in request.members),
                answer.reason or "-",
            )
            return proposal_response(answer)

        answer = self._controller.request(group, lambda number: proposal_from(request, number))
        return _respond_when_done(answer, respond)

    def report_cut(
        self, request: v1.ReportCutRequest, ctx: "RequestContext"
    ) -> v1.ReportCutResponse:
        """Handle a replica's report of an archived and cut diverged tail."""
        group = self._controller.groups.get(request.replica.group)
        if group is None:
            raise RpcFailure(5, f"group {request.replica.group} is not known here")
        if all(not _same_cut(request, cut) for cut in group.cuts):
            group.cuts.append(request)
            logger.warning(
                "tail.cut group=%s broker_id=%d start=%d end=%d messages=%d answered_ok=%d"
                " below_confirm=%s archive=%s",
                request.replica.group,
                request.replica.broker_id,
                request.start,
                request.end,
                request.messages,
                request.below_local_ok,
                request.below_confirm,
                request.archive,
            )
        return v1.ReportCutResponse()

    def process_exited(
        self, request: v1.ProcessExitedRequest, ctx: "RequestContext"
    ) -> v1.ProcessExitedResponse:
        """Handle a supervisor's report that a broker's process ended."""
        return v1.ProcessExitedResponse(known=self._controller.process_exited(request))

    # --- operators --------------------------------------------------------------------------------

    def switchover(self, request: v1.SwitchoverRequest, ctx: "RequestContext") -> Any:
        """Switch the leader over without loss."""
        group = self._operate(request.group, ctx, "switchover")
        wait_ns = max(0, request.max_wait_ms) * _NS_PER_MS
        return self._answered(
            group, lambda number: Switchover(number, request.to, wait_ns, request.dry_run)
        )

    def force_elect(self, request: v1.ForceElectRequest, ctx: "RequestContext") -> Any:
        """Force the election of a replica, with possible loss."""
        group = self._operate(request.group, ctx, "force_elect")
        return self._answered(
            group,
            lambda number: ForceElect(
                number, request.to, request.accept_loss, request.reason, request.dry_run
            ),
        )

    def set_drain(self, request: v1.SetDrainRequest, ctx: "RequestContext") -> Any:
        """Direct producers to other groups, or back."""
        group = self._operate(request.group, ctx, "set_drain")
        return self._answered(group, lambda number: SetDrain(number, request.drain))

    def set_policy(self, request: v1.SetPolicyRequest, ctx: "RequestContext") -> Any:
        """Change the policy from the next epoch on."""
        group = self._operate(request.group, ctx, "set_policy")
        sync = request.sync if request.HasField("sync") else None
        return self._answered(
            group, lambda number: SetPolicy(number, sync, request.min_in_sync, request.dry_run)
        )

    def get_groups(self, request: v1.GetGroupRequest, ctx: "RequestContext") -> v1.GroupsResponse:
        """Return the reports of one group or of all groups."""
        controller = self._controller
        names = [request.group] if request.group else sorted(controller.groups)
        response = v1.GroupsResponse(code=v2.OK, message="OK", peers=self._peers)
        now_ns = controller.clock.steady_ns()
        for name in names:
            group = self._group(name)
            core = group.core
            report = group_report(
                core, phase(core, now_ns), list(group.cuts), controller.name, now_ns
            )
            response.groups.append(report)
            response.steps.append(f"{name}: {explain(core, now_ns)}")
        if not controller.active:
            response.message = f"this nameserver is not active{controller.hint()}"
        return response

    # --- help -------------------------------------------------------------------------------------

    def _group(self, name: str) -> HostedGroup:
        group = self._controller.groups.get(name)
        if group is None:
            known = ", ".join(sorted(self._controller.groups)[:8]) or "none"
            raise WireError(
                v2.NOT_FOUND, f"no group {name} has registered with this controller; known: {known}"
            )
        return group

    def _operate(self, name: str, ctx: "RequestContext", what: str) -> HostedGroup:
        group = self._group(name)
        logger.info("operator.%s group=%s peer=%s", what, name, ctx.peer)
        if not self._controller.active:
            raise WireError(
                v2.HA_NOT_AVAILABLE,
                f"this nameserver is not active{self._controller.hint()}",
            )
        return group

    def _answered(self, group: HostedGroup, event: Any) -> Any:
        answer = self._controller.request(group, event)

        def respond(answer: OperationAnswer) -> v1.GroupsResponse:
            core = group.core
            response = operation_response(answer)
            controller = self._controller
            now_ns = controller.clock.steady_ns()
            response.groups.append(
                group_report(core, phase(core, now_ns), list(group.cuts), controller.name, now_ns)
            )
            return response

        return _respond_when_done(answer, respond)


def _respond_when_done(answer: Any, respond: Any) -> Any:
    """Return a coroutine that responds once the future is done."""

    async def wait() -> Any:
        return respond(await answer)

    return wait()


def _same_cut(one: v1.ReportCutRequest, other: v1.ReportCutRequest) -> bool:
    return (one.replica, one.archive, one.start, one.end) == (
        other.replica,
        other.archive,
        other.start,
        other.end,
    )
