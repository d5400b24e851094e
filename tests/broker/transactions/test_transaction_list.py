"""The list of open transactions of the Admin service, and deciding one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.live import create_topic, running, settings, until
from cometmq.tests.broker.transacting import advance, half, producing
from cometmq.tests.harness.wire import Wire

ROUND_MS = 30_000


async def listed(wire: Wire, **fields: Any) -> v1.ListTransactionsResponse:
    answer: v1.ListTransactionsResponse = await wire.call(
        paths.LIST_TRANSACTIONS, v1.ListTransactionsRequest(**fields), v1.ListTransactionsResponse
    )
    assert answer.code == v2.OK, answer.message
    return answer


async def test_open_transactions_are_listed_with_checks_until_they_are_decided(
    tmp_path: Path,
) -> None:
    chosen = settings(tmp_path, transaction_check_interval=ROUND_MS, transaction_time_out=6_000)
    async with running(chosen) as live, live.client() as wire:
        for topic in ("pay", "ship"):
            await create_topic(wire, topic, message_type=v2.TRANSACTION)
        async with producing(live, "p", "pay", "ship") as producer:
            ids = await producer.send(half("pay", "A"))
            ids += await producer.send(half("pay", "B", immunity_s=3_600))
            ids += await producer.send(half("ship", "C"))
            await until(lambda: len(live.node.transactions.table) == 3)
            everything = await listed(wire)
            assert [one.message_id for one in everything.transactions] == ["A", "B", "C"]
            assert [one.transaction_id for one in everything.transactions] == ids
            assert (everything.open, everything.left_out) == (3, False)
            assert everything.check_interval_ms == ROUND_MS
            first, second, _ = everything.transactions
            assert first.next_check_ms == first.since_ms + 6_000
            assert second.next_check_ms == second.since_ms + 3_600_000
            assert [one.checks for one in everything.transactions] == [0, 0, 0]
            some = await listed(wire, topic="pay", count=1)
            assert [one.message_id for one in some.transactions] == ["A"]
            assert some.left_out
            await advance(wire, ROUND_MS + 1_000)
            checked = [await producer.next_check() for _ in range(2)]
            assert {one.transaction_id for one in checked} == {ids[0], ids[2]}
            after = {one.message_id: one for one in (await listed(wire)).transactions}
            assert {name: one.checks for name, one in after.items()} == {"A": 1, "B": 0, "C": 1}
            assert after["A"].transaction_id == ids[0]
            # A tool decides it, without a producer's settings.
            assert await producer.end("pay", after["A"].transaction_id, v2.ROLLBACK) == v2.OK
            left = await listed(wire)
            assert sorted(one.message_id for one in left.transactions) == ["B", "C"]
            assert left.open == 2
