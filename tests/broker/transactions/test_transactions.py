"""Transactions on a real broker: half messages, ends, op records, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.metadata.tables import Topic
from cometmq.broker.transactions.records import GROUP, HALF_TOPIC, OP_TOPIC
from cometmq.front.context import RequestContext
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.config.catalog import problems
from cometmq.store.format.json_file import CHECKSUM, dumps, unseal
from cometmq.store.format.record import Message, encode_properties
from cometmq.tests.broker.desk import Desk, desk, message, parse_received
from cometmq.tests.broker.live import Settings, running, settings, until
from cometmq.tests.broker.metrics.test_observed import samples
from cometmq.tests.broker.transacting import (
    end_transaction,
    half,
    ops,
    prepared,
    producing,
    stored,
)

ROUND_MS = 30_000


async def test_a_commit_becomes_visible_once_and_a_rollback_never(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        first, second = await prepared(one, "t", "A", "B")
        assert first == "broker-a:0:A"
        await one.nothing("t", "g")
        waiting = one.start_receive("t", "g")
        assert await end_transaction(one, "t", first) == v2.OK
        assert await end_transaction(one, "t", second, v2.ROLLBACK) == v2.OK
        assert await end_transaction(one, "t", first) == v2.OK, "again, because the answer was lost"
        assert await end_transaction(one, "t", second, v2.ROLLBACK) == v2.OK
        (item,) = parse_received(await waiting).messages
        assert item.system_properties.message_type == v2.TRANSACTION
        assert item.user_properties["__transactionId__"] == "A"
        (record,) = stored(one, "t")
        assert record.prepared_transaction_offset == stored(one, HALF_TOPIC)[0].physical_offset
        one.node.transactions.ops.flush()
        assert ops(one) == [[0, 1]]
        assert await end_transaction(one, "t", first) == v2.OK, (
            "also when the table has forgotten it"
        )
        assert len(stored(one, "t")) == 1


async def test_invalid_ends_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        one.topic("other", message_type=v2.TRANSACTION)
        first, second = await prepared(one, "t", "A", "B")
        for ident in ("", "  ", "A:B", "broker-a:7:A", "broker-b:0:A", "broker-a:0:B", "C"):
            assert await end_transaction(one, "t", ident) == v2.INVALID_TRANSACTION_ID, ident
        assert await end_transaction(one, "other", first) == v2.INVALID_TRANSACTION_ID
        assert await end_transaction(one, "rmq_sys_x", first) == v2.ILLEGAL_TOPIC
        assert await end_transaction(one, "t", first, 0) == v2.OK, (
            "an unknown outcome does not end it"
        )
        assert await end_transaction(one, "t", first) == v2.OK
        assert await end_transaction(one, "t", first, v2.ROLLBACK) == v2.INVALID_TRANSACTION_ID
        one.node.transactions.ops.flush()
        assert await end_transaction(one, "t", first, v2.ROLLBACK) == v2.INVALID_TRANSACTION_ID
        assert await end_transaction(one, "t", first, 0) == v2.OK
        assert await end_transaction(one, "other", first) == v2.INVALID_TRANSACTION_ID
        assert await end_transaction(one, "t", "B") == v2.OK, "a bare message id will do"
        assert await end_transaction(one, "t", second) == v2.OK
        assert len(stored(one, "t")) == 2


async def test_invalid_half_messages_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=-1)
        conflicts: list[dict[str, Any]] = [
            {"message_group": "g"},
            {"priority": 3},
            {"lite_topic": "l"},
            {"delivery_timestamp": v2.Timestamp(seconds=4_000_000_000)},
        ]
        for conflict in conflicts[:3]:
            sent = message("t", message_type=v2.TRANSACTION, **conflict)
            answer = await one.send(sent)
            assert answer.status.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, conflict
        soon = v2.Timestamp(seconds=one.node.runtime.clock.wall_ms() // 1000 + 60)
        sent = message("t", message_type=v2.TRANSACTION, delivery_timestamp=soon)
        answer = await one.send(sent)
        assert answer.status.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert not stored(one, HALF_TOPIC)
        one.topic("normal")
        (answer,) = [await one.send(message("normal", message_type=v2.TRANSACTION))]
        assert answer.status.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_transactions_can_be_disabled(tmp_path: Path) -> None:
    async with desk(tmp_path, reject_transaction_message=True) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        answer = await one.send(message("t", message_type=v2.TRANSACTION))
        assert answer.status.code == v2.FORBIDDEN


async def test_each_half_message_of_a_request_has_an_id(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        three = [message("t", b"x", key, message_type=v2.TRANSACTION) for key in "ABC"]
        answer = await one.send(*three)
        assert [entry.transaction_id for entry in answer.entries] == [
            f"broker-a:{n}:{key}" for n, key in enumerate("ABC")
        ]


async def test_a_repeated_half_message_is_stored_once_with_deduplication(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, message_deduplication_enable=True) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        first, again = await prepared(one, "t", "A", "A")
        assert first == again == "broker-a:0:A"
        assert len(stored(one, HALF_TOPIC)) == 1


async def test_ends_are_written_in_batches_by_size_and_by_time(tmp_path: Path) -> None:
    slow: dict[str, Any] = {
        "transaction_op_msg_max_size": 12,
        "transaction_op_batch_interval": 60_000,
        "transaction_check_interval": 3_600_000,
    }
    async with desk(tmp_path, **slow) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        ids = await prepared(one, "t", *(f"M{n}" for n in range(8)))
        for ident in reversed(ids[2:]):
            await end_transaction(one, "t", ident, v2.ROLLBACK)
        assert ops(one) == [[7, 6, 5, 4, 3, 2]], "twelve bytes are full"
        await end_transaction(one, "t", ids[1])
        assert len(ops(one)) == 1
        for ms, count in ((30_000, 1), (30_000, 2)):
            one.node.runtime.clock.advance_wall_ms(ms)
            one.node.transactions.clock_moved()
            assert len(ops(one)) == count
        assert ops(one)[1:] == [[1]]
        kept = one.node.offsets
        assert kept.get(HALF_TOPIC, GROUP, 0) in (None, 0), "the first one is open"
        await end_transaction(one, "t", ids[0])
        one.node.transactions.ops.flush()
        assert kept.get(HALF_TOPIC, GROUP, 0) == 8
        await until(lambda: one.node.transactions.table.first_op == 3)
        one.node.transactions.ops.save_progress()
        assert kept.get(OP_TOPIC, GROUP, 0) == 3


async def test_a_commit_goes_to_a_queue_that_the_topic_still_has(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", 3, message_type=v2.TRANSACTION)
        ids = await prepared(one, "t", "A", "B", "C")
        one.topic("t", 1, message_type=v2.TRANSACTION)
        for ident in ids:
            assert await end_transaction(one, "t", ident) == v2.OK
        assert len(stored(one, "t")) == 3
        (again,) = await prepared(one, "t", "D")
        one.node.metadata.remove_topic("t")
        assert await end_transaction(one, "t", again) == v2.TOPIC_NOT_FOUND
        one.topic("t", message_type=v2.TRANSACTION)
        ended = await end_transaction(one, "t", again)
        assert ended == v2.INVALID_TRANSACTION_ID, "the topic of this name is another one"


def in_sync_flush(chosen: Settings) -> Settings:
    """The same, where OK means: on disk."""
    return replace(chosen, store=replace(chosen.store, flush_disk_type="SYNC_FLUSH"))


async def test_a_commit_is_answered_after_it_is_durable(tmp_path: Path) -> None:
    chosen = in_sync_flush(settings(tmp_path))
    async with running(chosen) as live, producing(live, "p@1", "t") as producer:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        (ident,) = await producer.send(half("t", "A"))
        assert await producer.end("t", ident) == v2.OK
        (record,) = stored(live, "t")
        assert live.node.store.flushed_offset >= record.physical_offset + record.size
        assert await producer.end("t", ident) == v2.OK


async def test_ends_are_refused_and_stay_open_while_the_store_is_not_writable(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        (ident,) = await prepared(one, "t", "A")
        (seen,) = await prepared(one, "t", "B")
        assert await end_transaction(one, "t", seen, 0) == v2.OK
        (hidden,) = await prepared(one, "t", "C")
        one.node.store.gate.refuse("the disk broke")
        for still_open in (ident, seen, hidden):
            assert await end_transaction(one, "t", still_open) == v2.INTERNAL_SERVER_ERROR
        assert {one.outcome.value for one in one.node.transactions.table} == {"open"}


async def test_metrics_and_file_contain_open_and_ended_transactions(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, producing(live, "p@1", "t") as producer:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        ids = await producer.send(*(half("t", key) for key in "ABC"))
        await producer.end("t", ids[0])
        await producer.end("t", ids[1], v2.ROLLBACK)
        found = await samples(live)
        for name in ("half_messages", "commit_messages_total", "rollback_messages_total"):
            (sample,) = found[f"rocketmq_{name}"]
            assert (sample.labels["topic"], sample.value) == ("t", 1)
        assert found["rocketmq_finish_message_latency_count"][0].value == 1
        assert found["rocketmq_finish_message_latency_bucket"][0].value == 1
    path = tmp_path / "config" / "transactionMetrics"
    content = json.loads(path.read_text())
    assert problems(path.name, content) == []
    del content[CHECKSUM]
    assert unseal(path.read_text()) == dumps(content, compact=True), "as Apache writes it"
    assert content["transactionCount"]["t"]["count"] == 1
    path.write_text(dumps({**content, "newField": 1}, compact=True))
    async with running(settings(tmp_path)) as live:
        await until(lambda: live.node.transactions.recovery is None)
    again = json.loads(path.read_text())
    assert again["newField"] == 1
    assert again["transactionCount"]["t"]["count"] == 1
    assert again["dataVersion"]["counter"] > content["dataVersion"]["counter"]


async def test_op_records_whose_append_fails_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, transaction_op_batch_interval=3_600_000) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        ids = await prepared(one, "t", "A", "B", "C")
        await end_transaction(one, "t", ids[0], v2.ROLLBACK)
        refusing = one.node.replication
        monkeypatch.setattr(refusing, "write_refusal", lambda: "no replica is in sync")
        one.node.transactions.ops.flush()
        assert one.node.transactions.table.buffer == [0]
        assert await end_transaction(one, "t", ids[1]) == v2.HA_NOT_AVAILABLE, "a commit is a write"
        assert await end_transaction(one, "t", ids[1], v2.ROLLBACK) == v2.OK, "this waits in memory"
        monkeypatch.setattr("cometmq.broker.transactions.ops.BUFFER_MAX", 2)
        assert await end_transaction(one, "t", ids[2], v2.ROLLBACK) == v2.INTERNAL_SERVER_ERROR
        monkeypatch.undo()
        one.node.transactions.ops.flush()
        assert ops(one) == [[0, 1]]
        assert await end_transaction(one, "t", ids[2]) == v2.OK


async def test_a_half_message_that_apache_stored_with_a_delay_is_delayed_when_it_is_committed(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        deliver_ms = one.node.runtime.clock.wall_ms() + 60_000
        properties = {
            "UNIQ_KEY": "A",
            "TRAN_MSG": "true",
            "TIMER_DELIVER_MS": str(deliver_ms),
            "REAL_TOPIC": "t",
            "REAL_QID": "0",
        }
        record = Message(HALF_TOPIC, 0, b"later", encode_properties(properties))
        one.node.sender.append_internal([record])
        assert await end_transaction(one, "t", "A") == v2.OK
        assert not stored(one, "t")
        (timer,) = stored(one, "rmq_sys_wheel_timer")
        assert timer.properties_dict["REAL_TOPIC"] == "t"
        assert timer.sys_flag & 0xC == 0x8


def lead_slowly(one: Desk) -> Callable[[], None]:
    """Lead, and accept ends when the returned function is called."""
    one.node.transactions.lead()
    recovery = one.node.transactions.recovery
    assert recovery is not None
    log_end, recovery.log_end = recovery.log_end, 1 << 60
    return lambda: setattr(recovery, "log_end", log_end)


async def test_a_follower_refuses_ends(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        (ident,) = await prepared(one, "t", "A")
        one.node.transactions.follow()
        assert await end_transaction(one, "t", ident) == v2.HA_NOT_AVAILABLE
        finish = lead_slowly(one)
        early = asyncio.ensure_future(end_transaction(one, "t", ident))
        await asyncio.sleep(0)
        assert not early.done(), "it waits until the table is complete"
        finish()
        assert await early == v2.OK
        assert len(stored(one, "t")) == 1


async def test_ends_that_wait_for_the_start_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.transactions.service._WAITING_MAX", 1)
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        first, second = await prepared(one, "t", "A", "B")
        one.node.transactions.follow()
        finish = lead_slowly(one)
        early = asyncio.ensure_future(end_transaction(one, "t", first))
        await asyncio.sleep(0)
        assert await end_transaction(one, "t", second) == v2.TOO_MANY_REQUESTS
        finish()
        assert await early == v2.OK


def context() -> RequestContext:
    """Return a context without a client."""
    return RequestContext()


async def test_an_end_needs_a_client_id(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        with pytest.raises(WireError):
            one.node.transactions.end_transaction(v2.EndTransactionRequest(), context())
