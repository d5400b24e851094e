"""The pop state of a group: rules one by one, and a state machine against a simple model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.broker.pop import (
    RENEW_MAX_MS,
    RENEW_SLICE_MS,
    Claim,
    Outcome,
    PopGroup,
    PopQueue,
    Terms,
)

START_MS = 1_000_000
HIDDEN_MS = 10_000


def nobody(client_id: str) -> bool:
    """No client is alive."""
    return False


def everybody(client_id: str) -> bool:
    """Every client is alive."""
    return True


def group(committed: int = 0, limit: int = 1_000) -> tuple[PopGroup, PopQueue]:
    """A group with one queue."""
    made = PopGroup("t", "g", limit, START_MS)
    return made, made.add_queue(0, committed)


def claim(offset: int, pop_ms: int = START_MS, expires_ms: int = START_MS + HIDDEN_MS) -> Claim:
    """A handle of queue 0."""
    return Claim(0, offset, pop_ms, expires_ms)


def pop(made: PopGroup, queue: PopQueue, end: int, now_ms: int, owner: str = "") -> list[int]:
    """Give out everything below `end`: the retries first."""
    made.expire(now_ms, everybody if owner else nobody)
    got = []
    terms = Terms(now_ms, HIDDEN_MS, owner)
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
    terms = Terms(START_MS, HIDDEN_MS)
    made.deliver(queue, [], 10, terms)
    assert queue.committed == 10
    made.deliver(queue, [12], 20, terms)
    assert queue.committed == 12
    assert made.ack(claim(12), START_MS) is Outcome.DONE
    assert queue.committed == 20


def test_nothing_is_visible_early_and_the_attempt_is_counted() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    assert made.next_visible_ms() == START_MS + HIDDEN_MS
    assert pop(made, queue, 2, START_MS + HIDDEN_MS - 1) == []
    assert pop(made, queue, 2, START_MS + HIDDEN_MS) == [0, 1]
    assert queue.unacked[0].attempt == 2


def test_an_ack_after_the_expiry_counts_until_the_message_is_given_out_again() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    late = START_MS + HIDDEN_MS + 5
    made.expire(late, nobody)
    assert made.ack(claim(0), late) is Outcome.DONE
    assert pop(made, queue, 2, late) == [1]
    assert made.ack(claim(1), late) is Outcome.STALE
    assert made.ack(claim(0), late) is Outcome.CONSUMED


def test_a_handle_works_through_every_change_of_the_invisible_time() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    outcome, delivery = made.change(claim(0), START_MS + 1, 60_000)
    assert outcome is Outcome.DONE and delivery is not None
    assert delivery.visible_ms == START_MS + 1 + 60_000
    # The old handle has expired by its own words, the delivery has not.
    late = START_MS + 2 * HIDDEN_MS
    assert pop(made, queue, 1, late) == []
    assert made.ack(claim(0), late) is Outcome.DONE


def test_a_change_to_zero_gives_the_message_out_again_and_ends_the_old_delivery() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    made.change(claim(0), START_MS, 0)
    assert pop(made, queue, 1, START_MS) == [0]
    assert queue.unacked[0].pop_ms == START_MS + 1
    assert made.ack(claim(0), START_MS) is Outcome.STALE
    assert made.ack(claim(0, START_MS + 1), START_MS) is Outcome.DONE


def test_a_change_after_the_expiry_hides_the_message_again() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    late = START_MS + HIDDEN_MS
    made.expire(late, nobody)
    assert made.change(claim(0), late, 5_000)[0] is Outcome.DONE
    assert made.next_visible_ms() == late + 5_000
    assert pop(made, queue, 1, late + 4_999) == []
    assert pop(made, queue, 1, late + 5_000) == [0]


def test_suspending_does_not_count_the_attempt() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS)
    made.change(claim(0), START_MS, 0, count=False)
    pop(made, queue, 1, START_MS)
    assert queue.unacked[0].attempt == 1


def test_a_living_owner_keeps_its_messages_for_three_hours() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS, owner="c")
    made.expire(START_MS + HIDDEN_MS, everybody)
    assert made.next_visible_ms() == START_MS + HIDDEN_MS + RENEW_SLICE_MS
    now_ms = START_MS
    while now_ms < START_MS + RENEW_MAX_MS:
        assert pop(made, queue, 1, now_ms, owner="c") == []
        now_ms += RENEW_SLICE_MS // 2
    assert pop(made, queue, 1, START_MS + RENEW_MAX_MS + 2 * RENEW_SLICE_MS, owner="c") == [0]


def test_a_dead_owner_loses_its_messages_at_the_end_of_the_slice() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS, owner="c")
    assert pop(made, queue, 1, START_MS + HIDDEN_MS) == [0]


def test_what_a_client_held_comes_back_a_second_after_it_left() -> None:
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


def test_an_undelivered_answer_is_taken_back_only_while_it_is_that_delivery() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    made.ack(claim(1), START_MS)
    made.release(0, [(0, START_MS), (1, START_MS)], START_MS + 1_000)
    assert pop(made, queue, 2, START_MS + 1_000) == [0]
    made.release(0, [(0, START_MS)], START_MS + 2_000)
    assert queue.unacked[0].visible_ms == START_MS + 1_000 + HIDDEN_MS


def test_handles_from_before_the_restart_are_honoured_while_they_last() -> None:
    made, queue = group()
    old = claim(3, START_MS - 5, START_MS - 5 + HIDDEN_MS)
    assert made.ack(old, START_MS) is Outcome.DONE
    assert made.ack(old, START_MS) is Outcome.CONSUMED
    assert pop(made, queue, 5, START_MS) == [0, 1, 2, 4]
    # Offset 1 was given out twice: by the other life and by this one.
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


def test_unknown_handles_of_this_life_are_stale() -> None:
    made, _ = group()
    assert made.ack(claim(7, START_MS + 1, START_MS + 2), START_MS) is Outcome.STALE
    assert made.change(claim(7, START_MS, START_MS + 2), START_MS, 5) == (Outcome.STALE, None)


def test_new_messages_stop_at_the_bound_of_what_is_in_flight() -> None:
    made, queue = group(limit=3)
    pop(made, queue, 3, START_MS)
    assert made.room(queue) == 0
    made.ack(claim(1), START_MS)
    assert made.room(queue) == 1


def test_another_replicas_progress_moves_the_queue_on() -> None:
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


def test_the_heap_is_bounded_by_what_is_in_flight() -> None:
    made, queue = group()
    for n in range(5_000):
        made.deliver(queue, [n], n + 1, Terms(START_MS, HIDDEN_MS))
        made.ack(claim(n), START_MS)
    assert len(made.heap) <= 64


@dataclass
class Known:
    """What the model knows of one message."""

    hidden_until: int | None = None
    pop_ms: int = 0
    attempt: int = 0
    done: bool = False


class PopMachine(RuleBasedStateMachine):
    """Every visible message is delivered, no other is; the offset is the first one that is not done."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = START_MS
        self.core, self.queue = group()
        self.messages: list[Known] = []
        self.claims: list[Claim] = []

    @rule(count=st.integers(1, 6))
    def arrive(self, count: int) -> None:
        self.messages += [Known() for _ in range(count)]

    @rule(ms=st.integers(0, 3 * HIDDEN_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(batch=st.integers(1, 8), dropped=st.sets(st.integers(0, 40)))
    def pop(self, batch: int, dropped: set[int]) -> None:
        self.core.expire(self.now_ms, nobody)
        due = [o for o, m in enumerate(self.messages) if self._due(m)]
        terms = Terms(self.now_ms, HIDDEN_MS)
        got: list[int] = []
        while len(got) < batch and (taken := self.core.take_ready()) is not None:
            self.core.redeliver(*taken, terms)
            got.append(taken[1].offset)
        assert len(got) == min(batch, len(due)) and set(got) <= set(due), (got, due)
        end = len(self.messages)
        fresh: list[int] = []
        following = self.queue.next_read
        while following < end and len(got) + len(fresh) < batch:
            if following in dropped and self.core.wanted(self.queue, following):
                self.messages[following].done = True
            elif self.core.wanted(self.queue, following):
                fresh.append(following)
            following += 1
        self.core.deliver(self.queue, fresh, following, terms)
        for offset in got + fresh:
            self._given(offset)

    @rule(data=st.data(), late=st.booleans())
    def ack(self, data: st.DataObject, late: bool) -> None:
        if not self.claims:
            return
        one = data.draw(st.sampled_from(self.claims))
        known = self.messages[one.offset]
        outcome = self.core.ack(one, self.now_ms)
        if known.done:
            assert outcome is Outcome.CONSUMED
        elif (known.hidden_until is not None and known.pop_ms == one.pop_ms) or (
            one.pop_ms < self.core.since_ms and self.now_ms < one.expires_ms
        ):
            assert outcome is Outcome.DONE
            known.done = True
        else:
            assert outcome is Outcome.STALE

    @rule(data=st.data(), ms=st.integers(0, 2 * HIDDEN_MS))
    def change(self, data: st.DataObject, ms: int) -> None:
        if not self.claims:
            return
        one = data.draw(st.sampled_from(self.claims))
        known = self.messages[one.offset]
        outcome, delivery = self.core.change(one, self.now_ms, ms)
        if known.done:
            assert outcome is Outcome.CONSUMED
        elif known.hidden_until is not None and known.pop_ms == one.pop_ms:
            assert outcome is Outcome.DONE and delivery is not None
            known.hidden_until = self.now_ms + ms
        elif outcome is Outcome.DONE:
            # A handle of the life before, for a message that this life has not looked at.
            assert one.pop_ms < self.core.since_ms and self.now_ms < one.expires_ms
            assert known.hidden_until is None
            known.hidden_until, known.pop_ms, known.attempt = self.now_ms + ms, one.pop_ms, 1

    @rule()
    def restart(self) -> None:
        """What was in flight is given out again; its handles still work while they last."""
        self.now_ms += 1
        committed = self.queue.committed
        self.core = PopGroup("t", "g", 1_000, self.now_ms)
        self.queue = self.core.add_queue(0, committed)
        for known in self.messages[committed:]:
            known.hidden_until, known.done, known.attempt = None, False, 0

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.validate()
        read = self.messages[: self.queue.next_read]
        first = next((o for o, m in enumerate(read) if not m.done), len(read))
        assert self.queue.committed == first
        times = [m.hidden_until for m in self.messages if m.hidden_until is not None and not m.done]
        visible_ms = self.core.next_visible_ms()
        if times:
            assert visible_ms is not None and visible_ms <= min(times)
        for offset, delivery in self.queue.unacked.items():
            assert delivery.attempt == self.messages[offset].attempt

    def _due(self, known: Known) -> bool:
        until = known.hidden_until
        return not known.done and until is not None and until <= self.now_ms

    def _given(self, offset: int) -> None:
        known = self.messages[offset]
        delivery = self.queue.unacked[offset]
        assert not known.done
        assert known.hidden_until is None or delivery.pop_ms > known.pop_ms
        known.hidden_until = self.now_ms + HIDDEN_MS
        known.pop_ms = delivery.pop_ms
        known.attempt += 1
        self.claims.append(Claim(0, offset, delivery.pop_ms, delivery.pop_ms + HIDDEN_MS))


TestPopMachine = PopMachine.TestCase
TestPopMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("limit", [1, 2])
def test_skips_of_foreign_acknowledgements_are_bounded(limit: int) -> None:
    made, queue = group(limit=limit)
    outcomes = [made.ack(claim(n, START_MS - 1, START_MS + 9), START_MS) for n in range(limit + 1)]
    assert outcomes == [Outcome.DONE] * limit + [Outcome.STALE]
    assert len(queue.skips) == limit
