"""Deduplication window of message ids: a model, and repeated sends against a broker."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.broker.sending.dedup_window import Reservation, SendWindow
from cometmq.proto import v1, v2
from cometmq.proto.errors import WireError
from cometmq.store.format.results import AppendResult, PutStatus
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.lite_desk import ADD, PARENT, lite
from cometmq.tests.broker.live import settings
from cometmq.tests.broker.transacting import end_transaction, prepared

WINDOW_MS, LIMIT = 100, 4


class Window(RuleBasedStateMachine):
    """The window beside a list of sent ids, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.window = SendWindow(WINDOW_MS, LIMIT)
        self.known: deque[tuple[int, bytes, int]] = deque()
        self.now_ms = 1_000
        self.stored = 0

    @rule(ms=st.integers(0, 60))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(
        requests=st.lists(
            st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]), min_size=1, max_size=3),
            min_size=1,
            max_size=2,
        ),
        outcome=st.sampled_from(["stored", "refused", "lost"]),
    )
    def a_turn(self, requests: list[list[bytes]], outcome: str) -> None:
        while self.known and self.known[0][0] <= self.now_ms - WINDOW_MS:
            self.known.popleft()
        reservations = [
            self.window.reserve("t", ids, [None] * len(ids), self.now_ms) for ids in requests
        ]
        new: dict[bytes, int] = {}
        offsets = {message_id: offset for _, message_id, offset in self.known}
        for ids, reservation in zip(requests, reservations, strict=True):
            fresh = []
            for index, message_id in enumerate(ids):
                if message_id not in offsets and message_id not in new:
                    new[message_id] = self.stored + len(new)
                    fresh.append(index)
            assert reservation.fresh == fresh
            assert reservation.duplicates == len(ids) - len(fresh)
        if outcome == "lost":
            for reservation in reservations:
                self.window.release(reservation)
            return
        self._settle(requests, reservations, {**offsets, **new}, outcome == "stored")
        if outcome == "stored":
            self.stored += len(new)
            self.known.extend((self.now_ms, message_id, new[message_id]) for message_id in new)
            while len(self.known) > LIMIT:
                self.known.popleft()

    def _settle(
        self,
        requests: list[list[bytes]],
        reservations: list[Reservation],
        at: dict[bytes, int],
        ok: bool,
    ) -> None:
        status = PutStatus.PUT_OK if ok else PutStatus.MESSAGE_ILLEGAL
        for ids, reservation in zip(requests, reservations, strict=True):
            results = [AppendResult(status, 0, 0, at[ids[index]], 0) for index in reservation.fresh]
            self.window.settle(reservation, results)
            for message_id, sent in zip(ids, reservation.sent, strict=True):
                assert sent.result is not None
                assert sent.result.queue_offset == at[message_id]

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.window) <= LIMIT


TestWindow = Window.TestCase


def test_ids_are_deduplicated_per_topic() -> None:
    window = SendWindow(WINDOW_MS, LIMIT)
    assert window.reserve("t", [b"a"], [None], 0).fresh == [0]
    assert window.reserve("u", [b"a"], [None], 0).fresh == [0]


async def test_a_repeated_message_gets_the_first_answer(tmp_path: Path) -> None:
    async with desk(
        tmp_path, message_deduplication_enable=True, message_deduplication_window_ms=10_000
    ) as one:
        one.topic("t", queues=4)
        first = await one.send(message("t", b"1", "A"), message("t", b"2", "B"))
        again = await one.send(message("t", b"1", "A"), message("t", b"2", "B"))
        assert again == first
        assert again.status.code == v2.OK
        mixed = await one.send(message("t", b"3", "C"), message("t", b"1", "A"))
        assert [entry.message_id for entry in mixed.entries] == ["C", "A"]
        assert mixed.entries[1] == first.entries[0]
        answers = await asyncio.gather(*(one.send(message("t", b"4", "D")) for _ in range(3)))
        assert answers[0] == answers[1] == answers[2]
        await one.dispatched()
        assert sum(one.node.store.max_offset("t", queue) for queue in range(4)) == 4
        assert one.node.runtime.counters.repeated == 5
        assert one.node.runtime.counters.sent["t", v2.NORMAL].messages == 4
        one.advance(10_000)
        await one.send(message("t", b"1", "A"))
        await one.dispatched()
        assert sum(one.node.store.max_offset("t", queue) for queue in range(4)) == 5


async def test_a_repeated_message_is_answered_after_it_is_durable(tmp_path: Path) -> None:
    chosen = settings(tmp_path, message_deduplication_enable=True)
    chosen = replace(chosen, store=replace(chosen.store, flush_disk_type="SYNC_FLUSH"))
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        answers = await asyncio.gather(
            *(one.send(message("t", b"x", f"ID-{n % 3}")) for n in range(9))
        )
        assert {answer.status.code for answer in answers} == {v2.OK}
        assert one.node.store.flushed_offset == one.node.store.log_end
        assert [answer.entries[0].offset for answer in answers] == [0, 1, 2] * 3


async def test_a_repeated_message_is_answered_without_another_append(tmp_path: Path) -> None:
    """The log was durable already: the second wait must not depend on further progress or the
    timeout.
    """
    chosen = settings(tmp_path, message_deduplication_enable=True)
    slow = replace(chosen.store, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=120_000)
    async with desk(tmp_path, replace(chosen, store=slow)) as one:
        one.topic("t")
        first = await one.send(message("t", b"x", "A"))
        assert await asyncio.wait_for(one.send(message("t", b"x", "A")), 60) == first


async def test_messages_of_an_earlier_instance_are_found_in_the_log(tmp_path: Path) -> None:
    chosen = settings(tmp_path, message_deduplication_enable=True)
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        one.topic("u")
        await one.sent("u", b"other topic")
        first = await one.send(message("t", b"1", "A"), message("t", b"2", "B"))
        await one.dispatched()
    async with desk(tmp_path, chosen) as one:
        again = await one.send(message("t", b"2", "B"), message("t", b"3", "C"))
        assert again.entries[0] == first.entries[1]
        assert again.entries[1].offset == 2
        assert (await one.send(message("u", b"x", "A"))).entries[0].offset == 1
        # Outside the window: stored again.
        one.advance(60_000)
        assert (await one.send(message("t", b"1", "A"))).entries[0].offset == 3
    async with desk(tmp_path, settings(tmp_path)) as one:
        assert (await one.send(message("t", b"1", "A"))).entries[0].offset == 4


async def test_a_new_leader_fills_its_window_from_the_log(tmp_path: Path) -> None:
    async with desk(tmp_path, message_deduplication_enable=True) as one:
        one.topic("t")
        first = await one.send(message("t", b"1", "A"))
        await one.dispatched()
        one.node.sender.lead()
        assert await one.send(message("t", b"1", "A")) == first
        assert (await one.send(message("t", b"2", "B"))).entries[0].offset == 1


async def test_a_refused_message_can_be_sent_again(tmp_path: Path) -> None:
    async with desk(tmp_path, message_deduplication_enable=True) as one:
        one.topic("t")
        huge = "i" * 33_000
        for _ in range(2):
            answer = await one.send(message("t", message_id=huge))
            assert answer.status.code == v2.MESSAGE_PROPERTIES_TOO_LARGE
        assert one.node.runtime.counters.repeated == 0


async def once(one: Desk, message_id: str) -> v1.SendOnceResponse:
    """Call SendOnce for a message of the topic t."""
    request = v1.SendOnceRequest(message=message("t", b"x", message_id))
    return await one.node.sender.send_once(request, one.context())


async def test_what_is_sent_once_is_stored_once_however_late_and_after_a_failover(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        answers = await asyncio.gather(*(once(one, "A") for _ in range(5)))
        assert {answer.code for answer in answers} == {v2.OK}
        assert [answer.repeated for answer in answers].count(False) == 1
        await one.dispatched()
        one.advance(3_600_000)
        assert (await once(one, "A")).repeated
        one.node.sender.lead()
        assert (await once(one, "A")).repeated
        assert not (await once(one, "B")).repeated
        await one.dispatched()
        assert one.node.store.max_offset("t", 0) == 2
        # Of a topic that is deleted meanwhile, and created again, nothing was sent.
        one.node.meta_log.delete_topic("t")
        one.topic("t")
        await one.dispatched()
        assert not (await once(one, "A")).repeated


async def test_a_new_leader_refuses_to_send_once_before_the_log_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.dispatched()
        with monkeypatch.context() as patch:
            patch.setattr(one.node.pump, "catch_up", lambda: None)
            await one.send(message("t", b"x", "A"))
            one.node.sender.lead()
            with pytest.raises(WireError, match="bytes behind the log: try again"):
                await once(one, "A")
        await one.dispatched()
        assert (await once(one, "A")).repeated


def test_the_window_keeps_what_the_index_lacks() -> None:
    window = SendWindow(WINDOW_MS, LIMIT)
    stored = AppendResult(PutStatus.PUT_OK, 500, 10, 0, 0)
    window.settle(window.reserve("t", [b"a"], [None], 0), [stored])
    late = WINDOW_MS * 10
    window.release(window.reserve("t", [b"b"], [None], late, 500))
    assert window.reserve("t", [b"a"], [None], late, 500).duplicates == 1
    assert window.reserve("t", [b"a"], [None], late, 501).duplicates == 0


async def test_without_the_setting_a_repeated_message_is_stored_again(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for n in range(2):
            assert (await one.send(message("t", b"x", "A"))).entries[0].offset == n


@pytest.mark.parametrize("restarts", [False, True])
async def test_ids_of_a_deleted_topic_are_new_in_its_successor(
    tmp_path: Path, restarts: bool
) -> None:
    async with desk(tmp_path, message_deduplication_enable=True) as one:
        one.topic("t")
        await one.sent("t", b"old")
        one.node.meta_log.delete_topic("t")
        one.topic("t")
        if not restarts:
            await one.sent("t", b"new")
            assert (await one.receive("t", "g")).bodies == [b"new"]
    if restarts:
        async with desk(tmp_path, message_deduplication_enable=True) as one:
            await one.sent("t", b"new")
            assert (await one.receive("t", "g")).bodies == [b"new"]


async def test_a_transaction_that_was_rolled_back_can_be_sent_again(tmp_path: Path) -> None:
    async with desk(tmp_path, message_deduplication_enable=True) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        (first,) = await prepared(one, "t", "A")
        assert await prepared(one, "t", "A") == [first]
        assert await end_transaction(one, "t", first, v2.ROLLBACK) == v2.OK
        (second,) = await prepared(one, "t", "A")
        assert second != first
        assert await end_transaction(one, "t", second) == v2.OK
        assert (await one.receive("t", "g")).bodies == [b"half"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_id_is_one_of_its_lite_topic(tmp_path: Path, restarts: bool) -> None:
    def lite_message(name: str) -> v2.Message:
        return message(PARENT, name.encode(), "A", message_type=v2.LITE, lite_topic=name)

    async with lite(tmp_path, message_deduplication_enable=True) as one:
        assert one.sync(ADD, "a", "b") == v2.OK
        for name in ("a", "b") if not restarts else ("a",):
            assert (await one.one.send(lite_message(name))).status.code == v2.OK
    async with lite(tmp_path, message_deduplication_enable=True) as one:
        assert one.sync(ADD, "a", "b") == v2.OK
        for name in ("a", "b", "b", "a"):
            assert (await one.one.send(lite_message(name))).status.code == v2.OK
        assert sorted((await one.receive()).bodies) == [b"a", b"b"]
