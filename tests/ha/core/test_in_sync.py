"""The in-sync set: which members count, and their effect on the confirm offset. No clock, no
network."""

import pytest

from cometmq.ha.core.in_sync import (
    JOIN_HOLD_NS,
    Acked,
    Appended,
    CloseSession,
    ConfirmMoved,
    Effect,
    Event,
    Flushed,
    InSyncSet,
    Limits,
    MemberJoined,
    MemberLeft,
    MemberState,
    SessionClosed,
    SessionOpened,
    SetRegistered,
    Tick,
)

MS = 1_000_000
CHUNK = 1000


class Group:
    """A leader's core with a clock of its own; every event validates."""

    def __init__(
        self,
        *,
        is_sync: bool = True,
        counts_flushed: bool = False,
        min_in_sync: int = 1,
        log_end: int = 0,
        confirm: int = 0,
        registers: bool = False,
    ) -> None:
        limits = Limits(
            *(is_sync, counts_flushed, min_in_sync, 5000 * MS, CHUNK, 1500 * MS),
            registers=registers,
        )
        self.core = InSyncSet(limits, log_end, log_end, confirm)
        self.core.validate()
        self.now_ns = 1_000_000 * MS
        self.send(Tick())

    def send(self, event: Event) -> list[Effect]:
        effects = self.core.on_event(event, self.now_ns)
        self.core.validate()
        return effects

    def append(self, log_end: int) -> list[Effect]:
        return self.send(Appended(log_end))

    def open(
        self,
        session: int,
        written: int = 0,
        *,
        broker_id: int = 1,
        uuid: str = "u1",
        incarnation: int = 1,
        flushed: int = 0,
    ) -> list[Effect]:
        return self.send(
            SessionOpened(session, broker_id, uuid, incarnation, written, min(flushed, written))
        )

    def ack(self, session: int, written: int, flushed: int | None = None) -> list[Effect]:
        flushed = written if flushed is None else flushed
        return self.send(Acked(session, written, flushed, sent_end=self.core.log_end))

    def wait(self, milliseconds: int, session: int = 0) -> list[Effect]:
        """Time passes in ticks of 100 ms; a living `session` repeats its last acknowledgement."""
        effects = []
        for _ in range(milliseconds // 100):
            self.now_ns += 100 * MS
            if session in self.core.sessions:
                member = self.core.sessions[session]
                effects += self.ack(session, member.written_end, member.flushed_end)
            effects += self.send(Tick())
        return effects

    def state(self, broker_id: int = 1) -> MemberState:
        return self.core.members[broker_id].state


def in_sync_group(**kwargs: object) -> Group:
    group = Group(**kwargs)  # type: ignore[arg-type]
    group.append(100)
    group.open(1, 100)
    group.ack(1, 100, 100)
    if group.core.limits.counts_flushed:
        group.send(Flushed(100))
    assert group.state() is MemberState.IN_SYNC
    return group


def test_a_lone_leader_confirms_what_it_appends() -> None:
    group = Group()
    assert group.append(10) == [ConfirmMoved(10)]
    assert group.core.refusal is None


def test_nothing_is_confirmed_before_a_nameserver_knows_the_set() -> None:
    group = Group(registers=True)
    assert group.append(10) == []
    assert group.core.awaits_nameservers
    assert group.send(SetRegistered(group.core.revision)) == [ConfirmMoved(10)]
    assert group.append(20) == [ConfirmMoved(20)]
    assert not group.core.awaits_nameservers


def registered_group() -> Group:
    group = Group(registers=True)
    group.send(SetRegistered(group.core.revision))
    group.append(100)
    group.open(1, 100)
    group.ack(1, 100, 100)
    assert group.state() is MemberState.IN_SYNC
    group.send(SetRegistered(group.core.revision))
    return group


def test_a_member_that_left_bounds_the_end_until_the_nameservers_know() -> None:
    group = registered_group()
    with_it = group.core.revision
    group.append(200)
    left = [one for one in group.wait(6000) if isinstance(one, MemberLeft)]
    assert (len(left), group.core.confirm) == (1, 100)
    assert group.send(SetRegistered(with_it)) == []
    assert (group.core.confirm, group.core.awaits_nameservers) == (100, True)
    assert group.send(SetRegistered(group.core.revision)) == [ConfirmMoved(200)]
    assert not group.core.awaits_nameservers


def test_a_member_that_returns_meanwhile_counts_as_before() -> None:
    group = registered_group()
    group.append(200)
    group.wait(6000)
    group.open(2, 100)
    group.ack(2, 200)
    assert (group.state(), group.core.confirm) == (MemberState.IN_SYNC, 200)
    assert not group.core.awaits_nameservers


def test_a_lone_leader_in_sync_flush_confirms_what_it_flushed() -> None:
    group = Group(counts_flushed=True)
    assert group.append(10) == []
    assert group.send(Flushed(7)) == [ConfirmMoved(7)]


def test_a_flush_report_beyond_the_last_whole_record_counts_up_to_the_record() -> None:
    group = Group(counts_flushed=True)
    group.append(10)
    group.send(Flushed(50))
    assert group.core.confirm == 10


def test_an_asynchronous_leader_confirms_its_own_end() -> None:
    group = Group(is_sync=False)
    group.append(10)
    group.open(1, 0)
    group.ack(1, 5)
    assert group.append(20) == []  # no send waits for the confirm offset there
    assert group.core.confirm == 20
    assert group.core.refusal is None


def test_membership_is_observed_in_an_asynchronous_group() -> None:
    group = Group(is_sync=False)
    group.append(CHUNK)
    group.open(1, 0)
    group.ack(1, CHUNK)
    assert group.state() is MemberState.IN_SYNC
    group.append(2 * CHUNK)
    group.ack(1, CHUNK)
    assert group.state() is MemberState.IN_SYNC
    effects = group.wait(5100, session=1)
    assert [type(effect) for effect in effects] == [MemberLeft]


def test_a_follower_joins_when_it_has_reached_the_confirm_offset() -> None:
    group = Group()
    group.append(5 * CHUNK)
    group.open(1, 0)
    assert group.ack(1, CHUNK) == []
    assert group.state() is MemberState.CATCHUP
    assert group.ack(1, 5 * CHUNK) == [MemberJoined(1)]
    assert group.core.in_sync_count == 2


def test_while_a_follower_joins_under_load_the_confirm_offset_waits_for_it() -> None:
    group = Group()
    group.append(50)
    group.open(1, 0)
    group.append(100)
    group.ack(1, 50)  # all that there was when it came
    assert group.state() is MemberState.JOINING
    assert group.append(200) == []  # without the follower this would confirm 200
    assert group.ack(1, 100) == [MemberJoined(1)]
    assert group.ack(1, 150) == [ConfirmMoved(150)]


def test_a_stalled_follower_near_the_end_does_not_join() -> None:
    group = Group()
    group.append(100)
    group.open(1, 0)
    group.ack(1, 50)
    assert group.state() is MemberState.CATCHUP
    assert group.append(200) == [ConfirmMoved(200)]


def test_a_follower_far_behind_does_not_join() -> None:
    group = Group()
    group.append(50)
    group.open(1, 0)
    group.append(51 + CHUNK)
    group.ack(1, 50)
    assert group.state() is MemberState.CATCHUP


def test_a_join_that_takes_too_long_releases_the_confirm_offset() -> None:
    group = Group()
    group.append(50)
    group.open(1, 0)
    group.append(200)
    group.ack(1, 50)
    assert group.state() is MemberState.JOINING
    assert group.append(300) == []
    effects = group.wait(JOIN_HOLD_NS // MS + 100)
    assert effects == [ConfirmMoved(300)]
    assert group.state() is MemberState.CATCHUP
    group.ack(1, 300)
    assert group.state() is MemberState.CATCHUP  # and it does not hold it again at once
    group.wait(1100)
    group.ack(1, 300)
    assert group.state() is MemberState.IN_SYNC


def test_the_claims_of_a_hello_do_not_count_before_an_acknowledgement() -> None:
    group = Group()
    group.append(100)
    assert group.open(1, 100, flushed=100) == []
    assert group.state() is MemberState.CATCHUP
    assert group.core.in_sync_count == 1


def test_confirm_follows_the_slowest_member() -> None:
    group = in_sync_group()
    group.open(2, 100, broker_id=2, uuid="u2")
    group.ack(2, 100)
    assert group.core.in_sync_count == 3
    assert group.append(200) == []
    assert group.ack(1, 200) == []
    assert group.ack(2, 150) == [ConfirmMoved(150)]
    assert group.ack(2, 200) == [ConfirmMoved(200)]


def test_in_sync_flush_a_written_end_confirms_nothing() -> None:
    group = in_sync_group(counts_flushed=True)
    group.append(200)
    group.send(Flushed(200))
    assert group.ack(1, 200, 100) == []
    assert group.ack(1, 200, 180) == [ConfirmMoved(180)]


def test_in_sync_flush_the_own_flushed_end_bounds_the_confirm_offset() -> None:
    group = in_sync_group(counts_flushed=True)
    group.append(200)
    assert group.ack(1, 200, 200) == []
    assert group.send(Flushed(150)) == [ConfirmMoved(150)]


def test_a_lost_stream_keeps_its_seat_until_the_lag_limit() -> None:
    group = in_sync_group()
    group.send(SessionClosed(1))
    assert group.append(200) == []
    assert group.wait(4900) == []  # waiting sends time out (3 s) before the member leaves
    effects = group.wait(200)
    assert [type(effect) for effect in effects] == [MemberLeft, ConfirmMoved]
    assert group.core.confirm == 200
    assert group.state() is MemberState.GONE


def test_a_short_interruption_changes_nothing() -> None:
    group = in_sync_group()
    group.send(SessionClosed(1))
    group.append(200)
    group.wait(3000)
    group.open(2, 100)
    assert group.core.in_sync_count == 2
    assert group.ack(2, 200) == [ConfirmMoved(200)]


def test_a_member_that_stays_behind_leaves_and_rejoins() -> None:
    group = in_sync_group()
    group.append(200)
    group.ack(1, 150)
    effects = group.wait(5100, session=1)
    assert MemberLeft in [type(effect) for effect in effects]
    assert group.core.confirm == 200
    assert group.state() is MemberState.CATCHUP
    assert group.ack(1, 200) == [MemberJoined(1)]


def test_a_member_that_is_always_a_little_behind_stays() -> None:
    group = in_sync_group()
    for end in range(200, 10_000, 100):
        group.append(end)
        group.now_ns += 100 * MS
        assert MemberLeft not in [type(e) for e in group.ack(1, end - 100) + group.send(Tick())]
    assert group.core.in_sync_count == 2


def test_an_idle_member_stays_while_it_acknowledges_heartbeats() -> None:
    group = in_sync_group()
    assert group.wait(60_000, session=1) == []
    assert group.core.in_sync_count == 2


def test_a_silent_stream_is_closed_and_its_member_leaves() -> None:
    group = in_sync_group()
    effects = group.wait(1500)
    assert effects == [CloseSession(1, "no frame for too long")]
    group.send(SessionClosed(1))
    effects = group.wait(4000)
    assert [type(effect) for effect in effects] == [MemberLeft]


def test_a_suspended_leader_does_not_count_its_followers_silence() -> None:
    group = in_sync_group()
    group.now_ns += 20_000 * MS
    assert group.send(Tick()) == []
    assert group.core.in_sync_count == 2


def test_minimum_refuses_writes_and_freezes_the_confirm_offset() -> None:
    group = Group(min_in_sync=2)
    assert group.core.refusal is not None
    assert group.append(100) == []
    group.open(1, 0)
    assert group.ack(1, 100) == [MemberJoined(1), ConfirmMoved(100)]
    assert group.core.refusal is None
    group.send(SessionClosed(1))
    group.append(200)
    effects = group.wait(5100)
    assert [type(effect) for effect in effects] == [MemberLeft]
    assert group.core.refusal is not None
    assert group.core.confirm == 100  # alone it confirms nothing


def test_a_restarted_leader_below_its_minimum_keeps_the_confirm_offset() -> None:
    group = Group(min_in_sync=2, log_end=500, confirm=300)
    assert group.core.confirm == 300
    group = Group(min_in_sync=2, log_end=200, confirm=300)  # its log lost a tail
    assert group.core.confirm == 200


def test_a_member_that_returns_with_a_shorter_log_leaves_immediately() -> None:
    group = in_sync_group()
    group.send(SessionClosed(1))
    effects = group.open(2, 60, incarnation=2)
    assert [type(effect) for effect in effects] == [MemberLeft]
    assert group.core.confirm == 100
    assert group.core.in_sync_count == 1


def test_another_disk_under_the_same_id_starts_from_nothing() -> None:
    group = in_sync_group()
    group.send(SessionClosed(1))
    effects = group.open(2, 100, uuid="another")
    assert [type(effect) for effect in effects] == [MemberLeft]
    assert group.core.members[1].written_end == 0


def test_a_newer_stream_replaces_the_older_one() -> None:
    group = in_sync_group()
    assert group.open(2, 100) == [CloseSession(1, "replaced by a newer stream")]
    assert group.send(SessionClosed(1)) == []  # the late end of the old one changes nothing
    assert group.core.sessions[2].session == 2
    assert group.ack(1, 100) == []  # nor does a late acknowledgement


@pytest.mark.parametrize(
    ("written", "flushed"),
    [(300, 0), (150, 160)],
    ids=["beyond what was sent", "flushed beyond written"],
)
def test_an_impossible_acknowledgement_closes_the_stream(written: int, flushed: int) -> None:
    group = in_sync_group()
    group.append(200)
    effects = group.ack(1, written, flushed)
    assert [type(effect) for effect in effects] == [CloseSession]
    assert group.core.confirm == 100


def test_a_decreasing_acknowledgement_closes_the_stream() -> None:
    group = in_sync_group()
    group.append(200)
    group.ack(1, 200, 200)
    effects = group.ack(1, 150, 150)
    assert [type(effect) for effect in effects] == [CloseSession]
    assert group.core.confirm == 200
