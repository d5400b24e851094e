"""Recalled messages that still lie in the timer wheel: they do not count as waiting.

A recall is a unit in the slot of the message that it names. Whether it names one that waits, only
the records tell: a recall may be repeated, or name nothing. So the slots with recalls are read when
numbers are asked for, each once after its last change, in slices. A message beyond the roll window
lies in another slot than its recall: such messages are searched in the whole timer log.

Derived data, in memory: a few hundred bytes per slot with recalls that is not read yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct

from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError
from ...store.format.properties import decode_properties
from ...store.format.record import checked_delivery
from ...store.timer.rules import REAL_TOPIC, UNIQUE_KEY, names_of, recall_key
from ...store.timer.unit import DELETE, ROLL

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...store.message_store import MessageStore
    from ...store.timer.store import TimerStore
    from ...store.timer.unit import TimerUnit
    from .timer_core import Timed, TimerCore

#: Slots above which those that are done are removed.
_SLOTS_MAX = 128


class _Slot(Struct):
    """What the recalls of one slot mean."""

    #: Recalled messages in the slot, by topic, as of the last walk; and those dropped already.
    matched: Counter[str]
    dropped: Counter[str]
    #: Messages in the slot that are not recalled, less the number of its field.
    unseen: int = 0
    #: Recalls whose message is not in the slot, and the hashes of their topics.
    elsewhere: frozenset[str] = frozenset()
    hashes: frozenset[int] = frozenset()


class Recalled:
    """Takes recalled messages out of the numbers of one term of leadership."""

    def __init__(
        self,
        *,
        clock: Clock,
        store: MessageStore,
        timers: TimerStore,
        core: TimerCore,
        counts: Callable[[str, int], bool],
        slots: Sequence[int],
    ) -> None:
        """`counts` tells by topic and log offset whether a message counts; `slots` hold recalls."""
        self._clock = clock
        self._store = store
        self._timers = timers
        self._core = core
        self._counts = counts
        self._slots: dict[int, _Slot] = {}
        self._changed = dict.fromkeys(slots)
        #: Recalled messages in slots that are not their own, by slot and topic.
        self._rolled: Counter[tuple[int, str]] = Counter()
        self._rolled_changed = False
        #: The recalls of messages that lie in another slot.
        self.elsewhere: frozenset[str] = frozenset()
        self._purge_above = _SLOTS_MAX
        self._work: Iterator[None] = iter(())

    # -- events -------------------------------------------------------------------------------

    def arrived(self, slot_ms: int, *, cancels: bool, rolled: bool) -> None:
        """Note that a unit was put into a slot."""
        if cancels or slot_ms in self._slots:
            self._changed[slot_ms] = None
            if len(self._slots) > self._purge_above:
                self._purge()
        if rolled and not cancels:
            self._rolled_changed |= bool(self.elsewhere)

    def dropped(self, timed: Timed) -> bool:
        """Note that a recalled message was dropped; return whether it counted until now."""
        slot = self._slots.get(timed.slot_ms)
        if slot is None:
            slot = self._slots[timed.slot_ms] = _Slot(Counter(), Counter())
            self._changed[timed.slot_ms] = None
        slot.dropped[timed.topic] += 1
        if slot.matched[timed.topic] <= 0:
            return True
        slot.matched[timed.topic] -= 1
        return False

    def rolled(self, timed: Timed) -> None:
        """Note that a message leaves a slot that is not its own."""
        if self._rolled[timed.slot_ms, timed.topic]:
            self._rolled_changed = True

    def forget(self, topic: str) -> None:
        """Note that a topic was deleted: nothing of it counts any more."""
        self._work = iter(())  # it may have read messages of the topic
        self._changed.update(dict.fromkeys(self._slots))
        for slot in self._slots.values():
            del slot.matched[topic]
        self._rolled = Counter({pair: n for pair, n in self._rolled.items() if pair[1] != topic})
        self._rolled_changed |= bool(self.elsewhere)

    # -- numbers ------------------------------------------------------------------------------

    def settle(self, stop_ns: int) -> bool:
        """Read what has changed, until `stop_ns`; return whether the numbers are true."""
        while True:
            for _ in self._work:
                if self._clock.steady_ns() >= stop_ns:
                    return False
            if self._changed:
                slot_ms = next(iter(self._changed))
                del self._changed[slot_ms]
                self._work = self._walk(slot_ms)
            elif self._rolled_changed:
                self._rolled_changed = False
                self._work = self._search()
            else:
                return True

    def due(self, begin_ms: int, bounds_ms: Sequence[int]) -> list[int]:
        """Return the number of messages due from `begin_ms` up to each of the bounds."""
        found = self._timers.wheel.count(begin_ms, bounds_ms)
        changes = Counter({at_ms: slot.unseen for at_ms, slot in self._slots.items()})
        for (at_ms, _), number in self._rolled.items():
            changes[at_ms] -= number
        times = sorted(at_ms for at_ms in changes if at_ms >= begin_ms)
        sums = list(accumulate((changes[at_ms] for at_ms in times), initial=0))
        return [
            max(number + sums[bisect_left(times, bound_ms)], 0)
            for number, bound_ms in zip(found, bounds_ms, strict=True)
        ]

    # -- reading ------------------------------------------------------------------------------

    def _walk(self, slot_ms: int) -> Iterator[None]:
        """Match the recalls of a slot with its messages."""
        timers = self._timers
        slot = self._slots.setdefault(slot_ms, _Slot(Counter(), Counter()))
        recalls: list[TimerUnit] = []
        messages: list[TimerUnit] = []
        number = 0
        for unit in timers.units(slot_ms):
            (recalls if unit.cancels else messages).append(unit)
            number += -1 if unit.cancels else 1
            yield
        own: set[str] = set()
        others: set[str] = set()
        for unit in recalls:
            (others if unit.rolled else own).update(timers.cancelled_keys((unit,)))
            yield
        hashes = frozenset(unit.topic_hash for unit in recalls)
        found: set[str] = set()
        matched: Counter[str] = Counter()
        for unit in messages:
            if not unit.rolled and unit.topic_hash in hashes:
                topic, names = self._message(unit.physical_offset)
                matches = own.intersection(names)
                if matches and self._counts(topic, unit.physical_offset):
                    matched[topic] += 1
                found |= matches
            yield
        slot.unseen = len(messages) - matched.total() - max(number, 0)
        self._count(slot.matched, matched - slot.dropped)
        slot.matched = matched - slot.dropped
        elsewhere = frozenset(others | (own - found))
        if elsewhere != slot.elsewhere:
            slot.elsewhere, slot.hashes = elsewhere, hashes
            self._rolled_changed = True

    def _search(self) -> Iterator[None]:
        """Find the recalled messages that lie in slots that are not their own."""
        import numpy as np

        log, read_ms = self._timers.log, self._core.read_ms
        no_names: frozenset[str] = frozenset()
        names = no_names.union(*(slot.elsewhere for slot in self._slots.values()))
        self.elsewhere = names
        hashes = np.array(sorted({h for slot in self._slots.values() for h in slot.hashes}))
        found: Counter[tuple[int, str]] = Counter()
        begin = log.start
        for _, rows in log.walk(begin).batches() if names else ():
            slots = rows["write_ms"].astype(np.int64) + rows["delay_ms"]
            candidates = (rows["magic"] & (ROLL | DELETE) == ROLL) & (slots >= read_ms)
            candidates &= np.isin(rows["topic_hash"], hashes)
            for slot_ms, offset in zip(
                slots[candidates].tolist(),
                rows["physical_offset"][candidates].tolist(),
                strict=True,
            ):
                topic, of_message = self._message(offset)
                is_done = self._timers.check.is_done(slot_ms, offset)
                if names.intersection(of_message) and self._counts(topic, offset) and not is_done:
                    found[slot_ms, topic] += 1
                yield
            yield
            if log.start != begin:  # a file was removed: once more
                self._rolled_changed = True
                return
        self._count(_by_topic(self._rolled), _by_topic(found))
        self._rolled = found

    def _message(self, physical_offset: int) -> tuple[str, tuple[str, ...]]:
        """Return the topic of a waiting message, and the recalls that name it."""
        try:
            record = checked_delivery(self._store.record_at(physical_offset))
        except (OffsetOutOfRangeError, RecordFormatError):
            return "", ()
        properties = decode_properties(record.properties)
        topic = properties.get(REAL_TOPIC, "")
        key = recall_key(properties.get(UNIQUE_KEY, ""), record.prepared_transaction_offset)
        return topic, names_of(key, topic)

    def _count(self, before: Counter[str], after: Counter[str]) -> None:
        now_ms = self._clock.wall_ms()
        for topic in before.keys() | after.keys():
            change = before[topic] - after[topic]
            if change:
                self._timers.metrics.add(topic, change, now_ms)

    def _purge(self) -> None:
        """Remove the slots that are done."""
        for slot_ms in [at_ms for at_ms in self._slots if at_ms < self._core.read_ms]:
            del self._slots[slot_ms]
        self._purge_above = 2 * len(self._slots) + _SLOTS_MAX


def _by_topic(numbers: Counter[tuple[int, str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, topic), number in numbers.items():
        found[topic] += number
    return found
