"""Very many transactions at once: what a round looks at in a turn, and what is kept."""

from __future__ import annotations

from cometmq.broker.transactions.core import Outcome
from cometmq.tests.broker.test_transaction_core import START_MS, TIMEOUT_MS, half, table


def test_a_round_went_over_very_many_young_ones_in_one_piece() -> None:
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


def test_what_ended_behind_one_that_stays_open_piled_up() -> None:
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
