"""Transaction checks on a real broker: interval, producer rotation, limit, immunity, restart,
Apache's directory.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from cometmq.broker.metadata.tables import Topic
from cometmq.broker.transactions.records import GROUP, HALF_TOPIC, PARKED_TOPIC
from cometmq.proto import v2
from cometmq.tests.broker.live import running, settings, until
from cometmq.tests.broker.test_replicas import logs_equal, pair
from cometmq.tests.broker.transacting import (
    advance,
    client_of,
    end,
    half,
    ops,
    producing,
    stored,
    stored_of,
)
from cometmq.tests.formats.cases import new_store, unpack

ROUND_MS = 30_000


async def test_checks_are_sent_at_the_references_times(tmp_path: Path) -> None:
    async with (
        running(settings(tmp_path)) as live,
        producing(live, "p@1", "t", "unrelated") as producer,
    ):
        live.node.meta_log.write_topic(Topic("t", 2, 2, message_type=v2.TRANSACTION))
        (ident,) = await producer.send(half("t", "A", b"body"))
        await until(lambda: len(live.node.transactions.table) == 1)
        await advance(producer.wire, 5_000)
        stats = live.node.transactions.stats
        assert stats.asked == 0
        await advance(producer.wire, ROUND_MS - 5_000)
        asked = await producer.next_check()
        assert asked.transaction_id == ident
        assert asked.message.topic == v2.Resource(name="t", resource_namespace="space")
        assert asked.message.body == b"body"
        system = asked.message.system_properties
        assert system.message_id == "A"
        assert system.message_type == v2.TRANSACTION
        assert dict(asked.message.user_properties) == {"colour": "blue", "__transactionId__": "A"}
        await advance(producer.wire, ROUND_MS - 15_000)
        assert stats.asked == 1
        await advance(producer.wire, 15_000)
        again = await producer.next_check()
        assert again.transaction_id == ident, "its copies go by the same name"
        assert await producer.end("t", again.transaction_id) == v2.OK
        (commit,) = stored(live, "t") or stored_of(live, "t", 1)
        copies = stored(live, HALF_TOPIC)
        assert len(copies) == 3
        assert commit.prepared_transaction_offset == copies[-1].physical_offset
        await advance(producer.wire, ROUND_MS)
        assert stats.asked == 2
        assert ops(live) == [[2]]


async def test_checks_rotate_among_active_producers(tmp_path: Path) -> None:
    async with (
        running(settings(tmp_path)) as live,
        producing(live, "first@1", "t") as first,
        producing(live, "second@1", "t") as second,
        producing(live, "other@1", "x"),
    ):
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        await first.send(half("t", "A"))
        await until(lambda: len(live.node.transactions.table) == 1)
        await advance(first.wire, ROUND_MS)
        await first.next_check()
        await advance(first.wire, ROUND_MS)
        await second.next_check()
        first.stream.cancel()
        await until(lambda: not client_of(live, "first@1").streams)
        for _ in range(2):
            await advance(second.wire, ROUND_MS)
            asked = await second.next_check()
        assert await second.end("t", asked.transaction_id) == v2.OK
        second.stream.cancel()
        await until(lambda: not client_of(live, "second@1").streams)


async def test_a_producer_is_checked_for_its_transaction_before_its_settings_contain_the_topic(
    tmp_path: Path,
) -> None:
    async with running(settings(tmp_path)) as live, producing(live, "java@1") as producer:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        await producer.send(half("t", "A"))
        await producer.settle("x")
        await until(lambda: len(live.node.transactions.table) == 1)
        await advance(producer.wire, ROUND_MS)
        assert (await producer.next_check()).message.topic.name == "t"


async def test_after_fifteen_checks_a_half_message_is_parked_even_without_a_producer(
    tmp_path: Path,
) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        sent = await wire.send([half("t", "A")])
        ident = sent.entries[0].transaction_id
        transactions = live.node.transactions
        await until(lambda: len(transactions.table) == 1)
        for _ in range(15):
            await advance(wire, ROUND_MS)
        assert (transactions.stats.asked, transactions.stats.unreachable) == (0, 15)
        assert not stored(live, PARKED_TOPIC)
        await advance(wire, ROUND_MS)
        (parked,) = stored(live, PARKED_TOPIC)
        assert parked.body == b"half"
        properties = parked.properties_dict
        assert properties["TRANSACTION_CHECK_TIMES"] == "15"
        assert properties["REAL_TOPIC"] == "t"
        assert live.node.metadata.topic(PARKED_TOPIC) is not None
        assert await end(wire, "t", ident) == v2.INVALID_TRANSACTION_ID, "it is over"
        assert not stored(live, "t")
        for _ in range(3):
            await advance(wire, ROUND_MS)
        assert len(stored(live, PARKED_TOPIC)) == 1
        assert live.node.offsets.get(HALF_TOPIC, GROUP, 0) == 16


async def test_no_check_is_sent_before_the_immunity_time(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, producing(live, "p@1", "t") as producer:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        (ident,) = await producer.send(half("t", "A", immunity_s=600))
        await until(lambda: len(live.node.transactions.table) == 1)
        stats = live.node.transactions.stats
        for _ in range(19):
            await advance(producer.wire, ROUND_MS)
        assert (stats.asked, stats.given_up) == (0, 0)
        copies = stored(live, HALF_TOPIC)
        assert len(copies) == 20
        assert copies[-1].properties_dict["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        await advance(producer.wire, ROUND_MS)
        asked = await producer.next_check()
        assert asked.transaction_id == ident
        wait = asked.message.system_properties.orphaned_transaction_recovery_duration
        assert wait.seconds == 600
        await advance(producer.wire, ROUND_MS)
        assert (await producer.next_check()).transaction_id == ident
        assert await producer.end("t", ident) == v2.OK, "late, and it counts"
        assert len(stored(live, "t")) == 1


async def test_a_large_round_runs_in_slices(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, producing(live, "p@1", "t") as producer:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        await producer.send(*(half("t", f"M{n}") for n in range(100)))
        await until(lambda: len(live.node.transactions.table) == 100)
        await advance(producer.wire, ROUND_MS)
        asked = [await producer.next_check() for _ in range(100)]
        assert [one.message.system_properties.message_id for one in asked] == [
            f"M{n}" for n in range(100)
        ]
        for one in asked:
            assert await producer.end("t", one.transaction_id, v2.ROLLBACK) == v2.OK
        await advance(producer.wire, ROUND_MS)
        assert sum(len(batch) for batch in ops(live)) == 100
        assert len(live.node.transactions.table) == 0


async def test_checks_continue_after_a_restart(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, producing(live, "p@1", "t") as producer:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        ids = await producer.send(*(half("t", key) for key in "ABCD"))
        await until(lambda: len(live.node.transactions.table) == 4)
        await advance(producer.wire, ROUND_MS)
        for _ in range(4):
            await producer.next_check()
        assert await producer.end("t", ids[0]) == v2.OK
        assert await producer.end("t", ids[1], v2.ROLLBACK) == v2.OK
    async with running(settings(tmp_path)) as live, producing(live, "q@1", "t") as producer:
        transactions = live.node.transactions
        await until(lambda: transactions.recovery is None)
        assert sorted(one.key for one in transactions.table) == ["C", "D"]
        assert {one.checks for one in transactions.table} == {1}
        assert await producer.end("t", ids[0]) == v2.OK, "it was committed before"
        assert await producer.end("t", ids[2]) == v2.OK, "the id of before still leads there"
        assert len(stored(live, "t")) == 2
        await advance(producer.wire, ROUND_MS)
        asked = await producer.next_check()
        assert asked.message.system_properties.message_id == "D"
        assert await producer.end("t", asked.transaction_id) == v2.OK
        assert len(stored(live, "t")) == 3
    async with running(settings(tmp_path)) as live:
        await until(lambda: live.node.transactions.recovery is None)
        assert len(live.node.transactions.table) == 0


async def test_a_followers_copy_has_committed_and_open_transactions(tmp_path: Path) -> None:
    """The leader ends between a commit and its op record, and its follower's directory leads."""
    async with pair(tmp_path, sync=True) as (leader, follower, _):
        async with producing(leader, "p@1", "t") as producer:
            leader.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
            first, second, third = await producer.send(*(half("t", key) for key in "ABC"))
            assert await producer.end("t", first) == v2.OK
            await until(lambda: len(leader.node.transactions.table) == 3)
            await advance(producer.wire, ROUND_MS)
            for _ in range(2):
                await producer.next_check()
            assert await producer.end("t", second) == v2.OK
            await until(lambda: logs_equal(leader, follower))
        shutil.copytree(tmp_path / "b", tmp_path / "heir")
    async with (
        running(settings(tmp_path / "heir")) as live,
        producing(live, "q@1", "t") as producer,
    ):
        assert await producer.end("t", first) == v2.OK
        assert await producer.end("t", second) == v2.OK
        assert len(stored(live, "t")) == 2, "both were committed before, and are not again"
        await advance(producer.wire, ROUND_MS)
        assert (await producer.next_check()).message.system_properties.message_id == "C"
        assert await producer.end("t", third) == v2.OK, "the id of before still leads there"
        assert len(stored(live, "t")) == 3


async def test_apaches_open_transactions_are_checked(tmp_path: Path) -> None:
    """Ten half messages without an end; Apache has re-appended finished ones too."""
    root = unpack("transaction", tmp_path)
    chosen = replace(settings(root), store=new_store("transaction", root).config)
    async with running(chosen) as live, producing(live, "p@1", "TopicTx") as producer:
        transactions = live.node.transactions
        await until(lambda: transactions.recovery is None)
        committed = {record.properties_dict["UNIQ_KEY"] for record in stored(live, "TopicTx")}
        committed |= {
            record.properties_dict["UNIQ_KEY"] for record in stored_of(live, "TopicTx", 1)
        }
        still = {one.key for one in transactions.halves.open()}
        assert not still & committed, "what it committed is not checked again"
        assert len(still) == 20, "ten that are open, ten whose rollback it put back in line"
        ids = [str(one.origin) for one in transactions.halves.open()]
        assert len(set(ids)) == 20
        one = next(iter(transactions.halves.open()))
        assert await producer.end("TopicTx", one.key) == v2.OK


async def test_a_half_message_deleted_by_retention_is_lost(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, producing(live, "p@1", "t") as producer:
        live.node.meta_log.write_topic(Topic("t", 1, 1, message_type=v2.TRANSACTION))
        first, second = await producer.send(half("t", "A"), half("t", "B"))
        transactions = live.node.transactions
        await until(lambda: len(transactions.table) == 2)
        for one in transactions.table:
            one.physical = 1 << 40  # nothing is there
        assert await producer.end("t", first) == v2.INVALID_TRANSACTION_ID
        await advance(producer.wire, ROUND_MS)
        assert (transactions.stats.lost, transactions.stats.given_up) == (2, 0)
        assert await producer.end("t", second) == v2.INVALID_TRANSACTION_ID
        assert not stored(live, "t")
