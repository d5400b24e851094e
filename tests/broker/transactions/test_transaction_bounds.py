"""Very many transactions: work per loop turn, and memory."""

from __future__ import annotations

from cometmq.broker.transactions.core import Outcome
from cometmq.tests.broker.transactions.test_transaction_core import (
    START_MS,
    TIMEOUT_MS,
    half,
    table,
)


def test_a_round_skips_young_half_messages_in_slices() -> None:
    made = table()
    for offset in range(100):
        made.half(half(offset, f"K{offset}", since_ms=START_MS if offset == 99 else START_MS + 10))
    made.begin_round()
    now_ms = START_MS + TIMEOUT_MS
    assert made.decide(now_ms, 60) is None
    assert made.left_in_round == 40
    decided = made.decide(now_ms, 60)
    assert decided is not None and decided[0].offset == 99
    assert made.decide(now_ms, 60) is None and made.left_in_round == 0


def test_ended_transactions_behind_an_open_one_are_dropped() -> None:
    made = table()
    made.half(half(0, "open"))
    for offset in range(1, 10_000):
        made.half(half(offset, f"K{offset}"))
        ended = made.find(offset, f"K{offset}")
        assert ended is not None
        made.end(ended, Outcome.COMMITTED)
        made.op_written(made.take_batch(1 << 20))
        assert made.bookmarks()[0] == 0
    assert len(made._offsets) < 5_000
