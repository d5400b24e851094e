"""Oracle: checks the invariants of docs/formats/ha.md, section 6.9, in a simulated cluster.

    I1  promises never decrease and are durable before an acknowledgement       `acks`, `leads`
    I2  one incarnation leads an epoch                                          `leads`
    I3  an elected leader has everything that was ever confirmed                `leads`
        and a planned successor has all bytes of its predecessor                `_inherits`
    I4  confirmed bytes are equal everywhere;                                   `_confirmed`
        equal epoch entries, equal bytes                                        `compare_histories`
        and an entry with bytes begins with the first record of its epoch       `_labels`
    I5  confirm is monotonic, within the own end, and held by the in-sync set   `confirm_moved`
    I6  OK in a synchronous group: confirmed, with enough in sync               `answered_ok`
        as many as the policy says, which is one for each epoch                 `committed`
    I7  no cut below the own confirm offset without an operator                 `cuts`
    I8  what a cut removes is in an archive first                               `has_cut`
    I9  nothing of a leader below the promise is appended or acknowledged       `appends`, `acks`
    I10 two replicas never may write at the same time                           `after_event`
    I11 suspect is cleared only with everything that the leader confirmed       `clears_suspect`
    I14 what was cut is zero until it is written again                          `has_cut`
    I16 queue offsets are dense in log order, also across epochs                `compare_logs`

I12, I13 and I15 concern derived state, reads and routes outside of the cores; drills check them.
The confirmed bytes are stored once (`truth`): I13's limit is then I4 at each reader's confirm
offset.
"""

from typing import TYPE_CHECKING

from cometmq.ha.core import in_sync
from cometmq.ha.core.group_state import GroupState, Policy, Ref
from cometmq.ha.core.role_machine import Role
from cometmq.tests.sim.replica.records import EPOCH_START, MESSAGE, read_one, scan

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.follower_shell import FollowerShell
    from cometmq.tests.sim.replica.leader_shell import LeaderShell, Waiting
    from cometmq.tests.sim.replica.node import Node

    from .world import World


class ViolationError(AssertionError):
    """An invariant is violated; the text begins with its number."""


class Oracle:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.truth = bytearray()  #: the bytes that the group has confirmed (synchronous groups)
        self.confirmed_in: dict[int, int] = {}  #: the end that each epoch's leader confirmed
        self.leaders: dict[int, Ref] = {}
        self.acked: dict[int, int] = {}  #: identity -> end of every message that was answered OK
        self.excused: set[int] = (
            set()
        )  #: identities that a loss of power or an operator may have removed
        self.archives: dict[str, list[tuple[int, bytes]]] = {}
        self.confirms: dict[tuple[str, int], int] = {}
        self.promises: dict[str, int] = {}
        self.states: dict[int, GroupState] = {}
        self.policies: dict[int, Policy] = {}  #: of each epoch
        self.newest: GroupState | None = None
        self.elections = self.cut_count = self.holds = self.forced = self.lost = 0
        self.handovers = self.policy_changes = self.stops = self.steps_aside = 0
        self.successor: tuple[Ref | None, bytes] = (None, b"")
        self._order_checked = 0

    def demand(self, holds: bool, number: str, text: str, *values: object) -> None:
        if not holds:
            raise ViolationError(f"{number}: " + (text % values if values else text))

    # --- the group's state ------------------------------------------------------------------------

    def committed(self, state: GroupState) -> bool:
        """Record a state that a controller reports as committed; returns whether it is new."""
        known = self.states.get(state.version)
        if known is not None:
            self.demand(known == state, "I2", "two states of version %d", state.version)
            return False
        state.validate()
        self.states[state.version] = state
        policy = self.policies.setdefault(state.epoch, state.policy)
        self.demand(policy == state.policy, "I6", "two policies in epoch %d", state.epoch)
        if self.newest is None or state.version > self.newest.version:
            if self.newest is not None:
                state.assert_follows(self.newest)
                self.policy_changes += state.policy != self.newest.policy
                self.holds += bool(state.hold_reason) and not self.newest.hold_reason
            self.newest = state
            self._seats(state)
            self.world.faults.committed(state)
        return True

    def _seats(self, state: GroupState) -> None:
        """Check that every electable replica holds everything confirmed (the basis of I3)."""
        if not self.world.settings.is_sync or state.accept_loss:
            return
        for ref in (*state.in_sync, *state.eligible):
            node = self.world.nodes[ref.broker_id]
            if node.alive and node.ref == ref:
                held = node.disk.flushed if node.settings.sync_flush else node.log_end
                enough = min(held, node.log_end) >= len(self.truth)
                self.demand(
                    enough, "I5", "%s has a seat and holds %d of %d", ref, held, len(self.truth)
                )

    # --- leaders ----------------------------------------------------------------------------------

    def started(self, node: "Node") -> None:
        before = self.promises.get(node.name, 0)
        self.demand(node.promised >= before, "I1", "%s forgot promise %d", node.name, before)

    def leads(self, node: "Node") -> None:
        epoch = node.machine.epoch
        self.elections += 1
        holder = self.leaders.setdefault(epoch, node.ref)
        self.demand(holder == node.ref, "I2", "%s and %s lead epoch %d", holder, node.ref, epoch)
        durable = node.disk.files.get("promised", 0)
        self.demand(durable == epoch, "I1", "%s leads %d, promised %d", node.name, epoch, durable)
        durable = max((e for e, _ in _pairs(node)), default=0)
        self.demand(durable == epoch, "I4", "%s leads %d, not in its history", node.name, epoch)
        self._inherits(node)
        state = node.machine.state
        if state is not None and state.accept_loss:
            self._forget(node)
        if not self.world.settings.is_sync:
            return
        # A replica that was elected long ago and leads only now has no later epochs, and confirms
        # nothing.
        end = max((c for e, c in self.confirmed_in.items() if e < epoch), default=0)
        same = node.log_end >= end and node.disk.live[:end] == self.truth[:end]
        self.demand(
            same, "I3", "%s leads epoch %d without everything confirmed (%d)", node.name, epoch, end
        )

    def _forget(self, node: "Node") -> None:
        """Record that an operator accepted the loss of bytes that this leader lacks."""
        equal = 0
        limit = min(node.log_end, len(self.truth))
        while equal < limit and node.disk.live[equal] == self.truth[equal]:
            equal += 1
        if equal < len(self.truth):
            self.lost += 1
            del self.truth[equal:]
            self.confirmed_in = {e: min(c, equal) for e, c in self.confirmed_in.items()}
        self.excused.update(i for i, end in self.acked.items() if end > equal)
        self.confirms.clear()

    def handed_over(self, node: "Node", successor: Ref) -> None:
        """Record a planned step-down after which this incarnation of another replica has
        everything."""
        self.handovers += 1
        self.successor = (successor, bytes(node.disk.live[: node.log_end]))

    def _inherits(self, node: "Node") -> None:
        successor, log = self.successor
        self.successor = (None, b"")
        if node.ref == successor:
            same = node.disk.live[: min(node.log_end, len(log))] == log
            self.demand(same, "I3", "%s leads by plan without all %d bytes", node.name, len(log))

    # --- confirm ----------------------------------------------------------------------------------

    def confirm_moved(self, node: "Node", leader: "LeaderShell") -> None:
        confirm = leader.core.replicated
        self._monotonic(node, confirm)
        self.confirmed_in[leader.epoch] = confirm
        own = node.flushed_end if node.settings.sync_flush else node.log_end
        self.demand(confirm <= own, "I5", "%s confirms %d of %d", node.name, confirm, own)
        state = self.newest
        if state is not None and state.epoch == leader.epoch and state.leader == node.ref:
            for ref in state.in_sync:
                self._holds(self.world.nodes[ref.broker_id], ref, node, confirm)
        self._confirmed(node, confirm, grows=True)

    def _holds(self, other: "Node", ref: Ref, leader: "Node", confirm: int) -> None:
        if not other.alive or other.ref != ref:
            return  # bytes of a stopped incarnation are checked at its next start
        held = other.disk.flushed if other.settings.sync_flush else other.log_end
        self.demand(
            held >= confirm,
            "I5",
            "%s confirms %d, %s of the in-sync set holds %d",
            leader.name,
            confirm,
            other.name,
            held,
        )

    def follower_confirm_moved(self, node: "Node", confirm: int) -> None:
        if node.settings.is_sync:
            self._monotonic(node, confirm)
            self._confirmed(node, confirm, grows=False)

    def _monotonic(self, node: "Node", confirm: int) -> None:
        key = (node.name, node.life)
        self.demand(confirm >= self.confirms.get(key, 0), "I5", "%s confirm went back", node.name)
        self.demand(confirm <= node.log_end, "I5", "%s confirms above its end", node.name)
        self.confirms[key] = confirm

    def _confirmed(self, node: "Node", confirm: int, *, grows: bool) -> None:
        truth, log = self.truth, node.disk.live
        known = len(truth)
        start = max(0, min(known, confirm) - 256)  # earlier bytes were compared when it moved
        self.demand(
            log[start : min(known, confirm)] == truth[start : min(known, confirm)],
            "I4",
            "%s holds other bytes below its confirm offset %d",
            node.name,
            confirm,
        )
        if confirm > known:
            self.demand(grows, "I5", "%s confirms %d, its leader %d", node.name, confirm, known)
            truth += log[known:confirm]

    # --- answers ----------------------------------------------------------------------------------

    def answered_ok(self, node: "Node", leader: "LeaderShell", write: "Waiting") -> None:
        self.acked[write.identity] = write.end
        if node.settings.is_sync:
            core = leader.core
            self.demand(write.end <= core.confirm, "I6", "%s answers above confirm", node.name)
            enough = core.in_sync_count >= self.policies[leader.epoch].min_in_sync
            self.demand(enough, "I6", "%s answers with %d in sync", node.name, core.in_sync_count)
        if node.settings.sync_flush:
            self.demand(write.end <= node.disk.flushed, "I6", "%s answers unflushed", node.name)

    # --- followers --------------------------------------------------------------------------------

    def appends(self, node: "Node", follower: "FollowerShell", offset: int) -> None:
        epoch, durable = follower.core.epoch, node.disk.files.get("promised", 0)
        self.demand(
            epoch >= durable, "I9", "%s appends of epoch %d, promised %d", node.name, epoch, durable
        )
        self.demand(offset >= node.log_end, "I4", "%s overwrites at %d", node.name, offset)

    def acks(self, node: "Node", follower: "FollowerShell") -> None:
        epoch, durable = follower.core.epoch, node.disk.files.get("promised", 0)
        self.demand(
            durable == epoch, "I1", "%s acks in epoch %d, promised %d", node.name, epoch, durable
        )
        self.promises[node.name] = max(durable, self.promises.get(node.name, 0))

    def clears_suspect(self, node: "Node") -> None:
        if not node.settings.is_sync:
            return
        for other in self.world.nodes:
            leader = other.leader
            if other.alive and leader is not None and leader.epoch == node.follower.core.epoch:
                start = leader.core.epoch_start
                self.demand(node.log_end >= start, "I11", "%s clears suspect early", node.name)
        seen = node.follower.core.leader_confirm
        self.demand(node.log_end >= seen, "I11", "%s clears suspect below confirm", node.name)

    # --- cuts -------------------------------------------------------------------------------------

    def cuts(self, node: "Node", to: int, old_end: int, accept_loss: bool) -> None:
        self.cut_count += 1
        if node.settings.is_sync and not accept_loss:
            confirm = node.disk.hints.get("confirm", 0)
            self.demand(to >= confirm, "I7", "%s cuts at %d, confirmed %d", node.name, to, confirm)

    def archived(self, node: "Node", start: int, data: bytes) -> None:
        self.archives.setdefault(node.name, []).append((start, data))

    def has_cut(self, node: "Node", to: int, old_end: int) -> None:
        if old_end > to:
            held = any(
                start <= to and start + len(data) >= old_end
                for start, data in self.archives.get(node.name, [])
            )
            self.demand(held, "I8", "%s cut %d..%d without an archive", node.name, to, old_end)
        self.world.faults.has_cut(node)
        disk = node.disk
        if self.world.parts.rules.zeroes_what_it_cuts:
            clean = not any(disk.live[to : disk.extent]) and not any(disk.durable[to : disk.extent])
            self.demand(clean, "I14", "%s left bytes behind %d", node.name, to)

    # --- crashes ----------------------------------------------------------------------------------

    def crashed(self, node: "Node") -> None:
        self.promises[node.name] = max(
            self.promises.get(node.name, 0), node.disk.files.get("promised", 0)
        )

    def lost_power(self, node: "Node") -> None:
        """Record a loss of memory: messages that this machine alone had answered may be gone."""
        if not self.world.settings.is_sync and not self.world.settings.sync_flush:
            self.excused.update(i for i, end in self.acked.items() if end > node.disk.flushed)

    # --- after every event ------------------------------------------------------------------------

    def after_event(self) -> None:
        writers = 0
        name = ""
        for node in self.world.nodes:
            if not node.alive:
                continue
            if node.touched:
                node.touched = False
                node.machine.validate()
                if node.leader is not None:
                    node.leader.core.validate()
                else:
                    node.follower.core.validate()
            if node.machine.role is Role.LEADER and node.machine.may_write(node.now()):
                if self.world.scheduler.now < node.paused_until:
                    continue  # it cannot act now, and is checked when it can
                writers += 1
                both = f"{name} and {node.name}"
                name = node.name
                if writers > 1 and self.world.settings.counts_leases:
                    self.demand(False, "I10", "%s may write at the same time", both)

    def compare_histories(self) -> None:
        """Check the second half of I4; costs as much as the logs are long."""
        nodes = [node for node in self.world.nodes if node.alive]
        for index, one in enumerate(nodes):
            self._labels(one)
            for other in nodes[index + 1 :]:
                theirs = set(other.history.entries)
                for entry in reversed(one.history.entries):
                    if entry in theirs:
                        end = min(
                            one.history.end_of(entry.epoch, one.log_end),
                            other.history.end_of(entry.epoch, other.log_end),
                        )
                        self.demand(
                            one.disk.live[:end] == other.disk.live[:end],
                            "I4",
                            "%s and %s have epoch %s and differ below %d",
                            one.name,
                            other.name,
                            entry,
                            end,
                        )
                        break

    def _labels(self, node: "Node") -> None:
        """Check that each entry with bytes begins with the first record of its epoch."""
        for entry in node.history.entries:
            first = read_one(node.disk.live, entry.start, node.log_end)
            if first is not None:  # else nothing was written, or it is damaged
                found = (first.kind, first.identity)
                same = found == (EPOCH_START, entry.epoch)
                self.demand(same, "I4", "%s labels %s with %s", node.name, first, entry)

    # --- at the end -------------------------------------------------------------------------------

    def compare_logs(self, leader: "Node") -> None:
        """Check the healed cluster: equal logs, dense queue offsets, and every OK accounted for."""
        log = leader.disk.live
        for node in self.world.nodes:
            same = node.log_end == leader.log_end
            same = same and node.disk.live[: node.log_end] == log[: leader.log_end]
            self.demand(same, "I4", "logs of %s and %s differ in the end", node.name, leader.name)
        present = set()
        expected = 0
        for record in scan(log, 0, leader.log_end):
            if record.kind == MESSAGE:
                self.demand(
                    record.queue_offset == expected, "I16", "queue offset at %d", record.offset
                )
                expected += 1
                present.add(record.identity)
        missing = sorted(set(self.acked) - present - self.excused)
        if missing and not self.world.settings.is_sync:
            archived = self._archived_identities()
            self.lost += len(missing)
            missing = [identity for identity in missing if identity not in archived]
        self.demand(not missing, "I3", "answered OK and gone: %s", missing[:5])

    def _archived_identities(self) -> set[int]:
        found = set()
        for archives in self.archives.values():
            for _, data in archives:
                log = bytearray(data)
                offset = 0
                while (record := read_one(log, offset, len(log))) is not None:
                    found.add(record.identity)
                    offset = record.end
        return found

    def is_in_sync(self, node: "Node", leader: "LeaderShell") -> bool:
        member = leader.core.members.get(node.broker_id)
        return member is not None and member.state is in_sync.MemberState.IN_SYNC


def _pairs(node: "Node") -> list[tuple[int, int]]:
    """Return the epoch history on the disk."""
    return [(entry.epoch, entry.start) for entry in node.disk.files.get("epochs", ())]
