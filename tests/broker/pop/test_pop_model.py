"""The pop state of a group against a simple model: delivered, hidden, journalled, copied,
restarted.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.broker.names.delivery import Delivery, DeliveryRef, Outcome, PopOptions
from cometmq.broker.pop.group import PopGroup
from cometmq.broker.pop.queue import PopQueue
from cometmq.tests.broker.pop.pop_state import HIDDEN_MS, START_MS, group, none_active


@dataclass
class Known:
    """The model's state of one message."""

    hidden_until: int | None = None
    pop_ms: int = 0
    since_ms: int = 0
    attempt: int = 0
    done: bool = False
    stored: bool = False
    moving: bool = False


class PopMachine(RuleBasedStateMachine):
    """Exactly the visible messages are delivered; the offset is the first message that is not
    done.
    """

    @initialize()
    def begin(self) -> None:
        self.now_ms = START_MS
        self.core, self.queue = group()
        self.messages: list[Known] = []
        self.claims: list[DeliveryRef] = []

    @rule(count=st.integers(1, 6))
    def arrive(self, count: int) -> None:
        self.messages += [Known() for _ in range(count)]

    @rule(ms=st.integers(0, 3 * HIDDEN_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(batch=st.integers(1, 8), dropped=st.sets(st.integers(0, 40)))
    def pop(self, batch: int, dropped: set[int]) -> None:
        self.core.expire(self.now_ms, none_active)
        due = [o for o, m in enumerate(self.messages) if self._due(m)]
        terms = PopOptions(self.now_ms, HIDDEN_MS)
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
        if one.offset in self.queue.moving:
            assert outcome is Outcome.STALE
        elif known.done or known.moving:
            late = self.now_ms >= one.expires_ms
            assert outcome is (Outcome.STALE if late else Outcome.CONSUMED)
        elif (known.hidden_until is not None and known.since_ms <= one.pop_ms) or (
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
        if one.offset in self.queue.moving:
            assert outcome is Outcome.STALE
        elif known.done or known.moving:
            late = self.now_ms >= one.expires_ms
            assert outcome is (Outcome.STALE if late else Outcome.CONSUMED)
        elif known.hidden_until is not None and known.since_ms <= one.pop_ms:
            assert outcome is Outcome.DONE and delivery is not None
            self._hidden(known, delivery, ms)
        elif outcome is Outcome.DONE:
            # A handle of the earlier instance, for a message that this instance has not read.
            assert one.pop_ms < self.core.since_ms and self.now_ms < one.expires_ms
            assert known.hidden_until is None and delivery is not None
            known.attempt, known.since_ms, known.stored = 1, 0, False
            self._hidden(known, delivery, ms)

    @rule(data=st.data())
    def journal(self, data: st.DataObject) -> None:
        """Journal some of the messages in flight."""
        offsets = sorted(self.queue.unacked)
        if offsets:
            chosen = data.draw(st.lists(st.sampled_from(offsets), unique=True))
            self.core.stored(self.queue, chosen)
            for offset in chosen:
                self.messages[offset].stored = True

    @rule(count=st.integers(1, 4), fails=st.booleans())
    def copy(self, count: int, fails: bool) -> None:
        """Copy the due messages as a leader, or fail to."""
        more = self.core.expire(self.now_ms, none_active, count)
        due = {o for o, m in enumerate(self.messages) if self._due(m)}
        taken: list[tuple[PopQueue, Delivery]] = []
        while len(taken) < count and (one := self.core.take_ready()) is not None:
            taken.append(one)
        assert {delivery.offset for _, delivery in taken} <= due
        assert more or len(taken) == min(count, len(due))
        if fails:
            self.core.put_back(taken)
            return
        for queue, delivery in taken:
            self.core.move(queue, delivery.offset)
            known = self.messages[delivery.offset]
            known.moving, known.done = not known.stored, known.stored

    @rule()
    def safe(self) -> None:
        """Mark the copies as durable."""
        for offset in list(self.queue.moving):
            self.core.moved(self.queue, offset)
            self.messages[offset].moving = False
            self.messages[offset].done = True

    @rule()
    def restart(self) -> None:
        """Take over the journal's deliveries and redeliver the others; handles stay valid."""
        self.now_ms += 1
        committed = self.queue.committed
        kept = {o: d for o, d in self.queue.unacked.items() if d.stored}
        self.core = PopGroup("t", "g", 1_000, self.now_ms)
        self.queue = self.core.add_queue((0, 0), committed)
        for offset, known in enumerate(self.messages):
            if offset in kept:
                known.since_ms, known.attempt = 0, 1
                old = kept[offset]
                self.core.restore(
                    self.queue, Delivery(offset, old.pop_ms, old.visible_ms, 1, stored=True)
                )
            elif offset >= committed:
                known.hidden_until, known.done, known.attempt = None, False, 0
                known.stored = known.moving = False

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.validate()
        read = self.messages[: self.queue.next_read]
        holds = (o for o, m in enumerate(read) if not m.done and not m.stored)
        assert self.queue.committed == next(holds, len(read))
        times = [
            m.hidden_until
            for m in self.messages
            if m.hidden_until is not None and not m.done and not m.moving
        ]
        visible_ms = self.core.next_visible_ms()
        if times:
            assert visible_ms is not None and visible_ms <= min(times)
        for offset, delivery in self.queue.unacked.items():
            assert delivery.attempt == self.messages[offset].attempt

    def _due(self, known: Known) -> bool:
        until = known.hidden_until
        gone = known.done or known.moving
        return not gone and until is not None and until <= self.now_ms

    def _hidden(self, known: Known, delivery: Delivery, ms: int) -> None:
        assert delivery.pop_ms > known.pop_ms or known.hidden_until is None
        known.pop_ms = delivery.pop_ms
        known.hidden_until = max(self.now_ms + ms, known.pop_ms)
        assert delivery.visible_ms == known.hidden_until
        self.claims.append(DeliveryRef((0, 0), delivery.offset, known.pop_ms, known.hidden_until))

    def _given(self, offset: int) -> None:
        known = self.messages[offset]
        delivery = self.queue.unacked[offset]
        assert not known.done
        assert known.hidden_until is None or delivery.pop_ms > known.pop_ms
        known.hidden_until = self.now_ms + HIDDEN_MS
        known.pop_ms = known.since_ms = delivery.pop_ms
        known.attempt += 1
        self.claims.append(
            DeliveryRef((0, 0), offset, delivery.pop_ms, delivery.pop_ms + HIDDEN_MS)
        )


TestPopMachine = PopMachine.TestCase
TestPopMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
