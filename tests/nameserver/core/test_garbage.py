"""A controller refuses or survives every invalid input, and its state stays valid."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.ha.core.controller.events import (
    NUMBER_MAX,
    AlterIsr,
    Event,
    ForceElect,
    Heartbeat,
    HeartbeatArrived,
    ProcessExited,
    SessionClosed,
    SetDrain,
    SetPolicy,
    Switchover,
    Tick,
)
from cometmq.ha.core.group_state import Policy, Ref
from cometmq.tests.nameserver.core.desk import MS, Desk, state

numbers = st.one_of(
    st.integers(0, 3), st.sampled_from([90, 100, NUMBER_MAX, NUMBER_MAX + 1, 2**64])
)
ids = st.integers(-1, 4)
refs = st.builds(Ref, ids, st.integers(0, 3))
states = st.one_of(
    st.none(),
    st.builds(
        lambda version, leader, in_sync: replace(
            state(), version=version, leader=leader, in_sync=in_sync
        ),
        st.integers(0, 20),
        st.one_of(st.none(), refs),
        st.lists(refs, max_size=3).map(tuple),
    ),
)
heartbeats = st.builds(
    Heartbeat,
    broker_id=ids,
    replica_uuid=st.sampled_from(["", "u0", "u1", "u2", "other"]),
    incarnation=numbers,
    seq=st.integers(0, 50),
    sent_ns=st.integers(0, 50),
    leads=st.booleans(),
    promised_epoch=numbers,
    last_epoch=numbers,
    log_start=numbers,
    log_end=numbers,
    flushed_end=numbers,
    confirm=numbers,
    suspect=st.booleans(),
    heard_epoch=numbers,
    heard_age_ns=st.integers(-1, 10**10),
    known=states,
    policy=st.one_of(st.none(), st.builds(Policy, st.booleans(), st.booleans(), st.integers(1, 3))),
    learner=st.booleans(),
    log_is_empty=st.booleans(),
    drained=st.booleans(),
    no_room=st.booleans(),
)
members = st.lists(refs, max_size=20).map(tuple)
events = st.one_of(
    st.builds(HeartbeatArrived, st.integers(1, 9), heartbeats),
    st.builds(AlterIsr, st.integers(1, 9), refs, numbers, numbers, numbers, members, numbers),
    st.builds(ProcessExited, ids, st.sampled_from(["", "u0"]), numbers),
    st.builds(SessionClosed, st.integers(1, 9)),
    st.builds(Switchover, st.integers(1, 9), ids),
    st.builds(ForceElect, st.integers(1, 9), ids, st.booleans()),
    st.builds(SetDrain, st.integers(1, 9), st.booleans()),
    st.builds(SetPolicy, st.integers(1, 9), st.none() | st.booleans(), st.integers(0, 4)),
    st.builds(Tick, st.just(1)),
)


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 3_000), events), max_size=25))
def test_no_event_breaks_a_controller(new: bool, story: list[tuple[int, Event]]) -> None:
    desk = Desk(None if new else state())
    desk.all_send_heartbeats()
    for ms, event in story:
        desk.now_ns += ms * MS
        desk.tell(event)
        desk.core.state.validate()
