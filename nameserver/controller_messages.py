"""Codec between the controller's messages and the values of `ha/core/controller/events.py`."""

from ..ha.core.controller.events import (
    AlterIsr,
    Direct,
    Heartbeat,
    OperationAnswer,
    Order,
    Outcome,
    ProposalAnswer,
    Replica,
)
from ..ha.core.controller.group_controller import GroupController
from ..ha.state.state_codec import (
    addresses_from,
    policy_from,
    ref_from,
    ref_message,
    state_from,
    state_message,
)
from ..proto import v1, v2

_NS_PER_MS = 1_000_000

_ORDERS = {
    Order.NONE: v1.ORDER_NONE,
    Order.FOLLOW: v1.ORDER_FOLLOW,
    Order.PROMOTE: v1.ORDER_PROMOTE,
    Order.STEP_DOWN: v1.ORDER_STEP_DOWN,
    Order.HOLD: v1.ORDER_HOLD,
    Order.RESEED: v1.ORDER_RESEED,
}
_CODES = {
    Outcome.DONE: v2.OK,
    Outcome.REFUSED: v2.BAD_REQUEST,
    Outcome.FAILED: v2.HA_NOT_AVAILABLE,
}


def heartbeat_from(message: v1.BrokerBeat) -> Heartbeat:
    """Return the heartbeat of a message."""
    age_ms = message.heard_age_ms
    known = state_from(message.known) if message.HasField("known") else None
    return Heartbeat(
        broker_id=message.replica.broker_id,
        replica_uuid=message.replica.replica_uuid,
        incarnation=message.replica.incarnation,
        seq=message.seq,
        sent_ns=message.sent_ns,
        leads=message.role == v1.LEADER,
        addresses=addresses_from(message.addresses),
        promised_epoch=message.promised_epoch,
        last_epoch=message.last_epoch,
        log_start=message.log_start,
        log_end=message.log_end,
        flushed_end=min(message.flushed_end, message.log_end),
        confirm=message.confirm,
        suspect=message.suspect,
        heard_epoch=message.heard_epoch,
        heard_age_ns=age_ms * _NS_PER_MS if age_ms >= 0 else -1,
        known=known if known is not None and not known.is_new else None,
        policy=policy_from(message.policy) if message.HasField("policy") else None,
        learner=message.learner,
        log_is_empty=message.log_is_empty,
        priority=message.priority,
        drained=message.drained,
        no_room=message.no_room,
        leaving=message.leaving,
        lacks_quorum=message.lacks_quorum,
        leader_refused=message.leader_refused,
    )


def directive_message(direct: Direct) -> v1.Directive:
    """Return the message of a directive."""
    return v1.Directive(
        state=None if direct.state.is_new else state_message(direct.state),
        lease_for_seq=direct.lease_for_seq,
        lease_ms=direct.lease_ms,
        order=_ORDERS[direct.order],
        old_leader_is_dead=direct.old_leader_is_dead,
        active=direct.active,
        detail=direct.detail,
        drain_ms=direct.drain_ms,
        wait_ms=direct.wait_ms,
        next=None if direct.next is None else ref_message(direct.next),
    )


def proposal_from(request: v1.AlterIsrRequest, number: int) -> AlterIsr:
    """Return the proposal event with the request number of its answer."""
    return AlterIsr(
        number,
        ref_from(request.leader),
        request.epoch,
        request.state_version,
        request.proposal_seq,
        tuple(sorted(ref_from(ref) for ref in request.members)),
        request.confirm,
    )


def proposal_response(answer: ProposalAnswer) -> v1.AlterIsrResponse:
    """Return the response. An undecided proposal is "not active": the leader retries or asks
    elsewhere."""
    return v1.AlterIsrResponse(
        accepted=answer.accepted,
        state=None if answer.state.is_new else state_message(answer.state),
        reason=answer.reason,
        active=answer.decided,
    )


def operation_response(answer: OperationAnswer) -> v1.GroupsResponse:
    """Return the response to an operator's command."""
    return v1.GroupsResponse(
        code=_CODES[answer.outcome],
        message=answer.message,
        steps=answer.steps,
        lost_start=answer.lost_start,
        lost_end=answer.lost_end,
    )


def group_report(
    core: GroupController,
    phase: str,
    cuts: list[v1.ReportCutRequest],
    controller: str,
    now_ns: int,
) -> v1.GroupReport:
    """Return the operator's view of a group: its members and every other registered replica."""
    state = core.state
    report = v1.GroupReport(
        state=state_message(state),
        phase=phase,
        cuts=cuts,
        active=core.active,
        controller=controller,
    )
    ids = {member.broker_id for member in state.members} | set(core.replicas)
    for broker_id in sorted(ids):
        report.replicas.append(_replica_report(core, broker_id, now_ns))
    return report


def _replica_report(core: GroupController, broker_id: int, now_ns: int) -> v1.ReplicaReport:
    state = core.state
    row = core.replicas.get(broker_id)
    if row is not None:
        return v1.ReplicaReport(
            replica=_identity(
                core, broker_id, row.heartbeat.replica_uuid, row.heartbeat.incarnation
            ),
            addresses=_addresses(row.heartbeat.addresses),
            beat=_heartbeat_message(core, row),
            connected=bool(row.session) and not row.dead,
            silent_ms=max(0, now_ns - row.heard_ns) // _NS_PER_MS,
            in_sync=row.ref in state.in_sync,
            eligible=row.ref in state.eligible,
            overdue=row.overdue(now_ns, core.limits),
        )
    member = state.member(broker_id)
    assert member is not None
    seat = state.in_sync_ref(broker_id) or state.eligible_ref(broker_id)
    incarnation = seat.incarnation if seat is not None else 0
    return v1.ReplicaReport(
        replica=_identity(core, broker_id, member.replica_uuid, incarnation),
        addresses=_addresses(member.addresses),
        silent_ms=-1,
        in_sync=state.in_sync_ref(broker_id) is not None,
        eligible=state.eligible_ref(broker_id) is not None,
        overdue=True,
    )


def _identity(
    core: GroupController, broker_id: int, uuid: str, incarnation: int
) -> v1.ReplicaIdentity:
    return v1.ReplicaIdentity(
        cluster=core.state.cluster,
        group=core.state.group,
        broker_id=broker_id,
        replica_uuid=uuid,
        incarnation=incarnation,
    )


def _addresses(addresses: object) -> v1.ReplicaAddresses:
    return v1.ReplicaAddresses(
        client=addresses.client,  # type: ignore[attr-defined]
        ha=addresses.ha,  # type: ignore[attr-defined]
        metrics=addresses.metrics,  # type: ignore[attr-defined]
    )


def _heartbeat_message(core: GroupController, row: Replica) -> v1.BrokerBeat:
    heartbeat = row.heartbeat
    age = heartbeat.heard_age_ns
    return v1.BrokerBeat(
        replica=_identity(core, heartbeat.broker_id, heartbeat.replica_uuid, heartbeat.incarnation),
        addresses=_addresses(heartbeat.addresses),
        seq=heartbeat.seq,
        sent_ns=heartbeat.sent_ns,
        role=v1.LEADER if heartbeat.leads else v1.FOLLOWER,
        promised_epoch=heartbeat.promised_epoch,
        last_epoch=heartbeat.last_epoch,
        log_start=heartbeat.log_start,
        log_end=heartbeat.log_end,
        flushed_end=heartbeat.flushed_end,
        confirm=heartbeat.confirm,
        suspect=heartbeat.suspect,
        heard_epoch=heartbeat.heard_epoch,
        heard_age_ms=age // _NS_PER_MS if age >= 0 else -1,
        learner=heartbeat.learner,
        log_is_empty=heartbeat.log_is_empty,
        priority=heartbeat.priority,
        drained=heartbeat.drained,
        no_room=heartbeat.no_room,
    )
