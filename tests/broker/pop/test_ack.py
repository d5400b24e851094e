"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.metadata.tables import PERM_WRITE, Topic
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.tests.broker.desk import Desk, desk, message, parse_received, resource
from cometmq.tests.broker.live import settings
from cometmq.tests.broker.pop.test_redelivery import copied


async def test_acks_may_repeat_and_arrive_in_any_order(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b", b"c")
        handles = (await one.receive("t", "g")).handles
        for order, offset in ((2, 0), (0, 1), (1, 3)):
            answer = one.ack("t", "g", handles[order])
            assert answer.status.code == v2.OK
            (entry,) = answer.entries
            assert (entry.status.code, entry.status.message) == (v2.OK, "OK")
            assert (entry.message_id, entry.receipt_handle) == ("m", handles[order])
            assert one.node.offsets.get("t", "g", 0) == offset
        assert one.ack("t", "g", *handles).status.code == v2.OK
        assert one.node.runtime.counters.acked == 3


async def test_each_entry_has_its_own_code(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        (good,) = (await one.receive("t", "g")).handles
        mixed = one.ack("t", "g", "garbage", good)
        assert mixed.status.code == v2.MULTIPLE_RESULTS
        codes = [entry.status.code for entry in mixed.entries]
        assert codes == [v2.INVALID_RECEIPT_HANDLE, v2.OK]
        bad = one.ack("t", "g", "garbage", "")
        assert bad.status.code == v2.INVALID_RECEIPT_HANDLE
        assert [entry.receipt_handle for entry in bad.entries] == ["garbage", ""]


async def test_request_level_failures_have_no_entries(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for topic, group, code in (
            ("a b", "g", v2.ILLEGAL_TOPIC),
            ("t", "a b", v2.ILLEGAL_CONSUMER_GROUP),
        ):
            answer = one.ack(topic, group, "x")
            assert (answer.status.code, len(answer.entries)) == (code, 0)
        assert one.ack("t", "g").status.code == v2.INTERNAL_SERVER_ERROR
        many = one.ack("t", "g", *["x"] * 5_000)
        assert many.status.code == v2.BAD_REQUEST


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    "gone", ["deleted", "unreadable", "group deleted", "created again", "group created again"]
)
async def test_handles_are_invalid_when_the_topic_cannot_be_read_any_more(
    tmp_path: Path, orderly: bool, gone: str
) -> None:
    """Push consumers repeat every other code without end."""
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g", orderly=orderly)
        await one.sent("t", b"a")
        (handle,) = (await one.receive("t", "g")).handles
        if gone == "created again":
            one.node.meta_log.delete_topic("t")
            one.topic("t")
        elif gone == "group created again":
            one.advance(1)
            one.node.meta_log.delete_group("g", keep_offsets=False)
            one.group("g", orderly=orderly)
        elif gone == "deleted":
            one.node.meta_log.delete_topic("t")
        elif gone == "unreadable":
            one.node.meta_log.write_topic(Topic("t", 1, 1, perm=PERM_WRITE))
        else:
            one.node.meta_log.delete_group("g", keep_offsets=False)
        answer = one.ack("t", "g", handle)
        assert answer.status.code == v2.INVALID_RECEIPT_HANDLE
        assert [entry.status.code for entry in answer.entries] == [v2.INVALID_RECEIPT_HANDLE]
        changed = one.change("t", "g", handle, 60)
        assert (changed.status.code, changed.receipt_handle) == (v2.INVALID_RECEIPT_HANDLE, handle)
        request = v2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
        request.topic.name, request.group.name = "t", "g"
        with pytest.raises(WireError) as caught:
            one.acks.forward_to_dead_letter_queue(request, one.context())
        assert caught.value.code == v2.INVALID_RECEIPT_HANDLE
        if gone == "group created again":
            assert (await one.receive("t", "g")).bodies == [b"a"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handle_of_a_truncated_tail_does_not_consume_the_message_at_its_offset(
    tmp_path: Path, orderly: bool
) -> None:
    """The consumer got it from a leader that was replaced; random drill 1015 lost two messages this
    way.
    """
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g", orderly=orderly)
        one.node.metadata.groups["g"].since_ms -= 10_000
        await one.sent("t", b"a", b"b")
        fields = (await one.receive("t", "elsewhere")).handles[0].split(" ")
        fields[1] = str(one.node.runtime.clock.wall_ms() - 5_000)  # before this replica led
        fields[3] = "999" if orderly else fields[3]
        elsewhere = [*fields[:8], str(int(fields[8]) + 64)]
        answer = one.ack("t", "g", " ".join(elsewhere))
        assert answer.status.code == v2.INVALID_RECEIPT_HANDLE
        changed = one.change("t", "g", " ".join(elsewhere), 60)
        assert changed.status.code == v2.INVALID_RECEIPT_HANDLE
        assert (await one.receive("t", "g", batch=1)).bodies == [b"a"]
        # A handle of the local record: another replica delivered it, and the ack consumes it.
        assert one.ack("t", "g", " ".join(fields)).status.code == v2.OK


BAD_HANDLES = [
    "0 {now} 60000 0 0 other-broker 0 0 0",
    "0 {now} 60000 0 0 broker-a 9 0 0",
    "0 {now} 60000 0 0 broker-a 0 999999 0",
    "0 1000 10 0 0 broker-a 0 0 0",
    "0 {ahead} 60000 0 0 broker-a 0 0 0",
]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("text", BAD_HANDLES)
async def test_forged_handles_change_nothing(tmp_path: Path, text: str, orderly: bool) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g", orderly=orderly)
        await one.sent("t", b"a", b"b")
        await one.receive("t", "g", batch=1)
        now_ms = one.node.runtime.clock.wall_ms()
        handle = text.format(now=now_ms, ahead=now_ms + 500)
        one.ack("t", "g", handle)
        changed = one.change("t", "g", handle, 5_000)
        assert changed.receipt_handle == handle
        assert one.node.offsets.get("t", "g", 0) == 0
        assert one.node.pop.in_flight("t", "g", 0) == 1


async def test_an_expired_handle_is_valid_until_the_message_is_redelivered(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b")
        handles = (await one.receive("t", "g")).handles
        one.advance(30_001)
        assert one.ack("t", "g", handles[0]).status.code == v2.OK
        again = await one.receive("t", "g")
        assert again.bodies == [b"b"]
        late = one.ack("t", "g", handles[1])
        assert late.status.code == v2.INVALID_RECEIPT_HANDLE
        assert one.ack("t", "g", again.handles[0]).status.code == v2.OK
        assert one.node.offsets.get("t", "g", 0) == 2


@pytest.mark.parametrize("orderly", [False, True])
async def test_old_and_new_handle_are_valid_after_a_change(tmp_path: Path, orderly: bool) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g", orderly=orderly)
        for use_old in (True, False):
            await one.sent("t", b"a")
            (old,) = (await one.receive("t", "g")).handles
            one.advance(20_000)
            changed = one.change("t", "g", old, 60_000)
            assert changed.status.code == v2.OK
            new = changed.receipt_handle
            assert new != old and len(new.split(" ")) == 9
            # The new handle expires a minute after the change.
            fields = new.split(" ")
            ends_ms = int(fields[1]) + int(fields[2])
            assert abs(ends_ms - one.node.runtime.clock.wall_ms() - 60_000) < 10_000
            one.advance(50_000)
            await one.nothing("t", "g")
            assert one.ack("t", "g", old if use_old else new).status.code == v2.OK
            one.advance(100_000)
            await one.nothing("t", "g")


def forward(one: Desk, handle: str) -> int:
    """Move a message to the dead letters; return the code."""
    request = v2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
    request.topic.name, request.group.name = "t", "g"
    try:
        answer = one.acks.forward_to_dead_letter_queue(request, one.context())
    except WireError as error:
        return error.code
    assert not isinstance(answer, asyncio.Future)
    return answer.status.code


async def test_a_handle_of_before_a_shorter_time_is_invalid_once_the_message_comes_again(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"again", b"done")
        old, done = (await one.receive("t", "g", invisible_ms=600_000)).handles
        for copies in (1, 2):  # from the topic, then from the retry topic
            assert one.change("t", "g", old, 1_000).status.code == v2.OK
            one.advance(2_000)
            await copied(one, "%RETRY%g_t", copies)
            again = await one.receive("t", "g", invisible_ms=600_000)
            assert again.bodies == [b"again"]
            for _ in range(2):
                assert one.ack("t", "g", old).status.code == v2.INVALID_RECEIPT_HANDLE
                assert one.change("t", "g", old, 1_000).status.code == v2.INVALID_RECEIPT_HANDLE
                assert forward(one, old) == v2.INVALID_RECEIPT_HANDLE
            (old,) = again.handles
        assert one.change("t", "g", done, 1_000).status.code == v2.OK
        for _ in range(2):
            assert one.ack("t", "g", done, old).status.code == v2.OK


@pytest.mark.parametrize("how", ["undelivered", "client gone"])
async def test_a_handle_is_invalid_once_a_message_comes_again_because_its_client_seemed_gone(
    tmp_path: Path, how: str
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        ctx = one.context()
        (handle,) = (await one.receive("t", "g", ctx, auto_renew=True)).handles
        if how == "undelivered":
            assert ctx.on_undelivered is not None
            ctx.on_undelivered()
        else:
            one.node.receiving.client_gone("c@1")
        one.advance(1_100)
        await copied(one, "%RETRY%g_t", 1)
        assert one.ack("t", "g", handle).status.code == v2.INVALID_RECEIPT_HANDLE
        assert (await one.receive("t", "g")).bodies == [b"a"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handle_of_a_message_that_became_a_dead_letter_is_invalid(
    tmp_path: Path, orderly: bool
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g", orderly=orderly, max_attempts=1)
        await one.sent("t", b"a")
        (old,) = (await one.receive("t", "g", invisible_ms=600_000)).handles
        assert one.change("t", "g", old, 1_000).status.code == v2.OK
        one.advance(2_000)
        await one.nothing("t", "g")
        await copied(one, "%DLQ%g", 1)
        assert one.ack("t", "g", old).status.code == v2.INVALID_RECEIPT_HANDLE
        assert one.change("t", "g", old, 1_000).status.code == v2.INVALID_RECEIPT_HANDLE
        assert forward(one, old) == v2.OK, "it is there already"


async def test_more_handles_than_a_client_receives_are_not_all_looked_up(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"again", *[b"%d" % n for n in range(40)])
        handles = (await one.receive("t", "g", batch=32)).handles
        handles += (await one.receive("t", "g", batch=32)).handles
        assert one.ack("t", "g", *handles[1:]).status.code == v2.OK
        assert one.ack("t", "g", *handles[1:]).status.code == v2.OK, "nothing was copied"
        one.change("t", "g", handles[0], 0)
        await copied(one, "%RETRY%g_t", 1)
        codes = [entry.status.code for entry in one.ack("t", "g", *handles).entries]
        assert codes == [v2.INVALID_RECEIPT_HANDLE] + [v2.OK] * 31 + [v2.INVALID_RECEIPT_HANDLE] * 9


async def test_a_change_to_zero_makes_the_message_visible_at_once(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        (old,) = (await one.receive("t", "g")).handles
        poll = one.start_receive("t", "g")
        changed = one.change("t", "g", old, 0)
        assert changed.status.code == v2.OK
        again = parse_received(await poll)
        assert again.attempts == [2]
        refused = one.change("t", "g", changed.receipt_handle, 5_000)
        assert refused.status.code == v2.INVALID_RECEIPT_HANDLE
        assert refused.receipt_handle == changed.receipt_handle
        # The old handle has not expired by its own fields but is no longer valid.
        assert one.change("t", "g", old, 5_000).receipt_handle == old
        assert one.ack("t", "g", old).status.code == v2.INVALID_RECEIPT_HANDLE
        assert one.node.pop.in_flight("%RETRY%g_t", "g", 0) == 1


async def test_suspending_does_not_count_the_attempt(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        got = await one.receive("t", "g")
        one.change("t", "g", got.handles[0], 0, suspend=True)
        assert (await one.receive("t", "g")).attempts == [1]


@pytest.mark.parametrize("ms", [-1, 43_200_001])
async def test_an_invisible_time_outside_the_limits_is_refused(tmp_path: Path, ms: int) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        (handle,) = (await one.receive("t", "g")).handles
        refused = one.change("t", "g", handle, ms)
        assert refused.status.code == v2.ILLEGAL_INVISIBLE_TIME
        assert refused.receipt_handle == handle
        assert one.change("t", "g", handle, 43_200_000).status.code == v2.OK


@pytest.mark.parametrize("with_handle", [True, False])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_is_forwarded_to_the_dead_letters(
    tmp_path: Path, orderly: bool, with_handle: bool
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        one.group("g", orderly=orderly)
        await one.send(message("t", b"bad", "ID-1", message_group="k"))
        await one.send(message("t", b"good", "ID-2", message_group="k"))
        await one.dispatched()
        got = await one.receive("t", "g", batch=1)
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            topic=resource("t"),
            group=resource("g"),
            message_id="ID-1",
            delivery_attempt=3,
            receipt_handle=got.handles[0] if with_handle else "",
        )
        for _ in range(2):
            if with_handle or one.node.pop.in_flight("t", "g", 0):
                answer = one.acks.forward_to_dead_letter_queue(request, one.context())
                assert not isinstance(answer, asyncio.Future)
                assert answer.status.code == v2.OK
        await one.dispatched()
        assert (await one.receive("t", "g")).bodies == [b"good"]
        (dead,) = (await one.receive("%DLQ%g", "watcher")).messages
        assert (dead.body, dead.system_properties.message_id) == (b"bad", "ID-1")
        assert dead.system_properties.dead_letter_queue.topic == "t"
        assert one.node.store.max_offset("%DLQ%g", 0) == 1


async def test_forwarding_without_a_valid_handle_returns_invalid_handle(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        for handle in ("garbage", "", "0 1 2 0 0 broker-a 0 0 0"):
            request = v2.ForwardMessageToDeadLetterQueueRequest(
                topic=resource("t"),
                group=resource("g"),
                receipt_handle=handle,
                message_id="unknown",
            )
            with pytest.raises(WireError) as caught:
                one.acks.forward_to_dead_letter_queue(request, one.context())
            assert caught.value.code == v2.INVALID_RECEIPT_HANDLE
        assert one.node.metadata.topic("%DLQ%g") is None


async def test_forwarding_is_answered_after_the_copy_is_durable(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    slow = replace(chosen.store, flush_disk_type="SYNC_FLUSH")
    async with desk(tmp_path, replace(chosen, store=slow)) as one:
        one.topic("t")
        await one.sent("t", b"a")
        got = await one.receive("t", "g")
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            topic=resource("t"),
            group=resource("g"),
            receipt_handle=got.handles[0],
            message_id="ID-0",
            delivery_attempt=1,
        )
        answer = one.acks.forward_to_dead_letter_queue(request, one.context())
        assert isinstance(answer, asyncio.Future)
        assert (await answer).status.code == v2.OK
        assert one.node.store.flushed_offset >= one.node.store.max_offset("%DLQ%g", 0)
