"""The pop state of a group: one test per rule."""

from __future__ import annotations

import pytest

from cometmq.broker.names.delivery import (
    RENEW_MAX_MS,
    RENEW_SLICE_MS,
    Delivery,
    Outcome,
    PopOptions,
    renewal_ms,
)
from cometmq.broker.pop.group import PopGroup
from cometmq.broker.pop.queue import PopQueue
from cometmq.tests.broker.pop.pop_state import (
    HIDDEN_MS,
    START_MS,
    all_active,
    claim,
    group,
    none_active,
)


def pop(made: PopGroup, queue: PopQueue, end: int, now_ms: int, owner: str = "") -> list[int]:
    """Deliver everything below `end`, retries first."""
    made.expire(now_ms, all_active if owner else none_active)
    got = []
    terms = PopOptions(now_ms, HIDDEN_MS, owner)
    while (taken := made.take_ready()) is not None:
        made.redeliver(*taken, terms)
        got.append(taken[1].offset)
    fresh = [o for o in range(queue.next_read, end) if made.wanted(queue, o)]
    made.deliver(queue, fresh, max(end, queue.next_read), terms)
    made.validate()
    return got + fresh


def test_the_consumer_offset_is_the_first_message_not_acknowledged() -> None:
    made, queue = group()
    assert pop(made, queue, 5, START_MS) == [0, 1, 2, 3, 4]
    assert queue.committed == 0
    for offset, committed in ((2, 0), (1, 0), (0, 3), (4, 3), (3, 5)):
        assert made.ack(claim(offset), START_MS) is Outcome.DONE
        assert queue.committed == committed
        made.validate()


def test_filtered_messages_count_as_consumed() -> None:
    made, queue = group()
    terms = PopOptions(START_MS, HIDDEN_MS)
    made.deliver(queue, [], 10, terms)
    assert queue.committed == 10
    made.deliver(queue, [12], 20, terms)
    assert queue.committed == 12
    assert made.ack(claim(12), START_MS) is Outcome.DONE
    assert queue.committed == 20


def test_a_message_is_redelivered_not_before_its_time_with_the_next_attempt() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    assert made.next_visible_ms() == START_MS + HIDDEN_MS
    assert pop(made, queue, 2, START_MS + HIDDEN_MS - 1) == []
    assert pop(made, queue, 2, START_MS + HIDDEN_MS) == [0, 1]
    assert queue.unacked[0].attempt == 2


def test_an_ack_after_the_expiry_counts_until_the_redelivery() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    late = START_MS + HIDDEN_MS + 5
    made.expire(late, none_active)
    assert made.ack(claim(0), late) is Outcome.DONE
    assert pop(made, queue, 2, late) == [1]
    assert made.ack(claim(1), late) is Outcome.STALE
    # Acknowledged before: an expired handle cannot tell an ack from a redelivery.
    assert made.ack(claim(0), late) is Outcome.STALE
    assert made.ack(claim(0, expires_ms=late + 1), late) is Outcome.CONSUMED


def test_a_handle_stays_valid_through_changes_of_the_invisible_time() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    outcome, delivery = made.change(claim(0), START_MS + 1, 60_000)
    assert outcome is Outcome.DONE and delivery is not None
    assert delivery.visible_ms == START_MS + 1 + 60_000
    # The old handle has expired by its own fields, the delivery has not.
    late = START_MS + 2 * HIDDEN_MS
    assert pop(made, queue, 1, late) == []
    assert made.ack(claim(0), late) is Outcome.DONE


def test_a_change_to_zero_redelivers_and_ends_the_old_delivery() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    now_ms = START_MS + 1
    made.change(claim(0), now_ms, 0)
    assert pop(made, queue, 1, now_ms) == [0]
    assert queue.unacked[0].pop_ms == now_ms + 1
    assert made.ack(claim(0), now_ms) is Outcome.STALE
    assert made.ack(claim(0, now_ms), now_ms) is Outcome.STALE
    assert made.ack(claim(0, now_ms + 1), now_ms) is Outcome.DONE


def test_a_change_after_the_expiry_hides_the_message_again() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    late = START_MS + HIDDEN_MS
    made.expire(late, none_active)
    assert made.change(claim(0), late, 5_000)[0] is Outcome.DONE
    assert made.next_visible_ms() == late + 5_000
    assert pop(made, queue, 1, late + 4_999) == []
    assert pop(made, queue, 1, late + 5_000) == [0]


def test_suspending_does_not_count_the_attempt() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    made.change(claim(0), START_MS + 1, 0, count=False)
    made.change(claim(0), START_MS + 2, 0, count=False)
    assert queue.unacked[0].attempts == 0
    pop(made, queue, 1, START_MS + 3)
    assert queue.unacked[0].attempt == queue.unacked[0].attempts == 1


def test_an_active_client_keeps_its_messages_for_three_hours() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS, owner="c")
    made.expire(START_MS + HIDDEN_MS, all_active)
    assert made.next_visible_ms() == START_MS + HIDDEN_MS + RENEW_SLICE_MS
    now_ms = START_MS
    while now_ms < START_MS + RENEW_MAX_MS:
        assert pop(made, queue, 1, now_ms, owner="c") == []
        now_ms += RENEW_SLICE_MS // 2
    assert not made.given_up
    now_ms = START_MS + RENEW_MAX_MS
    assert pop(made, queue, 1, now_ms, owner="c") == []
    # The caller has the group's retry policy and returns the last invisible time.
    assert [delivery.offset for _, delivery in made.given_up] == [0]
    made.hide(queue, queue.unacked[0], now_ms, 10_000)
    assert pop(made, queue, 1, now_ms + 9_999, owner="c") == []
    assert pop(made, queue, 1, now_ms + 10_001, owner="c") == [0]


def test_renewals_become_longer_and_end_after_three_hours() -> None:
    held, steps = RENEW_SLICE_MS, []
    while step := renewal_ms(held):
        steps.append(step // 60_000)
        held += step
    assert steps == [1, 3, 5, 10, 30, 60, 60, 10]
    assert held == RENEW_MAX_MS


def test_an_inactive_client_loses_its_messages_at_the_end_of_the_renewal() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS, owner="c")
    assert pop(made, queue, 1, START_MS + HIDDEN_MS) == [0]


def test_messages_of_a_leaving_client_come_back_after_a_second() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS, owner="c")
    made.clients_gone({"other"}, START_MS + 1)
    assert made.next_visible_ms() == START_MS + HIDDEN_MS
    made.clients_gone({"c"}, START_MS + 1_000)
    assert pop(made, queue, 2, START_MS + 999) == []
    assert pop(made, queue, 2, START_MS + 1_000) == [0, 1]


def test_a_nack_ends_the_renewal() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS, owner="c")
    made.change(claim(0), START_MS, 1_000)
    assert pop(made, queue, 1, START_MS + 1_000, owner="c") == [0]


def test_the_consumer_offset_passes_journalled_messages() -> None:
    made, queue = group()
    pop(made, queue, 6, START_MS)
    made.stored(queue, [0, 1, 3])
    assert queue.committed == 2
    assert made.ack(claim(2), START_MS) is Outcome.DONE
    assert queue.committed == 4
    made.ack(claim(0), START_MS)
    made.validate()
    # Another replica's offset passes its acknowledged messages and those in the journal.
    assert queue.advance_to(6) == [4, 5]
    assert sorted(queue.unacked) == [1, 3]
    made.validate()
    assert pop(made, queue, 6, START_MS + HIDDEN_MS) == [1, 3]
    assert sorted(queue.jump(9)) == [1, 3]
    made.validate()


@pytest.mark.parametrize("stored", [False, True])
def test_the_consumer_offset_passes_a_copied_message_once_the_copy_is_durable(
    stored: bool,
) -> None:
    """Or before, if the journal has it."""
    made, queue = group()
    pop(made, queue, 3, START_MS)
    if stored:
        made.stored(queue, [0, 1, 2])
    late = START_MS + HIDDEN_MS
    made.expire(late, none_active)
    for offset in (0, 1):
        assert made.take_ready() == (queue, queue.unacked[offset])
        made.move(queue, offset)
    made.validate()
    assert (queue.committed, sorted(queue.moving)) == (3 if stored else 0, [0, 1])
    assert made.ack(claim(0), late) is Outcome.STALE
    longer = claim(0, expires_ms=late + 1)  # from before a change that shortened the time
    assert made.ack(longer, late) is Outcome.STALE
    made.moved(queue, 1)
    assert queue.committed == (3 if stored else 0)
    made.moved(queue, 0)
    assert queue.committed == (3 if stored else 2)
    made.moved(queue, 0)
    made.validate()


def test_a_message_whose_copy_fails_is_next_again() -> None:
    made, queue = group()
    pop(made, queue, 3, START_MS)
    assert not made.expire(START_MS + HIDDEN_MS, none_active)
    taken = [made.take_ready(), made.take_ready()]
    made.put_back([one for one in taken if one is not None])
    made.validate()
    ready = [made.take_ready() for _ in range(4)]
    assert [one[1].offset for one in ready if one is not None] == [0, 1, 2]


def test_due_messages_are_processed_in_slices() -> None:
    made, queue = group()
    for n in range(10):
        made.deliver(queue, [2 * n, 2 * n + 1], 2 * n + 2, PopOptions(START_MS, HIDDEN_MS))
    looks = 0
    while made.expire(START_MS + HIDDEN_MS, none_active, 4):
        looks += 1
    assert (looks, len(made.ready)) == (4, 20)


def test_acknowledged_batches_due_together_are_skipped_in_slices() -> None:
    made, queue = group()
    for n in range(10):
        made.deliver(queue, [n], n + 1, PopOptions(START_MS, HIDDEN_MS))
        if n < 9:
            made.ack(claim(n), START_MS)
    looks = 0
    while made.expire(START_MS + HIDDEN_MS, none_active, 4):
        looks += 1
    assert (looks, len(made.ready)) == (2, 1)


def test_a_delivery_taken_over_accepts_every_handle_of_the_message() -> None:
    made, queue = group(committed=5)
    made.restore(queue, Delivery(3, START_MS - 10, START_MS + HIDDEN_MS, 1, stored=True))
    made.restore(queue, Delivery(7, START_MS - 10, START_MS + HIDDEN_MS, 1, stored=True))
    made.validate()
    assert pop(made, queue, 9, START_MS) == [5, 6, 8]
    for offset in (3, 7):
        # A handle from before the invisible time was extended; by its own fields it has expired.
        old = claim(offset, START_MS - 5_000, START_MS - 1)
        assert made.ack(old, START_MS) is Outcome.DONE
    made.validate()


def test_an_undelivered_response_is_taken_back_only_for_the_same_delivery() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    made.ack(claim(1), START_MS)
    made.release((0, 0), [(0, START_MS), (1, START_MS)], START_MS + 1_000)
    assert pop(made, queue, 2, START_MS + 1_000) == [0]
    made.release((0, 0), [(0, START_MS)], START_MS + 2_000)
    assert queue.unacked[0].visible_ms == START_MS + 1_000 + HIDDEN_MS


def test_handles_from_before_a_restart_are_accepted_until_they_expire() -> None:
    made, queue = group()
    old = claim(3, START_MS - 5, START_MS - 5 + HIDDEN_MS)
    assert made.ack(old, START_MS) is Outcome.DONE
    assert made.ack(old, START_MS) is Outcome.CONSUMED
    assert pop(made, queue, 5, START_MS) == [0, 1, 2, 4]
    # Offset 1 was delivered twice: by the earlier instance and by this one.
    assert made.ack(claim(1, START_MS - 5, START_MS + 1), START_MS) is Outcome.DONE
    assert made.ack(claim(2, START_MS - 5, START_MS), START_MS) is Outcome.STALE
    assert made.ack(claim(1), START_MS) is Outcome.CONSUMED


def test_a_foreign_handle_can_be_extended_before_the_message_is_read_here() -> None:
    made, queue = group()
    old = claim(3, START_MS - 5, START_MS + 1_000)
    outcome, _ = made.change(old, START_MS, 30_000)
    assert outcome is Outcome.DONE
    assert pop(made, queue, 5, START_MS) == [0, 1, 2, 4]
    assert pop(made, queue, 5, START_MS + 30_000) == [0, 1, 2, 4, 3]
    assert made.ack(old, START_MS + 30_000) is Outcome.STALE


def test_unknown_handles_of_this_instance_are_stale() -> None:
    made, _ = group()
    assert made.ack(claim(7, START_MS + 1, START_MS + 2), START_MS) is Outcome.STALE
    assert made.change(claim(7, START_MS, START_MS + 2), START_MS, 5) == (Outcome.STALE, None)


def test_no_new_messages_are_delivered_at_the_in_flight_limit() -> None:
    made, queue = group(limit=3)
    pop(made, queue, 3, START_MS)
    assert made.free_slots(queue) == 0
    made.ack(claim(1), START_MS)
    assert made.free_slots(queue) == 1


def test_another_replicas_progress_advances_the_queue() -> None:
    made, queue = group()
    pop(made, queue, 5, START_MS)
    queue.advance_to(3)
    made.validate()
    assert (queue.committed, sorted(queue.unacked)) == (3, [3, 4])
    queue.advance_to(9)
    assert (queue.committed, queue.next_read, queue.unacked) == (9, 9, {})
    queue.jump(2)
    assert (queue.committed, queue.next_read) == (2, 2)
    made.validate()


def test_the_heap_is_bounded_by_messages_in_flight() -> None:
    made, queue = group()
    for n in range(5_000):
        made.deliver(queue, [n], n + 1, PopOptions(START_MS, HIDDEN_MS))
        made.ack(claim(n), START_MS)
    assert len(made.heap) <= 64


@pytest.mark.parametrize("limit", [1, 2])
def test_skips_of_foreign_acknowledgements_are_bounded(limit: int) -> None:
    made, queue = group(limit=limit)
    outcomes = [made.ack(claim(n, START_MS - 1, START_MS + 9), START_MS) for n in range(limit + 1)]
    assert outcomes == [Outcome.DONE] * limit + [Outcome.STALE]
    assert len(queue.skips) == limit
