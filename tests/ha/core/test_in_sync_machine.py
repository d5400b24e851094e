"""Random histories of a group never violate the guarantees of the confirm offset."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.ha.core.in_sync import (
    Acked,
    Appended,
    CloseSession,
    ConfirmMoved,
    Effect,
    Event,
    Flushed,
    InSyncSet,
    Limits,
    MemberState,
    SessionClosed,
    SessionOpened,
    Tick,
)

MS = 1_000_000
IDS = st.integers(1, 3)


class FollowerModel:
    """What one follower truly holds. Its log can only lose a tail that it had not flushed."""

    def __init__(self) -> None:
        self.written = 0
        self.flushed = 0
        self.session = 0
        self.incarnation = 1


class GroupMachine(RuleBasedStateMachine):
    @initialize(is_sync=st.booleans(), counts_flushed=st.booleans(), min_in_sync=st.integers(1, 3))
    def start(self, is_sync: bool, counts_flushed: bool, min_in_sync: int) -> None:
        limits = Limits(is_sync, counts_flushed, min_in_sync, 5000 * MS, 100, 1500 * MS)
        self.core = InSyncSet(limits, 0, 0)
        self.followers = {broker_id: FollowerModel() for broker_id in (1, 2, 3)}
        self.now_ns = 10_000 * MS
        self.highest = 0
        self.session = 0

    def send(self, event: Event) -> None:
        self.execute(self.core.on_event(event, self.now_ns))

    def execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CloseSession):
                for follower in self.followers.values():
                    if follower.session == effect.session:
                        follower.session = 0
                self.send(SessionClosed(effect.session))
            elif isinstance(effect, ConfirmMoved):
                assert effect.confirm > self.highest
                self.highest = effect.confirm

    @rule(size=st.integers(1, 300))
    def append(self, size: int) -> None:
        self.send(Appended(self.core.log_end + size))

    @rule(share=st.floats(0, 1))
    def flush(self, share: float) -> None:
        core = self.core
        self.send(Flushed(core.flushed_end + int((core.log_end - core.flushed_end) * share)))

    @rule(broker_id=IDS)
    def connect(self, broker_id: int) -> None:
        follower = self.followers[broker_id]
        self.session += 1
        follower.session = self.session
        self.send(
            SessionOpened(
                self.session,
                broker_id,
                f"uuid-{broker_id}",
                follower.incarnation,
                follower.written,
                follower.flushed,
            )
        )

    @rule(broker_id=IDS, share=st.floats(0, 1), flush_share=st.floats(0, 1))
    def receive(self, broker_id: int, share: float, flush_share: float) -> None:
        follower = self.followers[broker_id]
        if follower.session:
            follower.written += int((self.core.log_end - follower.written) * share)
            follower.flushed += int((follower.written - follower.flushed) * flush_share)

    @rule(broker_id=IDS)
    def acknowledge(self, broker_id: int) -> None:
        follower = self.followers[broker_id]
        if follower.session:
            self.send(
                Acked(follower.session, follower.written, follower.flushed, self.core.log_end)
            )

    @rule(broker_id=IDS)
    def disconnect(self, broker_id: int) -> None:
        follower = self.followers[broker_id]
        if follower.session:
            self.send(SessionClosed(follower.session))
            follower.session = 0

    @rule(broker_id=IDS)
    def lose_power(self, broker_id: int) -> None:
        self.disconnect(broker_id)
        follower = self.followers[broker_id]
        follower.written = follower.flushed
        follower.incarnation += 1

    @rule(milliseconds=st.sampled_from([50, 100, 400, 600, 6000]))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MS
        self.send(Tick())

    @invariant()
    def core_is_valid(self) -> None:
        self.core.validate()

    @invariant()
    def confirm_is_monotonic_and_never_above_the_own_end(self) -> None:
        confirm = self.core.confirm
        assert confirm >= self.highest
        self.highest = confirm
        own = self.core.flushed_end if self.core.limits.counts_flushed else self.core.log_end
        assert confirm <= (own if self.core.limits.is_sync else self.core.log_end)

    @invariant()
    def every_in_sync_member_truly_holds_what_is_confirmed(self) -> None:
        core = self.core
        for broker_id, member in core.members.items():
            if member.state is MemberState.IN_SYNC and member.session and member.verified:
                truth = self.followers[broker_id]
                held = truth.flushed if core.limits.counts_flushed else truth.written
                assert core.replicated <= held, (core.replicated, broker_id, held)


GroupMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGroup = GroupMachine.TestCase
