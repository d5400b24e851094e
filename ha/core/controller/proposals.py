"""Decision on a leader's proposal for the in-sync set (pure; docs/formats/ha.md, rule R2).

A refusal must hold for every late copy of the same proposal, because the leader stops counting the
proposed members when it receives the refusal. Refusals by version, epoch or sequence number always
hold. Any other refusal is made final by *burning* the proposal: version and sequence number of the
state advance by compare-and-set before the answer is sent.
"""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from ..group_state import MEMBERS_MAX, GroupState, Member, Ref, ordered_refs
from .events import NUMBER_MAX, AlterIsr, Limits, Replica


class DecisionKind(Enum):
    ACCEPT = "accept"
    REFUSE = "refuse"  #: a late copy is refused too
    BURN = "burn"  #: refuse, after the state has advanced
    BEHIND = "behind"  #: the leader has a newer state than this controller: undecidable


class ProposalDecision(Struct, frozen=True):
    kind: DecisionKind
    reason: str = ""


def decide_proposal(
    state: GroupState,
    proposal: AlterIsr,
    replicas: Mapping[int, Replica],
    now_ns: int,
    limits: Limits,
) -> ProposalDecision:
    """Return the decision on one proposal."""
    if proposal.epoch > state.epoch or proposal.state_version > state.version:
        return ProposalDecision(
            DecisionKind.BEHIND, "this controller does not have that state yet; try again"
        )
    if late := _late(state, proposal):
        return ProposalDecision(DecisionKind.REFUSE, late)
    if wrong := _wrong(proposal):
        return ProposalDecision(DecisionKind.BURN, wrong)
    for ref in proposal.members:
        if ref in state.in_sync:
            continue
        disqualification = _join_refusal(ref, replicas.get(ref.broker_id), now_ns, limits)
        if not disqualification and state.member(ref.broker_id) is None:
            disqualification = "is not a member of the group"
        if disqualification:
            return ProposalDecision(DecisionKind.BURN, f"broker {ref.broker_id} {disqualification}")
    return ProposalDecision(DecisionKind.ACCEPT)


def _late(state: GroupState, proposal: AlterIsr) -> str:
    """Return a refusal that every later state repeats, or an empty string."""
    if max(proposal.proposal_seq, proposal.confirm) > NUMBER_MAX:
        return "a sequence number or a position is larger than any group can have"
    if proposal.epoch != state.epoch:
        return f"epoch {proposal.epoch} is not the group's: {state.epoch}"
    if proposal.leader != state.leader:
        return f"{proposal.leader} does not lead epoch {state.epoch}"
    if proposal.state_version != state.version:
        return f"version {proposal.state_version} is not the newest: {state.version}"
    if proposal.proposal_seq <= state.last_proposal_seq:
        return f"proposal {proposal.proposal_seq} is not above {state.last_proposal_seq}"
    return ""


def _wrong(proposal: AlterIsr) -> str:
    if proposal.leader not in proposal.members:
        return "the proposed set leaves the leader out"
    if ordered_refs(proposal.members) != tuple(sorted(proposal.members)):
        return "the proposed set names a replica twice"
    if len(proposal.members) > MEMBERS_MAX:
        return f"the proposed set has more than {MEMBERS_MAX} members"
    return ""


def _join_refusal(ref: Ref, replica: Replica | None, now_ns: int, limits: Limits) -> str:
    """Return why this incarnation cannot join now, or an empty string."""
    if replica is None or replica.ref != ref:
        return f"is not registered with incarnation {ref.incarnation}"
    if not replica.alive(now_ns, limits):
        return "is not connected to the controller"
    if replica.heartbeat.learner:
        return "is a learner"
    if replica.heartbeat.leaving:
        return "is stopping"
    return ""


def accepted(state: GroupState, proposal: AlterIsr, replicas: Mapping[int, Replica]) -> GroupState:
    """Return the state with the proposed set; the version stays.

    While fewer than the minimum are in sync nothing is confirmed, so a member that leaves stays
    eligible.
    """
    members = tuple(sorted(proposal.members))
    ids = {ref.broker_id for ref in members}
    left = [ref for ref in (*state.in_sync, *state.eligible) if ref.broker_id not in ids]
    for ref in members:
        if ref not in state.in_sync and (member := state.member(ref.broker_id)) is not None:
            state = state.with_member(_joined(member, replicas[ref.broker_id], proposal))
    floor = state.confirm_floor
    return state.with_(
        version=state.version,
        in_sync=members,
        eligible=ordered_refs(left) if len(members) < state.policy.min_in_sync else (),
        last_proposal_seq=proposal.proposal_seq,
        confirm_floor=max(floor, proposal.confirm) if state.policy.sync else floor,
        accept_loss=state.accept_loss and len(members) < len(state.members),
    )


def _joined(member: Member, replica: Replica, proposal: AlterIsr) -> Member:
    """Return the member as it joins.

    It is not suspect, because this incarnation reached the leader's confirm offset (I11). It stays
    partial while its newest heartbeat does not show where its log begins.
    """
    unseen = replica.heartbeat.log_is_empty and proposal.confirm > 0
    return Member(
        member.broker_id,
        member.replica_uuid,
        member.addresses,
        suspect=False,
        partial=member.partial or unseen,
    )


def burned(state: GroupState, proposal: AlterIsr) -> GroupState:
    """Return the state after a final refusal; the version stays."""
    return state.with_(version=state.version, last_proposal_seq=proposal.proposal_seq)
