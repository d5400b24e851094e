"""A member that returns without loss in a later incarnation fills its own seat while there is no
controller."""

from cometmq.ha.core.group_state import GroupState, Member, Policy, Ref
from cometmq.ha.core.in_sync import (
    Acked,
    Appended,
    Effect,
    Event,
    InSyncSet,
    Limits,
    MemberState,
    SessionClosed,
    SessionOpened,
    StateSeen,
    Tick,
)

MS = 1_000_000
ME, OLD, NEW = Ref(0, 7), Ref(1, 3), Ref(1, 4)


class Pair:
    """A leader and a follower; the state names the follower's incarnation OLD, and no controller
    answers."""

    def __init__(self, *, counts_flushed: bool = False, is_sync: bool = True) -> None:
        limits = Limits(is_sync, counts_flushed, 1, 5000 * MS, 1000, 1500 * MS, decides_alone=False)
        self.core = InSyncSet(limits, 100, 100, 80, me=ME, epoch=4, epoch_start=100)
        self.now_ns = 1000 * MS
        self.sessions: dict[Ref, int] = {}
        self.send(Tick())
        self.send(StateSeen(self.state(OLD)))
        self.open(OLD, 100)
        self.ack(OLD, 100)
        self.grow(300)
        self.ack(OLD, 200)
        assert self.core.replicated == 200
        assert self.core.oldest_echo_ns == self.now_ns
        self.send(SessionClosed(self.sessions[OLD]))
        self.now_ns += 100 * MS

    def state(self, seat: Ref, version: int = 5) -> GroupState:
        return GroupState(
            "c",
            "g",
            version=version,
            epoch=4,
            leader=ME,
            in_sync=(ME, seat),
            members=(Member(0, "u0"), Member(1, "u1")),
            policy=Policy(self.core.limits.is_sync, self.core.limits.counts_flushed, 1),
        )

    def send(self, event: Event) -> list[Effect]:
        effects = self.core.on_event(event, self.now_ns)
        self.core.validate()
        return effects

    def grow(self, end: int) -> None:
        self.send(Appended(end))
        self.core.flushed_end = end

    def open(self, ref: Ref, end: int, *, uuid: str = "u1", suspect: bool = False) -> None:
        number = self.sessions[ref] = len(self.sessions) + 1
        self.send(
            SessionOpened(
                number, 1, uuid, ref.incarnation, end, end, learner=False, suspect=suspect
            )
        )

    def ack(self, ref: Ref, end: int, flushed: int | None = None) -> None:
        flushed = end if flushed is None else flushed
        number = self.sessions[ref]
        self.send(Acked(number, end, flushed, self.core.log_end, self.now_ns))


def test_a_later_incarnation_with_all_data_counts_without_a_controller() -> None:
    pair = Pair()
    pair.open(NEW, 200)
    assert pair.core.oldest_echo_ns is None  # a hello is a claim
    pair.ack(NEW, 200)
    assert pair.core.oldest_echo_ns == pair.now_ns
    pair.ack(NEW, 300)
    assert pair.core.confirm == 300
    assert OLD in pair.core.proposals.committed
    pair.grow(400)
    assert pair.core.confirm == 300  # it counts like the incarnation that the state names


def test_in_an_asynchronous_group_its_echo_counts_too() -> None:
    pair = Pair(is_sync=False)
    pair.open(NEW, 200)
    pair.ack(NEW, 200)
    assert pair.core.oldest_echo_ns == pair.now_ns


def test_a_later_incarnation_with_less_data_counts_after_it_caught_up() -> None:
    pair = Pair()
    pair.open(NEW, 150)
    pair.ack(NEW, 199)
    assert pair.core.oldest_echo_ns is None
    assert pair.core.replicated == 200
    pair.ack(NEW, 210)
    assert pair.core.oldest_echo_ns == pair.now_ns
    assert pair.core.replicated == 210


def test_in_sync_flush_the_flushed_end_of_a_returned_member_counts() -> None:
    pair = Pair(counts_flushed=True)
    pair.open(NEW, 200)
    pair.ack(NEW, 300, flushed=190)
    assert pair.core.oldest_echo_ns is None
    pair.ack(NEW, 300, flushed=250)
    assert pair.core.oldest_echo_ns == pair.now_ns
    assert pair.core.replicated == 250


def test_a_suspect_later_incarnation_never_counts() -> None:
    pair = Pair()
    pair.open(NEW, 200, suspect=True)
    pair.ack(NEW, 300)
    assert pair.core.oldest_echo_ns is None
    assert pair.core.replicated == 200
    pair.open(NEW, 300)  # the mark is cleared, the incarnation is the same
    pair.ack(NEW, 300)
    assert pair.core.oldest_echo_ns is None


def test_another_disk_under_the_same_broker_id_never_counts() -> None:
    pair = Pair()
    pair.open(NEW, 200, uuid="other")
    pair.ack(NEW, 300)
    assert pair.core.oldest_echo_ns is None
    assert pair.core.replicated == 200


def test_a_suspect_incarnation_after_one_that_filled_the_seat_does_not_count() -> None:
    pair = Pair()
    pair.open(NEW, 200)
    pair.ack(NEW, 300)
    third = Ref(1, 5)
    pair.open(third, 300, suspect=True)
    pair.grow(400)
    pair.ack(third, 400)
    assert pair.core.oldest_echo_ns is None
    assert pair.core.replicated == 300


def test_a_third_incarnation_must_reach_what_both_earlier_ones_acknowledged() -> None:
    pair = Pair()
    pair.open(NEW, 200)
    pair.ack(NEW, 290)
    third = Ref(1, 5)
    pair.open(third, 290)
    pair.ack(third, 280)
    assert pair.core.oldest_echo_ns is None
    pair.ack(third, 300)
    assert pair.core.replicated == 300


def test_a_reconnect_with_less_data_does_not_count_until_it_caught_up() -> None:
    pair = Pair()
    pair.open(NEW, 200)
    pair.ack(NEW, 300)
    pair.open(NEW, 250)
    assert pair.core.oldest_echo_ns is None
    pair.ack(NEW, 300)
    assert pair.core.oldest_echo_ns == pair.now_ns


def test_a_returning_controller_names_the_incarnation_that_filled_the_seat() -> None:
    pair = Pair()
    pair.open(NEW, 200)
    pair.ack(NEW, 300)
    pair.send(StateSeen(pair.state(NEW, version=6)))
    assert pair.core.members[1].state is MemberState.IN_SYNC
    assert pair.core.oldest_echo_ns == pair.now_ns
    assert pair.core.replicated == 300


def test_the_echo_of_a_proposed_member_counts_while_it_joins() -> None:
    pair = Pair()
    pair.open(NEW, 200)
    pair.ack(NEW, 200)
    pair.now_ns += 300 * MS
    number = pair.sessions[NEW]
    pair.send(Acked(number, 300, 300, pair.core.log_end, 0))
    assert pair.core.oldest_echo_ns == pair.now_ns - 300 * MS
