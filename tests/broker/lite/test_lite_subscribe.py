"""SyncLiteSubscription: actions, offsets, quotas, exclusive and wildcard groups, refusals,
expiry.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.admin.groups import _wanted
from cometmq.broker.clients.stacks import ClientStacks
from cometmq.broker.clients.telemetry import TelemetryService
from cometmq.broker.lite import subscribe as lite_subscribe
from cometmq.broker.metadata.tables import Group
from cometmq.broker.names.lite import BOUND_TOPIC, WILDCARD
from cometmq.proto import v1, v2
from cometmq.tests.broker.desk import message
from cometmq.tests.broker.lite_desk import (
    ADD,
    ALL,
    NONE,
    PARENT,
    REMOVE,
    Lite,
    Stream,
    held,
    lite,
)
from cometmq.tests.broker.live import create_group


def option(**fields: int) -> v2.OffsetOption:
    return v2.OffsetOption(**fields)  # type: ignore[arg-type]


async def test_subscriptions_are_added_removed_and_replaced(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a", "b") == v2.OK
        assert one.sync(ADD, "b", "c") == v2.OK
        assert held(one) == ["a", "b", "c"]
        assert one.sync(REMOVE, "a", "nothing", "not/a/name") == v2.OK
        assert held(one) == ["b", "c"]
        # A refresh replaces; invalid names are not checked in it and not stored.
        assert one.sync(ALL, "c", "d", "not/a/name") == v2.OK
        assert held(one) == ["c", "d"]
        assert one.sync(NONE) == v2.OK
        assert held(one) == []
        assert one.sync(REMOVE, "a") == v2.OK


async def test_a_group_starts_at_the_end_and_continues_at_its_offset(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        await one.send("a", b"1", b"2")
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"3")
        assert one.sync(NONE) == v2.OK
        await one.send("a", b"4")
        assert one.sync(ADD, "a") == v2.OK
        assert (await one.receive()).bodies == [b"3", b"4"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"policy": v2.OffsetOption.LAST}, 3),
        ({"policy": v2.OffsetOption.MIN}, 0),
        ({"policy": v2.OffsetOption.MAX}, 5),
        ({"offset": 1}, 1),
        ({"offset": 99}, 5),
        ({"tail_n": 2}, 1),
        ({"tail_n": 99}, 0),
        ({"timestamp": 0}, 3),
    ],
)
async def test_an_offset_option_sets_the_start_offset(
    tmp_path: Path, chosen: dict[str, int], expected: int
) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", *(b"%d" % n for n in range(5)))
        got = await one.receive(batch=4)
        one.ack(*got.handles[:3])
        assert one.sync(ALL, "a", option=option(offset=0)) == v2.OK
        assert one.offset("a") == 3  # only a partial subscription may contain an offset
        assert one.sync(ADD, "a", option=option(**chosen)) == v2.OK
        assert one.offset("a") == expected
        if expected in (3, 5):
            await one.nothing()  # 3: its lock is kept; 5: nothing more to read
        else:
            again = await one.receive()  # the reset released the lock
            assert again.bodies == [b"%d" % n for n in range(expected, 5)]


async def test_tail_n_of_a_new_group_starts_at_the_end(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        await one.send("a", b"1")
        assert one.sync(ADD, "a", option=option(tail_n=1)) == v2.OK
        assert one.offset("a") == 1


async def test_subscriptions_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    async with lite(tmp_path, max_lite_subscription_count=5) as one:
        one.bind(sub__client__quota="3")
        full = v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert one.sync(ADD, "a", "b") == v2.OK
        assert one.sync(ADD, "c", "d") == full
        assert held(one) == ["a", "b"]
        assert one.sync(ADD, "b", "c") == v2.OK
        assert one.sync(ALL, "d", "e", "f") == v2.OK
        assert one.sync(ADD, "a", "b", "c", client="c@2") == full  # maxLiteSubscriptionCount
        assert held(one, "c@2") == []
        assert one.sync(ADD, "a", "b", client="c@2") == v2.OK
        assert one.sync(ALL, "a", "x", client="c@2") == v2.OK
        one.bind(sub__client__quota="-1")
        assert one.sync(ALL, *"1234", client="c@1") == full
        assert one.sync(NONE, client="c@2") == v2.OK
        assert one.sync(ALL, *"12345", client="c@1") == v2.OK


async def test_the_number_of_clients_is_bounded(
    tmp_path: Path,
) -> None:
    async with lite(tmp_path, max_clients=2) as one:
        one.bind("w", sub__wildcard="true")
        for number in range(5):
            assert one.sync(ALL, client=f"c@{number}") == v2.OK
        assert len(one.one.node.lite.table) == 0
        assert one.sync(ALL, "a", client="c@1") == v2.OK
        assert one.sync(ALL, client="c@2", group="w") == v2.OK
        full = v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert one.sync(ALL, client="c@3", group="w") == full
        assert one.sync(ALL, client="c@1") == v2.OK
        assert one.sync(ALL, client="c@3", group="w") == v2.OK


async def test_the_number_of_lite_topics_is_bounded(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        one.one.node.store.writer._appender._light._queues_max = 2
        await one.send("a", b"1")
        await one.send("b", b"1")
        sent = message(PARENT, b"x", lite_topic="c")
        answer = await one.one.send(sent)
        assert answer.status.code == v2.LITE_TOPIC_QUOTA_EXCEEDED
        await one.send("a", b"2")


async def test_the_last_subscriber_gets_an_exclusive_lite_topic(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        one.bind(sub__model="Exclusive")
        first, second = one.listen("c@1"), one.listen("c@2")
        assert one.sync(ADD, "a", "b") == v2.OK
        assert one.sync(ADD, "a", client="c@2") == v2.OK
        assert (held(one), held(one, "c@2")) == (["b"], ["a"])
        assert (first.lost, second.lost) == (["a"], [])
        # A refresh may be older, so it takes nothing back; the client is notified again.
        assert one.sync(ALL, "a", "b") == v2.OK
        assert (held(one), first.lost) == (["b"], ["a", "a"])
        await one.send("a", b"1")
        await one.nothing()
        assert (await one.receive("c@2")).bodies == [b"1"]
        # Other groups have their own.
        one.bind("h", sub__model="Exclusive")
        assert one.sync(ADD, "a", group="h") == v2.OK
        assert held(one, "c@2") == ["a"]


@pytest.mark.parametrize("resets", ["false", "true"])
async def test_a_taken_over_lite_topic_can_start_at_its_end(tmp_path: Path, resets: str) -> None:
    async with lite(tmp_path) as one:
        one.bind(sub__model="Exclusive", sub__reset__offset__exclusive=resets)
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"old")
        assert one.sync(ADD, "a", client="c@2") == v2.OK
        await one.send("a", b"new")
        expected = [b"new"] if resets == "true" else [b"old", b"new"]
        assert (await one.receive("c@2")).bodies == expected


@pytest.mark.parametrize("resets", ["false", "true"])
async def test_unsubscribing_can_remove_the_offset(tmp_path: Path, resets: str) -> None:
    async with lite(tmp_path) as one:
        one.bind(sub__reset__offset__unsubscribe=resets)
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"old")
        assert one.sync(REMOVE, "a") == v2.OK
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"new")
        expected = [b"new"] if resets == "true" else [b"old", b"new"]
        assert (await one.receive()).bodies == expected


async def test_a_wildcard_group_receives_every_lite_topic(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        one.bind(sub__wildcard="true", sub__client__max__event__cnt="3")
        await one.send("old", b"before")
        assert one.sync(ADD, "a") == v2.BAD_REQUEST
        assert one.sync(REMOVE, "a") == v2.BAD_REQUEST
        assert one.sync(ALL) == v2.OK
        names = [f"l{n}" for n in range(20)]
        for name in names:
            await one.send(name, name.encode())
        await one.send("old", b"after")
        got = await one.receive()
        assert sorted(got.bodies) == sorted([b"after", *(n.encode() for n in names)])
        assert one.ack(*got.handles).status.code == v2.OK
        assert one.sync(ALL) == v2.OK  # the refresh
        await one.nothing()
        assert one.sync(NONE) == v2.OK
        await one.send("old", b"x")
        await one.nothing()


@pytest.mark.parametrize("between", ["nothing", "a restart", "a lost snapshot of offsets"])
async def test_a_wildcard_group_gets_what_was_sent_while_its_client_was_away(
    tmp_path: Path, between: str
) -> None:
    names = ["new", "newer", "newest"]
    async with lite(tmp_path) as one:
        one.bind(sub__wildcard="true", sub__client__max__event__cnt="2")
        await one.send("old", b"before")
        assert one.sync(ALL) == v2.OK
        await one.send("old", b"old")
        got = await one.receive()
        assert got.bodies == [b"old"]
        one.ack(*got.handles)
        one.one.node.lite._drop(("g", "c@1"))  # as a minute without a refresh
        for name in names:
            await one.send(name, name.encode())
        if between == "nothing":
            assert one.sync(ALL) == v2.OK
            assert sorted((await one.receive()).bodies) == [name.encode() for name in names]
            return
        if between != "a restart":
            for queue in one.queues:  # snapshots follow the log every 200 ms
                one.one.node.offsets.forget(queue, "g")
            names.append("old")
    async with lite(tmp_path) as one:
        assert one.sync(ALL) == v2.OK
        assert sorted((await one.receive()).bodies) == [name.encode() for name in names]


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
async def test_a_wildcard_group_gets_what_was_sent_before_its_first_client(
    tmp_path: Path, is_new: bool, restarts: bool
) -> None:
    """As at a broker group that is added while its clients are away."""
    group = "w" if is_new else "g"

    async def arrives(one: Lite) -> None:
        assert one.sync(ALL, group=group) == v2.OK
        got = await one.receive(group=group)
        assert sorted(got.bodies) == [b"1", b"2", b"3"]

    async with lite(tmp_path) as one, one.one.live.client() as wire:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("z", b"before")
        attributes = [f"+lite.bind.topic={PARENT}", "+lite.sub.wildcard=true"]
        done = await create_group(wire, group, attributes=attributes)
        assert done.created is is_new
        assert done.altered is not is_new
        one.one.node.lite._drop(("g", "c@1"))
        for number, name in enumerate(("a", "new", "z"), 1):
            await one.send(name, b"%d" % number)
        if not restarts:
            await arrives(one)
    if restarts:
        async with lite(tmp_path) as one:
            await arrives(one)


def test_a_group_that_changes_its_lite_topics_subscribes_to_them_later() -> None:
    known = Group("g", attributes={BOUND_TOPIC: PARENT, WILDCARD: "true"}, lite_since=7)

    def since(*changes: str) -> int:
        return _wanted(v1.CreateGroupRequest(name="g", attributes=changes), known).lite_since

    assert since("+lite.sub.client.quota=5") == 7
    assert since("+lite.bind.topic=other") == since("-lite.sub.wildcard") == -1


async def test_dropped_events_lose_no_message(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        one.bind(sub__client__max__event__cnt="2")
        names = [f"l{n}" for n in range(30)]
        assert one.sync(ADD, *names) == v2.OK
        for name in names:
            await one.send(name, name.encode())
        got = [await one.receive(batch=7) for _ in range(5)]
        assert sorted(b for answer in got for b in answer.bodies) == sorted(
            name.encode() for name in names
        )
        await one.nothing()


async def test_invalid_requests_are_refused_with_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lite(tmp_path, auto_create_subscription_group=False) as one:
        one.one.topic("normal")
        assert one.sync(ADD, "a", topic="nothing") == v2.TOPIC_NOT_FOUND
        assert one.sync(ADD, "a", topic="bad/name") == v2.ILLEGAL_TOPIC
        assert one.sync(ADD, "a", group="bad/name") == v2.ILLEGAL_CONSUMER_GROUP
        assert one.sync(ADD, "a", group="unknown") == v2.CONSUMER_GROUP_NOT_FOUND
        assert one.sync(ADD, "a", topic="normal") == v2.BAD_REQUEST
        one.one.group("plain")
        assert one.sync(ADD, "a", group="plain") == v2.BAD_REQUEST
        one.one.node.meta_log.write_group(
            Group("off", consume_enable=False, attributes={"lite.bind.topic": PARENT})
        )
        assert one.sync(ADD, "a", group="off") == v2.INTERNAL_SERVER_ERROR
        assert one.sync(ADD, "a", client="") == v2.CLIENT_ID_REQUIRED
        # A lite group consumes only its parent; a lite consumer needs a lite group.
        assert (await one.one.receive("normal", "g")).code == v2.BAD_REQUEST
        client = one.one.node.clients.seen(one.one.context("l@1"), 1)
        client.client_type = v2.LITE_PUSH_CONSUMER
        answer = await one.receive("l@1", group="plain")
        assert answer.code == v2.BAD_REQUEST
        monkeypatch.setattr(lite_subscribe, "CALLS_A_SECOND", 0)
        assert one.sync(ADD, "a") == v2.TOO_MANY_REQUESTS


@pytest.mark.pitfall(24)
async def test_a_lite_consumers_settings_contain_its_quota(tmp_path: Path) -> None:
    """Pitfall 24: without quotas the official clients never start, or refuse every subscription."""
    async with lite(tmp_path) as one:
        one.bind(sub__client__quota="77")
        one.bind("h", sub__client__quota="-1")
        stream = Stream()
        node = one.one.node
        telemetry = TelemetryService(
            *(node.runtime.clock, node.metadata, node.clients, 1 << 22),
            forward=None,
            stacks=ClientStacks(),
        )
        session = telemetry.open(one.one.context("l@1"), stream)
        for group, expected in (("g", 77), ("h", 1_000_000)):
            settings = v2.Settings(client_type=v2.LITE_PUSH_CONSUMER)
            settings.subscription.group.name = group
            session.receive(v2.TelemetryCommand(settings=settings))
            answer = stream.commands[-1].settings.subscription
            assert answer.lite_subscription_quota == expected
            assert answer.max_lite_topic_size == 64
