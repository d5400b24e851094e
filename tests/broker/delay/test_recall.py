"""Recalls: responses, stored records, and precedence until the message's own time."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.broker.delay.timer_intake import TimerIntake
from cometmq.broker.names.recall_handle import RecallHandle, decode_recall_handle
from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.errors import DiskFullError
from cometmq.store.format.record import decode
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.tests.broker.desk import Desk, StoppedClock, desk, message, resource
from cometmq.tests.broker.live import settings as settings_of
from cometmq.tests.broker.live import until
from cometmq.tests.broker.timing import arrives, with_store

TOPIC, GROUP = "Later", "g"
HOUR = 3_600_000
NAME = st.text("abcXYZ019_-%|", min_size=1, max_size=20)


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)


@settings(deadline=None)
@given(NAME, NAME, st.integers(0, 1 << 62), st.text(min_size=1, max_size=40))
def test_a_handle_round_trips(topic: str, broker: str, time: int, message_id: str) -> None:
    handle = RecallHandle(topic, broker, time, message_id)
    assert decode_recall_handle(handle.encode()) == handle


@settings(deadline=None)
@given(st.one_of(st.text(max_size=60), st.binary(max_size=60).map(base64.urlsafe_b64encode)))
def test_other_text_is_not_a_handle(text: str | bytes) -> None:
    found = decode_recall_handle(text if isinstance(text, str) else text.decode())
    assert found is None or found.encode()


def test_a_handle_for_apaches_store_is_decoded() -> None:
    text = base64.urlsafe_b64encode(b"v1 T broker-a 1795255731001 0102FC").decode()
    assert decode_recall_handle(text) == RecallHandle("T", "broker-a", 1795255731001, "0102FC")


async def send(k: Desk, body: bytes, due_ms: int, message_id: str, topic: str = TOPIC) -> str:
    """Send a delayed message; return its recall handle."""
    sent = message(topic, body, message_id)
    sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    answer = await k.send(sent)
    assert answer.status.code == v2.OK, answer
    await k.dispatched()
    return answer.entries[0].recall_handle


async def recall(k: Desk, handle: str, topic: str = TOPIC) -> v2.RecallMessageResponse:
    request = v2.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    try:
        answer = k.node.recalls.recall(request, k.context())
        return await answer if isinstance(answer, asyncio.Future) else answer
    except WireError as error:
        return v2.RecallMessageResponse(status=error.status())


async def bodies(k: Desk, count: int) -> list[bytes]:
    await until(lambda: sum(k.node.timers.stats.dequeued_by_topic.values()) >= count)
    return (await k.receive(TOPIC, GROUP, k.context(remaining_ms=30_000))).bodies


async def test_only_the_recalled_message_is_not_delivered(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        handle = await send(k, b"recalled", due, "M1")
        await send(k, b"kept", due, "M2")
        answer = await recall(k, handle)
        assert (answer.status.code, answer.message_id) == (v2.OK, "M1")
        assert (await recall(k, handle)).status.code == v2.OK
        k.advance(HOUR)
        assert await bodies(k, 2) == [b"kept"]
        assert (await recall(k, handle)).status.code == v2.NOT_FOUND


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_recall_names_exactly_one_message(tmp_path: Path, restarts: bool) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as k:
        for topic in (TOPIC, "Other"):
            k.topic(topic, message_type=v2.DELAY)
        due = clock.wall_ms() + HOUR
        first = await send(k, b"first", due, "M1")
        await send(k, b"second", due, "M1")
        await send(k, b"other", due, "M1", topic="Other")
        assert (await recall(k, first)).status.code == v2.OK
        if not restarts:
            await _only_the_first_is_recalled(k)
    if restarts:
        async with desk(tmp_path, clock=clock) as k:
            await _only_the_first_is_recalled(k)


async def _only_the_first_is_recalled(k: Desk) -> None:
    k.advance(HOUR)
    await until(lambda: sum(k.node.timers.stats.dequeued_by_topic.values()) >= 3)
    assert (await k.receive("Other", GROUP)).bodies == [b"other"]
    assert (await k.receive(TOPIC, GROUP)).bodies == [b"second"]


async def test_a_recall_handle_cannot_be_forged(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        real = decode_recall_handle(
            await send(k, b"kept", k.node.runtime.clock.wall_ms() + HOUR, "M1")
        )
        assert real is not None and real.mark
        for mark in (0, real.mark ^ 1):
            await recall(k, replace(real, mark=mark).encode())
        k.advance(HOUR)
        assert await bodies(k, 1) == [b"kept"]


async def test_a_handle_cancels_no_message_of_another_topic(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        for name in (TOPIC, "Own"):
            k.topic(name, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        handle = decode_recall_handle(await send(k, b"kept", due, "M1"))
        assert handle is not None
        for message_id in ("M1", f"{TOPIC}+M1"):
            made = RecallHandle("Own", handle.broker, handle.recall_ms, message_id).encode()
            assert (await recall(k, made, "Own")).status.code == v2.OK
        k.advance(HOUR)
        assert await bodies(k, 1) == [b"kept"]


async def test_a_recall_of_a_message_that_waits_longer_than_the_wheel_holds(tmp_path: Path) -> None:
    chosen = with_store(tmp_path, timer_roll_window_slot=60)
    async with desk(tmp_path, chosen) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + 90_000
        handle = await send(k, b"recalled", due, "M1")
        await send(k, b"kept", due, "M1")
        assert (await recall(k, handle)).status.code == v2.OK
        for _ in range(4):
            k.advance(30_000)
            await k.dispatched()
            await until(lambda: not k.node.timers.dequeue_lag and not k.node.timers.enqueue_lag)
        assert (await k.receive(TOPIC, GROUP, k.context(remaining_ms=30_000))).bodies == [b"kept"]


async def test_the_recall_record_equals_apaches(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = (k.node.runtime.clock.wall_ms() + HOUR) // 1000 * 1000
        await recall(k, await send(k, b"x", due, "M1"))
        await k.dispatched()
        _, stored = k.node.store.get(TIMER_TOPIC, 0, 0, 9, 1 << 20).records
        record = decode(stored.data)
        assert record.body == b"0"
        pairs = [part.split("\x01") for part in record.properties.decode().split("\x02")[:-1]]
        assert " ".join(name for name, _ in pairs) == (
            "TIMER_DEL_UNIQKEY REAL_TOPIC BORN_TIMESTAMP TRACE_CONTEXT TIMER_DELIVER_MS "
            "UNIQ_KEY TAGS TIMER_OUT_MS REAL_QID"
        )
        found = dict(pairs)
        assert found["TIMER_DEL_UNIQKEY"] == found["UNIQ_KEY"] == "M1"
        assert found["TAGS"] == "_RECALL_TAG_"
        assert found["TIMER_OUT_MS"] == str(due - 1000)
        assert found["TIMER_DELIVER_MS"] == str(due - 999)
        assert (found["REAL_TOPIC"], found["REAL_QID"]) == (TOPIC, "0")


async def test_the_old_form_of_the_key_is_accepted(tmp_path: Path) -> None:
    async with desk(tmp_path, append_topic_for_timer_delete_key=True) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        await recall(k, await send(k, b"x", due, "M1"))
        await send(k, b"kept", due, "M2")
        k.advance(HOUR)
        assert await bodies(k, 2) == [b"kept"]


async def test_a_recall_in_an_open_slot_wins_until_the_messages_own_time(
    tmp_path: Path,
) -> None:
    clock = StoppedClock()
    async with desk(tmp_path, clock=clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = (clock.wall_ms() + HOUR) // 1000 * 1000
        early = await send(k, b"early", due - 900, "M1")
        late = await send(k, b"late", due, "M2")
        clock.set_wall_ms(due - 500)
        k.advance(0)
        await until(lambda: k.node.timers.stats.dequeued_by_topic)
        assert (await recall(k, early)).status.code == v2.NOT_FOUND
        assert (await recall(k, late)).status.code == v2.OK
        k.advance(HOUR)
        assert await bodies(k, 2) == [b"early"]


async def test_a_recall_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = clock.wall_ms() + HOUR
        await recall(k, await send(k, b"recalled", due, "M1"))
        await send(k, b"kept", due, "M2")
    clock.advance_wall_ms(2 * HOUR)
    async with desk(tmp_path, clock=clock) as k:
        assert await bodies(k, 2) == [b"kept"]


async def test_a_recall_is_answered_after_the_flush_where_sends_are(tmp_path: Path) -> None:
    async with desk(tmp_path, with_store(tmp_path, flush_disk_type="SYNC_FLUSH")) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        handle = await send(k, b"recalled", due, "M1")
        await send(k, b"kept", due, "M2")
        before = k.node.store.log_end
        assert (await recall(k, handle)).status.code == v2.OK
        assert k.node.store.flushed_offset > before
        k.advance(HOUR)
        assert await bodies(k, 2) == [b"kept"]


async def test_invalid_recalls_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        k.topic("Normal")
        soon = k.node.runtime.clock.wall_ms() + HOUR
        name = k.node.runtime.config.broker_name
        good = RecallHandle(TOPIC, name, soon, "M").encode()
        for handle, topic, code in (
            ("nonsense", TOPIC, v2.BAD_REQUEST),
            ("", TOPIC, v2.BAD_REQUEST),
            (RecallHandle("Other", name, soon, "M").encode(), TOPIC, v2.BAD_REQUEST),
            (RecallHandle(TOPIC, "other", soon, "M").encode(), TOPIC, v2.BAD_REQUEST),
            (RecallHandle(TOPIC, name, soon + 10**12, "M").encode(), TOPIC, v2.BAD_REQUEST),
            (RecallHandle(TOPIC, name, soon - 2 * HOUR, "M").encode(), TOPIC, v2.NOT_FOUND),
            (good, "Normal", v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            (good, "Nowhere", v2.TOPIC_NOT_FOUND),
            (good, "a.b", v2.ILLEGAL_TOPIC),
            (good, TIMER_TOPIC, v2.ILLEGAL_TOPIC),
            (good, TOPIC, v2.OK),  # never sent: the reference returns OK as well
        ):
            assert (await recall(k, handle, topic)).status.code == code, (handle, topic)


async def test_recalls_can_be_disabled(tmp_path: Path) -> None:
    async with desk(tmp_path, recall_message_enable=False) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        handle = await send(k, b"x", k.node.runtime.clock.wall_ms() + HOUR, "M1")
        assert (await recall(k, handle)).status.code == v2.FORBIDDEN


async def test_a_recall_in_the_log_is_ok_even_if_enqueueing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = with_store(tmp_path, flush_disk_type="SYNC_FLUSH")
    async with desk(tmp_path, chosen) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        handle = await send(k, b"x", due, "A")

        def full(*_: object) -> bool:
            raise DiskFullError("there is no room")

        with monkeypatch.context() as patched:
            patched.setattr(TimerIntake, "enqueue", full)
            request = v2.RecallMessageRequest(topic=resource(TOPIC), recall_handle=handle)
            recalled = k.node.recalls.recall(request, k.context())
            assert isinstance(recalled, asyncio.Future)
            assert (await recalled).status.code == v2.OK
        k.advance(HOUR)
        await until(lambda: k.node.timers.enqueue_lag == 0 and k.node.timers.dequeue_lag == 0)
        await k.nothing(TOPIC, GROUP)


async def test_a_recalled_message_can_be_sent_again_with_its_id(tmp_path: Path) -> None:
    chosen = settings_of(tmp_path, message_deduplication_enable=True)
    async with desk(tmp_path, chosen) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due_ms = k.node.runtime.clock.wall_ms() + HOUR
        handle = await send(k, b"first", due_ms, "ID-one")
        assert await send(k, b"repeated", due_ms, "ID-one") == handle
        assert (await recall(k, handle)).status.code == v2.OK
        await send(k, b"again", due_ms, "ID-one")
        k.advance(HOUR)
        await arrives(k, b"again")
