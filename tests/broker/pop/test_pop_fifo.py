"""The queue lock of FIFO groups: one test per rule, and a state machine against a simple model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.broker.names.delivery import RENEW_MAX_MS, DeliveryRef, Outcome, PopOptions
from cometmq.broker.pop.fifo.ordered_group import OrderedGroup, OrderedQueue

START_MS = 1_000_000
HIDDEN_MS = 10_000


def group(committed: int = 0) -> tuple[OrderedGroup, OrderedQueue]:
    """Return a group with one queue."""
    made = OrderedGroup("t", "g", 100, START_MS)
    return made, made.add_queue((0, 0), committed)


def pop(
    made: OrderedGroup,
    queue: OrderedQueue,
    count: int,
    now_ms: int,
    attempt_id: str = "",
    *,
    owner: str = "",
) -> list[tuple[int, int]]:
    """Return offsets and attempts of the next batch; empty while the queue is locked."""
    made.expire(now_ms, lambda client_id: client_id == "alive")
    if not made.open_for(queue, now_ms, attempt_id):
        return []
    wanted = [o for o in range(queue.committed, queue.committed + count) if made.wanted(queue, o)]
    attempts = [made.attempt(queue, offset, attempt_id) for offset in wanted]
    end = queue.committed + count
    made.deliver(queue, wanted, end, PopOptions(now_ms, HIDDEN_MS, owner, attempt_id))
    made.validate()
    return list(zip(wanted, attempts, strict=True))


def claim(queue: OrderedQueue, offset: int) -> DeliveryRef:
    """Return the handle of a message in flight."""
    assert queue.batch is not None
    return DeliveryRef((0, 0), offset, queue.batch.pop_ms, queue.batch.pop_ms + HIDDEN_MS)


def test_a_queue_is_locked_until_the_whole_batch_is_acknowledged() -> None:
    made, queue = group()
    assert pop(made, queue, 3, START_MS) == [(0, 1), (1, 1), (2, 1)]
    for offset in (0, 1):
        assert made.ack(claim(queue, offset), START_MS) is Outcome.DONE
        assert pop(made, queue, 3, START_MS) == []
    assert queue.committed == 2
    assert made.ack(claim(queue, 2), START_MS) is Outcome.DONE
    assert queue.committed == 3
    assert pop(made, queue, 2, START_MS) == [(3, 1), (4, 1)]


def test_after_the_expiry_delivery_restarts_at_the_first_unacknowledged_message() -> None:
    made, queue = group()
    pop(made, queue, 3, START_MS)
    made.ack(claim(queue, 1), START_MS)
    made.ack(claim(queue, 2), START_MS)
    assert pop(made, queue, 3, START_MS + HIDDEN_MS - 1) == []
    assert made.next_visible_ms() == START_MS + HIDDEN_MS
    assert pop(made, queue, 3, START_MS + HIDDEN_MS) == [(0, 2), (1, 2), (2, 2)]


def test_what_was_acknowledged_in_any_batch_is_known_until_it_is_consumed() -> None:
    made, queue = group()
    pop(made, queue, 4, START_MS)
    made.ack(claim(queue, 3), START_MS)
    pop(made, queue, 1, START_MS + HIDDEN_MS)
    pop(made, queue, 4, START_MS + 2 * HIDDEN_MS)
    assert [offset for offset in range(5) if queue.was_acked(offset)] == [3]
    made.deliver(queue, [], 3, PopOptions(START_MS + 3 * HIDDEN_MS, HIDDEN_MS))
    made.validate()
    assert queue.committed == 4  # the others are dead letters; it is consumed
    pop(made, queue, 1, START_MS + 3 * HIDDEN_MS)
    queue.jump(3)
    assert not queue.was_acked(3)  # an operator wants it again


def test_only_a_locked_batch_is_in_flight() -> None:
    made, queue = group()

    def progress(now_ms: int) -> tuple[int, int]:
        return made.progress((0, 0), now_ms, lambda client_id: client_id == "alive")

    pop(made, queue, 3, START_MS)
    made.ack(claim(queue, 0), START_MS)
    assert progress(START_MS + HIDDEN_MS - 1) == (3, 2)
    assert progress(START_MS + HIDDEN_MS) == (1, 0)
    pop(made, queue, 2, START_MS + HIDDEN_MS, owner="alive")
    assert progress(START_MS + 2 * HIDDEN_MS) == (3, 2)
    pop(made, queue, 2, START_MS + 3 * HIDDEN_MS, owner="gone")


def test_the_same_attempt_id_gets_the_same_batch_at_once_with_the_attempts_unchanged() -> None:
    made, queue = group()
    assert pop(made, queue, 2, START_MS, "a") == [(0, 1), (1, 1)]
    assert pop(made, queue, 2, START_MS, "b") == []
    assert pop(made, queue, 2, START_MS, "a") == [(0, 1), (1, 1)]
    assert queue.batch is not None and queue.batch.pop_ms == START_MS + 1
    assert pop(made, queue, 2, START_MS + 1 + HIDDEN_MS, "b") == [(0, 2), (1, 2)]


def test_a_missing_attempt_id_matches_nothing() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    assert pop(made, queue, 2, START_MS) == []


def test_a_stale_handle_does_nothing_and_is_refused_only_when_it_has_expired() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS, "a")
    old = claim(queue, 0)
    pop(made, queue, 1, START_MS, "a")
    assert made.ack(old, START_MS) is Outcome.CONSUMED
    assert queue.committed == 0
    assert made.ack(old, START_MS + HIDDEN_MS) is Outcome.STALE
    assert made.change(old, START_MS, 5)[0] is Outcome.CONSUMED


def test_a_change_moves_one_messages_time_and_keeps_the_pop_time() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    outcome, delivery = made.change(claim(queue, 0), START_MS, 60_000)
    assert outcome is Outcome.DONE and delivery is not None
    assert (delivery.pop_ms, delivery.visible_ms) == (START_MS, START_MS + 60_000)
    assert pop(made, queue, 2, START_MS + HIDDEN_MS) == []
    made.change(claim(queue, 0), START_MS + HIDDEN_MS, 0)
    assert pop(made, queue, 2, START_MS + HIDDEN_MS) == [(0, 2), (1, 2)]


def test_suspending_does_not_count_the_attempt() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    made.change(claim(queue, 0), START_MS, 0, count=False)
    made.change(claim(queue, 1), START_MS, 0)
    assert pop(made, queue, 2, START_MS) == [(0, 1), (1, 2)]


def test_an_active_client_keeps_the_queue_locked() -> None:
    made, queue = group()
    pop(made, queue, 1, START_MS, owner="alive")
    for step in range(5):
        assert pop(made, queue, 1, START_MS + step * HIDDEN_MS) == []
    made.clients_gone({"alive"}, START_MS + 50_000)
    assert pop(made, queue, 1, START_MS + 49_999) == []
    assert pop(made, queue, 1, START_MS + 50_000) == [(0, 2)]


def test_after_three_hours_a_batch_is_hidden_for_a_last_time() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    pop(made, queue, 2, START_MS + HIDDEN_MS, owner="alive")
    end_ms = START_MS + HIDDEN_MS + RENEW_MAX_MS
    made.expire(end_ms, lambda client_id: True, lambda times: 1_000 * times)
    assert made.next_visible_ms() == end_ms + 1_000
    assert pop(made, queue, 2, end_ms + 1_000) == [(0, 3), (1, 3)]


def test_an_undelivered_batch_opens_after_a_second() -> None:
    made, queue = group()
    pop(made, queue, 2, START_MS)
    made.release((0, 0), [(0, START_MS), (1, START_MS)], START_MS + 1_000)
    assert pop(made, queue, 2, START_MS + 999) == []
    assert pop(made, queue, 2, START_MS + 1_000) == [(0, 2), (1, 2)]


def test_filtered_messages_are_consumed_with_the_batch() -> None:
    made, queue = group()
    made.deliver(queue, [2, 4], 7, PopOptions(START_MS, HIDDEN_MS))
    assert queue.committed == 2
    made.ack(claim(queue, 2), START_MS)
    assert queue.committed == 4
    made.ack(claim(queue, 4), START_MS)
    assert queue.committed == 7
    made.deliver(queue, [], 9, PopOptions(START_MS, HIDDEN_MS))
    assert queue.committed == 9
    made.validate()


def test_handles_of_another_instance_are_accepted_and_their_messages_not_redelivered() -> None:
    made, queue = group()
    before = DeliveryRef((0, 0), 1, START_MS - 5, START_MS + 5_000)
    assert made.ack(before, START_MS) is Outcome.DONE
    assert queue.committed == 0
    assert pop(made, queue, 3, START_MS) == [(0, 1), (2, 1)]
    assert (
        made.ack(DeliveryRef((0, 0), 0, START_MS - 5, START_MS + 5_000), START_MS) is Outcome.DONE
    )
    assert queue.committed == 2
    made.validate()


def test_another_replicas_progress_advances_the_queue() -> None:
    made, queue = group()
    pop(made, queue, 3, START_MS)
    queue.advance_to(2)
    assert queue.committed == 2
    made.validate()
    queue.advance_to(5)
    assert pop(made, queue, 1, START_MS) == [(5, 1)]
    queue.jump(1)
    assert pop(made, queue, 1, START_MS) == [(1, 1)]


class FifoMachine(RuleBasedStateMachine):
    """No message is delivered while an earlier one of its batch is hidden, and none is skipped."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = START_MS
        self.core, self.queue = group()
        self.done: set[int] = set()
        self.out: dict[int, int] = {}
        self.pop_ms = 0
        self.claims: list[DeliveryRef] = []

    @rule(ms=st.integers(0, 2 * HIDDEN_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(count=st.integers(1, 5))
    def pop(self, count: int) -> None:
        locked = any(until > self.now_ms for o, until in self.out.items() if o not in self.done)
        first = next(n for n in range(10_000) if n not in self.done)
        got = pop(self.core, self.queue, count, self.now_ms)
        if locked:
            assert got == []
            return
        assert [offset for offset, _ in got] == list(range(first, first + count))
        assert self.queue.batch is not None
        assert self.queue.batch.pop_ms > self.pop_ms
        self.pop_ms = self.queue.batch.pop_ms
        # Messages acknowledged after the first gap are redelivered and must be acknowledged again.
        self.done = {offset for offset in self.done if offset < first}
        self.out = {offset: self.now_ms + HIDDEN_MS for offset, _ in got}
        self.claims += [claim(self.queue, offset) for offset, _ in got]

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if not self.claims:
            return
        one = data.draw(st.sampled_from(self.claims))
        outcome = self.core.ack(one, self.now_ms)
        if one.pop_ms == self.pop_ms and one.offset not in self.done:
            assert outcome is Outcome.DONE
            self.done.add(one.offset)
        else:
            assert outcome is not Outcome.DONE

    @rule(data=st.data(), ms=st.integers(0, 2 * HIDDEN_MS))
    def change(self, data: st.DataObject, ms: int) -> None:
        if not self.claims:
            return
        one = data.draw(st.sampled_from(self.claims))
        outcome, _ = self.core.change(one, self.now_ms, ms)
        if one.pop_ms == self.pop_ms and one.offset not in self.done:
            assert outcome is Outcome.DONE
            self.out[one.offset] = self.now_ms + ms
        else:
            assert outcome is not Outcome.DONE

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "core"):
            self.core.validate()
            first = next(n for n in range(10_000) if n not in self.done)
            assert self.queue.committed == first


TestFifoMachine = FifoMachine.TestCase
TestFifoMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
