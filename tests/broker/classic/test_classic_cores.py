"""Members of groups and locks of queues: examples, and random histories against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.classic.base import members as members_module
from cometmq.broker.classic.base.members import Members, Subscription, TooManyMembersError
from cometmq.broker.classic.locks import EXPIRY_NS, QueueLocks

EXPIRY = 100
QUEUES = [("t", 0), ("t", 1), ("u", 0)]


def subscription(topic: str, text: str = "*", version_ms: int = 1) -> Subscription:
    return Subscription(topic, text, "TAG", version_ms)


def test_a_change_of_members_or_topics_is_reported_once() -> None:
    members = Members[str](EXPIRY, 10)
    both = [subscription("t"), subscription("u")]
    assert members.heartbeat("g", "c1", "one", both[:1], 0)
    assert not members.heartbeat("g", "c1", "one", both[:1], 1)
    assert members.heartbeat("g", "c1", "one", both, 2)
    assert members.heartbeat("g", "c2", "one", both, 3)
    assert members.heartbeat("g", "c2", "two", both, 4)  # on another connection
    assert members.heartbeat("g", "c2", "two", both[:1], 5)
    assert members.subscription("g", "u") is None


def test_the_newer_subscription_wins() -> None:
    members = Members[str](EXPIRY, 10)
    members.heartbeat("g", "c1", "one", [subscription("t", "new", 5)], 0)
    members.heartbeat("g", "c2", "two", [subscription("t", "old", 4)], 0)
    assert members.subscription("g", "t") == subscription("t", "new", 5)
    members.heartbeat("g", "c2", "two", None, 1)  # a light heartbeat clears nothing
    assert members.subscription("g", "t") == subscription("t", "new", 5)


def test_members_are_limited() -> None:
    members = Members[str](EXPIRY, 1)
    members.heartbeat("g", "c1", "one", [], 0)
    with pytest.raises(TooManyMembersError):
        members.heartbeat("h", "c1", "one", [], 0)
    assert members.channels("h") == []
    members.heartbeat("g", "c1", "one", [], 1)


steps = st.one_of(
    st.tuples(
        st.just("beat"),
        st.sampled_from("gh"),
        st.sampled_from(["c1", "c2", "c3"]),
        st.sampled_from(["one", "two"]),
    ),
    st.tuples(st.just("leave"), st.sampled_from("gh"), st.sampled_from(["c1", "c2", "c3"])),
    st.tuples(st.just("drop"), st.sampled_from(["one", "two"])),
    st.tuples(st.just("expire")),
)


@given(st.lists(st.tuples(st.integers(0, 60), steps), max_size=40))
def test_members_equal_those_of_a_plain_model(history: list[tuple[int, tuple[str, ...]]]) -> None:
    members = Members[str](EXPIRY, 10)
    model: dict[tuple[str, str], tuple[str, int]] = {}
    now = 0
    for pause, step in history:
        now += pause
        before = dict(model)
        match step:
            case ("beat", group, client, channel):
                model[group, client] = channel, now
                changed = members.heartbeat(group, client, channel, None, now)
                known = before.get((group, client))
                assert changed is (known is None or known[0] != channel)
            case ("leave", group, client):
                assert members.leave(group, client) is (
                    model.pop((group, client), None) is not None
                )
            case ("drop", channel):
                gone = {key for key, (other, _) in model.items() if other == channel}
                assert members.drop(channel) == {group for group, _ in gone}
                model = {key: value for key, value in model.items() if key not in gone}
            case _:
                gone = {key for key, (_, heard) in model.items() if now - heard > EXPIRY}
                assert members.expire(now) == {group for group, _ in gone}
                model = {key: value for key, value in model.items() if key not in gone}
        assert len(members) == len(model)
        for group in "gh":
            own = {client: channel for (g, client), (channel, _) in model.items() if g == group}
            assert set(members.client_ids(group)) == set(own)
            assert set(members.channels(group)) == set(own.values())
            assert all(members.has(group, client) for client in own)


def test_the_subscriptions_of_all_groups_have_a_total_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "SUBSCRIPTION_CHARS_MAX", 1_000)
    members = Members[str](EXPIRY, 10)

    def beat(group: str, size: int) -> None:
        each = Subscription("t", "x" * size, "TAG", 1)
        members.heartbeat(group, "c", "one", [each], 0)

    for _ in range(3):
        beat("g", 600)  # again, the same: not added up
    with pytest.raises(TooManyMembersError, match="subscriptions of all groups"):
        beat("h", 600)
    assert not members.has("h", "c")
    beat("g", 10)
    beat("h", 500)
    members.leave("h", "c")
    beat("g", 700)
    members.drop("one")
    beat("h", 700)


@given(
    st.lists(
        st.tuples(
            st.integers(0, EXPIRY_NS // 2),
            st.booleans(),
            st.sampled_from(["c1", "c2"]),
            st.sets(st.sampled_from(QUEUES)),
        ),
        max_size=40,
    )
)
def test_a_queue_has_one_owner_until_its_lock_expires(
    history: list[tuple[int, bool, str, set[tuple[str, int]]]],
) -> None:
    locks = QueueLocks()
    model: dict[tuple[str, int], tuple[str, int]] = {}
    now = 0
    for pause, is_lock, client, queues in history:
        now += pause
        if is_lock:
            held = set(locks.lock("g", client, queues, now))
            for queue in queues:
                owner = model.get(queue)
                free = owner is None or owner[0] == client or now - owner[1] > EXPIRY_NS
                assert (queue in held) is free
                if free:
                    model[queue] = client, now
        else:
            locks.unlock("g", client, queues)
            for queue in queues:
                if model.get(queue, ("", 0))[0] == client:
                    del model[queue]
        fresh = any(now - since <= EXPIRY_NS for _, since in model.values())
        assert locks.is_locked("g", now) is fresh
        assert not locks.is_locked("h", now)
