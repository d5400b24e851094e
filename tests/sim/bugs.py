"""Planted bugs: the product with exactly one rule removed, each with the faults that can reveal it.

The first nine are those of docs/formats/ha.md, appendix A; the others remove rules of this design.
A simulation that misses them within `SEEDS` seeds would miss similar bugs in the product.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cometmq.ha.core import follower_events as events
from cometmq.ha.core import hello, in_sync
from cometmq.ha.core import (
    role_machine as roles,
)
from cometmq.ha.core.controller import (
    events as heard,
)
from cometmq.ha.core.controller.group_controller import GroupController
from cometmq.ha.core.controller.operation import Operation
from cometmq.ha.core.controller.operations import Operations
from cometmq.ha.core.controller.policy_change import requested_policy
from cometmq.ha.core.epochs import EpochHistory
from cometmq.ha.core.follower import Follower
from cometmq.ha.core.group_state import Ref
from cometmq.ha.core.in_sync import InSyncSet
from cometmq.ha.core.lease import Lease
from cometmq.ha.core.member import Member
from cometmq.ha.core.pending_isr import Proposals
from cometmq.ha.core.role_machine import RoleMachine

from .parts import Parts, ShellRules

#: A bug must be found within this many seeds of its own schedule.
SEEDS = 50


@dataclass(frozen=True)
class Bug:
    name: str
    parts: Parts
    bias: str
    fixed: dict[str, Any] = field(default_factory=dict)  #: settings in which it can show


SYNC_MEMORY = {"is_sync": True, "sync_flush": False, "power_losses": True, "clock_steps": False}
SYNC_DISK = {"is_sync": True, "sync_flush": True, "power_losses": True, "clock_steps": False}
SYNC = {"is_sync": True, "clock_steps": False}
PAIR = {"is_sync": True, "clock_steps": False, "replicas": 2, "min_in_sync": 2}
ONE_SIZE = {"clock_steps": False, "one_size": True}
QUORUM = {
    **{"is_sync": True, "clock_steps": False, "replicas": 3, "min_in_sync": 2},
    "rejects": False,
}
ASYNC = {"is_sync": False, "clock_steps": False}


class CountsUnflushed(InSyncSet):
    """A follower's written end counts in a SYNC_FLUSH group."""

    def position(self, member: Member) -> int:
        return member.written_end


def cut_to_own_confirm(
    follower: hello.FollowerFacts, leader: hello.LeaderFacts
) -> hello.Accept | hello.CutTo | hello.Reject:
    """Truncate to the follower's confirm offset, regardless of the histories (KIP-101)."""
    verdict = hello.decide(follower, leader)
    if isinstance(verdict, hello.Reject):
        return verdict
    start = min(follower.log_end, leader.log_end, max(follower.confirm, 0))
    if follower.log_end <= leader.log_end and start == follower.log_end:
        return hello.Accept(start, 0, 0)
    if follower.log_end > start:
        return hello.CutTo(start, 0, 0)
    return hello.Accept(start, 0, 0)


def ignores_histories(
    follower: hello.FollowerFacts, leader: hello.LeaderFacts
) -> hello.Accept | hello.CutTo | hello.Reject:
    """Take equal lengths for equal logs, and compare nothing (classic HA)."""
    verdict = hello.decide(
        replace(follower, epochs=None, log_end=min(follower.log_end, leader.log_end)),
        replace(leader, epochs=None),
    )
    if isinstance(verdict, hello.Reject) or follower.log_end <= leader.log_end:
        if isinstance(verdict, hello.Accept):
            return hello.Accept(verdict.start_offset, 0, 0)
        return verdict
    return hello.CutTo(leader.log_end, 0, 0)


class RefusesEqualStart(EpochHistory):
    """RocketMQ's rule: an epoch that starts where the last one starts is not entered."""

    def assign(self, epoch: int, start: int) -> None:
        if self.entries and start <= self.entries[-1].start:
            return
        super().assign(epoch, start)


class CountsCommittedOnly(Proposals):
    """A member proposed for removal stops counting before the proposal is decided."""

    @property
    def effective(self) -> frozenset[Ref]:
        return self.wanted if self.undecided else self.committed

    wanted: frozenset[Ref] = frozenset()

    def propose(self, wanted: Any, now_ns: int) -> Any:
        members = frozenset(wanted)
        proposal = super().propose(members, now_ns)
        if proposal is not None:
            self.wanted = members
        return proposal


class IgnoresPromise(Follower):
    """Accept frames of a leader below the promise."""

    def _is_stale(self, epoch: int, what: str, effects: list[events.Effect]) -> bool:
        return False

    def _on_promised(self, event: events.Promised, effects: list[events.Effect]) -> None:
        self.promised = max(self.promised, event.epoch)

    def validate(self) -> None:
        return


class ForgetsEarlierIncarnations(Proposals):
    """Do not wait for a member that returned in a later incarnation before the state names it."""

    def seat_holders(self, members: Mapping[int, Member]) -> tuple[list[Member], bool]:
        found, _ = super().seat_holders(members)
        later = [m.broker_id for m in members.values() if m.ref not in self.effective]
        seats = {ref.broker_id for ref in self.effective - {self.me}}
        return found, bool(self.version) and seats <= {*later, *(m.broker_id for m in found)}


class TakesLateProposals(GroupController):
    """Ignore version and sequence of a proposal."""

    def _decide_proposal(
        self, proposal: heard.AlterIsr, now_ns: int, effects: list[heard.Effect]
    ) -> None:
        if proposal.epoch == self.state.epoch:
            proposal = replace(
                proposal,
                state_version=self.state.version,
                proposal_seq=max(proposal.proposal_seq, self.state.last_proposal_seq + 1),
            )
        super()._decide_proposal(proposal, now_ns, effects)


class NeedsNoLease(Lease):
    def may_write(self, now_ns: int) -> bool:
        return True


class DoesNotWait(RoleMachine):
    """A promoted leader writes immediately, without waiting for the old one's permission to end."""

    def _lead_when_due(self, now_ns: int, effects: list[roles.Effect]) -> None:
        self.lease.write_after_ns = now_ns
        super()._lead_when_due(now_ns, effects)


class CountsArrival(InSyncSet):
    """Take an acknowledgement as fresh as its arrival, not as the frame that it had read."""

    def on_event(self, event: in_sync.Event, now_ns: int) -> list[in_sync.Effect]:
        if isinstance(event, in_sync.Acked):
            event.echo_ns = now_ns
        return super().on_event(event, now_ns)


class LeaseFromArrival(Lease):
    """Count a lease from the arrival of the answer."""

    def renew(self, sent_ns: int, lease_ns: int) -> None:
        super().renew(sent_ns + lease_ns, lease_ns)


class ElectsWithoutGrace(GroupController):
    """A controller that has just started treats silence as failure."""

    def on_event(self, event: heard.Event, now_ns: int) -> list[heard.Effect]:
        self.grace_until_ns = 0
        return super().on_event(event, now_ns)


class LetsGoAtOnce(InSyncSet):
    """A follower that announces its stop does not count any more, before the state excludes it."""

    def _count_members(self) -> None:
        super()._count_members()
        self._counting = [member for member in self._counting if not member.leaving]

    def on_event(self, event: in_sync.Event, now_ns: int) -> list[in_sync.Effect]:
        if isinstance(event, in_sync.Acked) and event.leaving:
            member = self.sessions.get(event.session)
            if member is not None and not member.leaving:
                member.leaving = True
                self._count_members()
        return super().on_event(event, now_ns)


class LeasesBeyondItsClaim(GroupController):
    """Grant whole leases until the right to decide ends."""

    def on_event(self, event: heard.Event, now_ns: int) -> list[heard.Effect]:
        effects = super().on_event(event, now_ns)
        self.claim_until_ns = heard.FOREVER_NS
        return effects


class TakesReleasedForExpired(GroupController):
    """Judge a leader at once after a release of the claim, though its lease may run."""

    def on_event(self, event: heard.Event, now_ns: int) -> list[heard.Effect]:
        if isinstance(event, heard.ActiveChanged):
            event = replace(event, leases_are_over=True)
        return super().on_event(event, now_ns)


class TrustsAnyHeartbeat(GroupController):
    """Any heartbeat of a former leader proves after an election that it does not write."""

    def _resolve_doubts(self, now_ns: int, effects: list[heard.Effect]) -> None:
        former = [d.ref.broker_id for d in self._doubts.incarnations or ()]
        rows = [self.replicas[i] for i in former if i in self.replicas]
        if rows and all(row.heard_ns > self.elected_ns for row in rows):
            self.proven_epoch = self.state.epoch
        super()._resolve_doubts(now_ns, effects)


class HastyOperations(Operations):
    """Elect the successor of a leader without its quorum before it has stepped down."""

    def _step_down(self, operation: Operation, now_ns: int, effects: list[heard.Effect]) -> None:
        target = self._live_target(operation, now_ns)
        if operation.is_step_aside and target is not None:
            self._elect(operation, target, now_ns, effects)
            return
        super()._step_down(operation, now_ns, effects)


class StepsAsideInHaste(GroupController):
    def __init__(self, cluster: str, group: str, limits: heard.Limits) -> None:
        super().__init__(cluster, group, limits)
        self.operations = HastyOperations(self)


class TrustsRefusals(GroupController):
    """A refused connection proves the end of a leader in asynchronous groups too."""

    def _decide(self, now_ns: int, effects: list[heard.Effect]) -> None:
        state = self.state
        seats = [row for row in self.replicas.values() if row.ref in state.in_sync]
        others = [row.heartbeat for row in seats if row.ref != state.leader]
        leader = self.leader_row(state)
        if leader is not None and others and all(h.leader_refused for h in others):
            leader.dead, leader.dead_ns = True, now_ns
        super()._decide(now_ns, effects)


class ChangesThePolicyAtOnce(GroupController):
    """Change the policy within the running epoch, whose leader counts by the former one."""

    def on_event(self, event: heard.Event, now_ns: int) -> list[heard.Effect]:
        if not isinstance(event, heard.SetPolicy) or self.pending is not None:
            return super().on_event(event, now_ns)
        effects: list[heard.Effect] = []
        if self.active and self.is_read and not self.state.is_new:
            new = self.state.with_(policy=requested_policy(self.state, event))
            self.cas(new, "at once", effects)
        return effects


class JoinsBelowConfirm(InSyncSet):
    """Join when the follower is close to the end."""

    def _has_arrived(self, member: Member) -> bool:
        return member.verified


class ClearsSuspectAtOnce(Follower):
    def _on_compared(self, event: events.TailCompared, effects: list[events.Effect]) -> None:
        super()._on_compared(event, effects)
        if self.suspect:
            self.suspect = False
            effects.append(events.SuspectCleared())


class LabelsFromBeats(Follower):
    """Enter an epoch when it is announced, not with its first data (rule 2 of section 6.5)."""

    def on_event(self, event: events.Event, now_ns: int) -> list[events.Effect]:
        effects = super().on_event(event, now_ns)
        new = isinstance(event, events.HeartbeatArrived) and event.epoch > self.label
        if new and self.history is not None:
            self.history.assign(self.epoch, self.log_end)
            self.label = self.epoch
            effects.append(events.AssignEpoch(self.epoch, self.log_end))
        return effects


class KeepsEmptyEpochs(Follower):
    """An epoch without a byte stays in the history on disk, and labels bytes of an older one."""

    def _accept_label(self, event: events.ChunkArrived, effects: list[events.Effect]) -> bool:
        before = self.label
        taken = super()._accept_label(event, effects)
        if event.epoch == before:
            effects[:] = [e for e in effects if not isinstance(e, events.AssignEpoch)]
        return taken


def _shell(**removed: bool) -> Parts:
    return Parts(rules=ShellRules(**removed))


_APPENDIX_A: tuple[Bug, ...] = (
    Bug("suspect rule", _shell(suspects_power_loss=False), "power", SYNC_MEMORY),
    Bug("acknowledgement only after the flush", Parts(in_sync=CountsUnflushed), "power", SYNC_DISK),
    Bug("cut by epochs", Parts(decide=cut_to_own_confirm), "cuts", SYNC),
    Bug("durable suspect mark", _shell(suspect_mark_is_durable=False), "suspects", SYNC_MEMORY),
    Bug("zeroing of the cut tail", _shell(zeroes_what_it_cuts=False), "cuts", ONE_SIZE),
    Bug("replacing entries of equal start", Parts(history=RefusesEqualStart), "elections", SYNC),
    Bug("union of committed and proposed", Parts(proposals=CountsCommittedOnly), "isr", SYNC),
    Bug("epoch check on frames", Parts(follower=IgnoresPromise), "fences", SYNC),
    Bug("versions and sequences of proposals", Parts(controller=TakesLateProposals), "isr", SYNC),
)
_OURS: tuple[Bug, ...] = (
    Bug("lease", Parts(lease=NeedsNoLease), "leases", ASYNC),
    Bug("waiting after a promotion", Parts(role_machine=DoesNotWait), "leases", ASYNC),
    Bug("echoed time stamps", Parts(in_sync=CountsArrival), "leases", ASYNC),
    Bug("lease from the heartbeat's departure", Parts(lease=LeaseFromArrival), "leases", ASYNC),
    Bug(
        "grace after a controller's start",
        Parts(controller=ElectsWithoutGrace),
        "controllers",
        ASYNC,
    ),
    Bug("waiting for later incarnations", Parts(proposals=ForgetsEarlierIncarnations), "isr", SYNC),
    Bug("joining only with everything confirmed", Parts(in_sync=JoinsBelowConfirm), "isr", SYNC),
    Bug(
        "suspect until confirm is reached",
        Parts(follower=ClearsSuspectAtOnce),
        "power",
        SYNC_MEMORY,
    ),
    Bug("epochs only with data", Parts(follower=LabelsFromBeats), "elections", SYNC),
    Bug("no labels from empty epochs", Parts(follower=KeepsEmptyEpochs), "heirs", PAIR),
    Bug("comparison of logs", Parts(decide=ignores_histories), "cuts", SYNC),
    Bug(
        "draining before a planned change",
        _shell(drains_before_a_planned_change=False),
        "handovers",
        ASYNC,
    ),
    Bug(
        "leases within the claim",
        Parts(controller=LeasesBeyondItsClaim),
        "hosts",
        {**ASYNC, "nameservers": 3},
    ),
    Bug(
        "waiting after a released claim",
        Parts(controller=TakesReleasedForExpired),
        "releases",
        {**ASYNC, "nameservers": 3},
    ),
    Bug(
        "proof of a former leader's end",
        Parts(controller=TrustsAnyHeartbeat),
        "failovers",
        {**SYNC, "rejects": False},
    ),
    Bug("step-down before a successor", Parts(controller=StepsAsideInHaste), "quorums", QUORUM),
    Bug(
        "refusals only in synchronous groups",
        Parts(controller=TrustsRefusals),
        "rejects",
        {**ASYNC, "rejects": True},
    ),
    Bug("leaving by a change of the state", Parts(in_sync=LetsGoAtOnce), "stops", SYNC),
    Bug("one policy an epoch", Parts(controller=ChangesThePolicyAtOnce), "handovers", SYNC),
    Bug("archive before the cut", _shell(archives_what_it_cuts=False), "cuts", ASYNC),
)
BUGS: tuple[Bug, ...] = _APPENDIX_A + _OURS
