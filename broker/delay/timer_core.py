"""Timer core: which timers are due, the open slots, the waiting messages, and the progress. Pure.

Apache reads a slot when its second is over and then delivers everything in it. Here a slot is
opened one second before it begins, and each message is due at its own time within it. A successor
finds the same files, because the read time moves only when a slot is done
(docs/formats/store-format.md, section 11.4; docs/formats/broker-semantics.md, sections 6.2 and
6.3).

    future     open, being read     open, read          done                 safe
    wheel      `arriving`           heap, by due time   all settled, its     read time moves on disk
                                                        second is over

Nothing is taken before its time. A cancellation wins over every message of its slot that was not
taken yet, in whichever order both arrived. A message that arrives late, for an open or past slot,
is delivered too. `progress` never passes an undelivered message or a delivery that is not on disk.

When the clock is set back by some seconds, the core goes back with it (`rewind`): the read time
too, so that new messages get slots, and what waits in memory for a slot of the time to come waits
in the wheel again. Otherwise all messages before the old read time would wait in memory, and the
limits below would stop those that are due. A message without a unit returns to the timer topic.

Derived data: rebuilt from the timer files, at worst with repetitions.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from msgspec import Struct, field

from ...store.timer.rules import delete_key, is_cancelled

#: Messages of open slots in memory (about 400 bytes each) above which no further slot is opened:
#: only after a long stop, or under a load that is late anyway. One slot is always read completely.
WAITING_MAX = 200_000
#: Messages without a unit (`Timed.number`) above which enqueueing pauses.
DIRECT_MAX = 10_000
#: Slots by which the core may be ahead of the clock.
_AHEAD_SLOTS = 2


#: A message in memory: the fields of `Timed` in a plain tuple of plain values, which the garbage
#: collector does not traverse; a hundred thousand objects would stall the loop at every full
#: collection.
Entry = tuple[int, int, int, int, str, str, bool, int]


class Timed(Struct):
    """One waiting message."""

    due_ms: int
    #: Physical offset of its record in the timer topic.
    physical_offset: int
    slot_ms: int
    enqueued_ms: int
    #: Its `recall_key`.
    key: str
    #: Destination topic.
    topic: str
    #: Not due: return it to the timer topic.
    rolled: bool = False
    #: Its offset in the timer topic if it has no unit, because it was due before it could be put
    #: into the wheel: until it is delivered and safe, enqueueing would restart at it after a crash.
    number: int = -1

    def entry(self) -> Entry:
        """The stored form; entries are ordered by time, then by position."""
        return (
            self.due_ms,
            self.physical_offset,
            self.slot_ms,
            self.enqueued_ms,
            self.key,
            self.topic,
            self.rolled,
            self.number,
        )


class OpenSlot(Struct):
    """One open second."""

    read: bool = False
    waiting: int = 0
    #: End of its newest delivery in the log.
    end: int = 0
    arriving: list[Entry] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    #: Keys of the waiting messages; created at the first recall.
    keys: set[str] | None = None


class TimerCore:
    """The state of all timers, driven by events; times in wall milliseconds."""

    def __init__(self, read_ms: int, queue_offset: int, precision_ms: int = 1000) -> None:
        self.precision_ms = precision_ms
        #: Every slot before it is done.
        self.read_ms = read_ms - read_ms % precision_ms
        #: Every slot before it is open or done.
        self.open_ms = self.read_ms
        #: Enqueueing the timer topic continues here.
        self.queue_offset = queue_offset
        #: Increases with every change that a flush should make durable.
        self.changes = 0
        self._slots: dict[int, OpenSlot] = {}
        self._heap: list[Entry] = []
        self._waiting = 0
        self._finished: deque[tuple[int, int]] = deque()  # slot, end of its deliveries in the log
        self._directs: deque[int] = deque()
        #: Messages without a unit: the log must be flushed up to here; -1: not delivered yet.
        self._direct_ends: dict[int, int] = {}
        self._held: list[tuple[int, int]] = []  # slot and number of recalls without a unit
        #: Recalls for done slots while messages without a unit wait: they may belong to those.
        self._late_cancelled: dict[int, set[str]] = {}

    # -- opening slots ------------------------------------------------------------------------

    def floor(self, now_ms: int) -> int:
        """Return the slot of `now_ms`."""
        return now_ms - now_ms % self.precision_ms

    def horizon_ms(self, now_ms: int) -> int:
        """Return the end of the slots to open: all that begin within a second."""
        return self.floor(now_ms) + 2 * self.precision_ms

    def may_open(self, now_ms: int) -> bool:
        """Return whether the slot at `open_ms` should be opened now."""
        return self.open_ms < self.horizon_ms(now_ms) and self._waiting < WAITING_MAX

    def pass_to(self, slot_ms: int) -> None:
        """Skip the slots from `open_ms` up to this one: they are empty."""
        for passed, slot in self._slots.items():
            slot.read = slot.read or passed < slot_ms
        self.open_ms = max(self.open_ms, slot_ms)

    def was_read(self) -> bool:
        """Return whether the slot at `open_ms` is in memory already: kept by `rewind`."""
        slot = self._slots.get(self.open_ms)
        return slot is not None and slot.read

    def is_ahead(self, now_ms: int) -> bool:
        """Return whether the clock was set back: slots are open that begin seconds later than those
        to open now. (After a smaller step the messages in memory just wait.)"""
        return self.open_ms - self.horizon_ms(now_ms) >= _AHEAD_SLOTS * self.precision_ms

    def rewind(self, now_ms: int, flushed: int) -> int | None:
        """Go back to `now_ms`; return the time before which all units so far are delivered. The
        caller saves the progress before it puts another unit: in the one saved before, all slots
        up to the former read time are delivered.

        None, with nothing changed, while deliveries are not on disk: the progress would pass them.
        """
        self.progress(flushed)
        if self._finished:
            return None
        floor_ms, horizon_ms = self.floor(now_ms), self.horizon_ms(now_ms)
        # Slots above `open_ms` were kept when the clock was set back before.
        end_ms = min([self.open_ms, *(at_ms for at_ms in self._slots if at_ms >= floor_ms)])
        kept = {slot_ms for slot_ms, _ in self._held}
        later = {
            slot_ms
            for slot_ms, slot in self._slots.items()
            # A slot that is delivered in part is kept, but not at the cost of what is due.
            if slot_ms >= horizon_ms
            and slot_ms not in kept
            and not (slot.end and slot.waiting < DIRECT_MAX)
        }
        heap = [self._rolled(entry, now_ms) if entry[7] >= 0 else entry for entry in self._heap]
        self._heap = [entry for entry in heap if entry[7] >= 0 or entry[2] not in later]
        heapify(self._heap)
        self._waiting -= sum(self._slots.pop(slot_ms).waiting for slot_ms in later)
        self.read_ms = min(self.read_ms, floor_ms)
        self.open_ms = floor_ms
        self.changes += 1
        return end_ms

    def _rolled(self, entry: Entry, now_ms: int) -> Entry:
        """Return the entry of a message without a unit that returns to the timer topic now, if it
        waits for the time to come and is not cancelled."""
        timed = Timed(*entry)
        if timed.due_ms < self.horizon_ms(now_ms):
            return entry
        slot = self._slots.get(timed.slot_ms)
        keys = self._late_cancelled.get(timed.slot_ms) if slot is None else slot.cancelled
        timed.rolled = not (keys and is_cancelled(keys, timed.key, timed.topic))
        timed.due_ms = now_ms
        return timed.entry()

    def begin(self) -> int:
        """Open the slot at `open_ms`; return its time. Later arrivals come through `add`."""
        slot_ms = self.open_ms
        self._slots.setdefault(slot_ms, OpenSlot())
        self.open_ms = slot_ms + self.precision_ms
        return slot_ms

    def opened(self, slot_ms: int) -> None:
        """Mark a slot as read, cancellations included: its messages may be delivered."""
        slot = self._slots[slot_ms]
        slot.read = True
        self._heap += slot.arriving
        slot.arriving = []
        heapify(self._heap)

    def reopen(self, slot_ms: int) -> None:
        """Reopen the slot begun last after a failed read, from its beginning."""
        slot = self._slots[slot_ms]
        self._waiting -= len(slot.arriving)
        slot.waiting -= len(slot.arriving)
        slot.arriving = []
        self.open_ms = slot_ms

    def is_open(self, slot_ms: int) -> bool:
        """Return whether a message of this slot must be added here, because it will not be read any
        more.
        """
        slot = self._slots.get(slot_ms)
        return slot_ms < self.open_ms or (slot is not None and slot.read)

    # -- messages -----------------------------------------------------------------------------

    def add(self, timed: Timed) -> None:
        """Add a message of an open slot: read from it, or too late to be read."""
        slot = self._slots.get(timed.slot_ms)
        if slot is None:
            slot = self._slots[timed.slot_ms] = OpenSlot(read=True)
        slot.waiting += 1
        self._waiting += 1
        if slot.read:
            heappush(self._heap, timed.entry())
            if slot.keys is not None:
                slot.keys.add(delete_key(timed.key, timed.topic))
        else:
            slot.arriving.append(timed.entry())

    def add_direct(self, timed: Timed) -> None:
        """Add a message without a unit: the queue offset waits for it."""
        self._directs.append(timed.number)
        self._direct_ends[timed.number] = -1
        heappush(self._heap, timed.entry())
        self._waiting += 1
        self.changes += 1

    @property
    def crowded(self) -> bool:
        """Return whether too many messages without a unit wait: enqueueing must pause."""
        return len(self._directs) >= DIRECT_MAX

    def cancel(self, slot_ms: int, key: str, number: int = -1) -> None:
        """Apply a cancellation (`rules.cancellation` returns its name) for a slot that is open or
        will be open soon; no effect for a done slot. With `number`, its offset in the timer topic,
        it has no unit: until its slot is safe, enqueueing would restart at it after a crash.
        """
        if slot_ms < self.read_ms:
            if self._directs:
                self._late_cancelled.setdefault(slot_ms, set()).add(key)
            return
        slot = self._slots.get(slot_ms)
        if slot is None:
            slot = self._slots[slot_ms] = OpenSlot(read=slot_ms < self.open_ms)
        slot.cancelled.add(key)
        if number >= 0:
            self._held.append((slot_ms, number))
        self.changes += 1

    def waits(self, slot_ms: int, key: str, topic: str) -> bool | None:
        """Return whether the message of a topic with this `recall_key` waits in the slot; None: the
        slot is not read yet.
        """
        slot = self._slots.get(slot_ms)
        if slot is None:
            return None if slot_ms >= self.open_ms else False
        if not slot.read:
            return None
        if slot.keys is None:
            slot.keys = {delete_key(*entry[4:6]) for entry in self._heap if entry[2] == slot_ms}
        waits = delete_key(key, topic) in slot.keys
        return waits and not is_cancelled(slot.cancelled, key, topic)

    # -- delivery -----------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Return when the next message is due."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int, limit: int) -> tuple[list[Timed], list[Timed]]:
        """Return up to `limit` due messages, oldest first, and those among them that were
        cancelled, which are settled. The others must be passed to `settled` or `give_back`.
        """
        due: list[Timed] = []
        dropped: list[Timed] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(due) + len(dropped) < limit:
            timed = Timed(*heappop(heap))
            slot = self._slots.get(timed.slot_ms)
            keys = self._late_cancelled.get(timed.slot_ms) if slot is None else slot.cancelled
            gone = keys and is_cancelled(keys, timed.key, timed.topic)
            (dropped if gone and not timed.rolled else due).append(timed)
        for timed in dropped:
            self.settled(timed, 0)
        return due, dropped

    def settled(self, timed: Timed, end: int) -> None:
        """Mark a message as delivered, its copy ending at `end` of the log; or as dropped, with
        0.
        """
        self._waiting -= 1
        self.changes += 1
        slot = self._slots.get(timed.slot_ms)
        if slot is not None and slot.keys is not None:
            slot.keys.discard(delete_key(timed.key, timed.topic))
        if timed.number >= 0:
            self._direct_ends[timed.number] = end
        elif slot is not None:
            slot.waiting -= 1
            slot.end = max(slot.end, end)

    def give_back(self, messages: list[Timed]) -> None:
        """Return messages whose delivery failed."""
        for timed in messages:
            heappush(self._heap, timed.entry())

    # -- progress -----------------------------------------------------------------------------

    def advance(self, now_ms: int, *, last: bool = False) -> None:
        """Remove the done slots: read, empty and over, so that nothing more can arrive for them.

        With `last` nothing arrives for the current second either: the broker stops.
        """
        over = self.floor(now_ms) + (self.precision_ms if last else 0)
        while self.read_ms < min(over, self.open_ms):
            slot = self._slots.get(self.read_ms)
            if slot is not None:
                if not slot.read or slot.waiting:
                    return
                del self._slots[self.read_ms]
                self.changes += 1
                if slot.end:
                    self._finished.append((self.read_ms, slot.end))
                self.read_ms += self.precision_ms
                continue
            following = min(self._slots, default=self.open_ms)
            self.read_ms = min(following, over, self.open_ms)

    def progress(self, flushed: int) -> tuple[int, int]:
        """Return the read time and the queue offset that hold when the log is on disk up to
        `flushed`.
        """
        finished, directs = self._finished, self._directs
        while finished and finished[0][1] <= flushed:
            finished.popleft()
        while directs and 0 <= self._direct_ends[directs[0]] <= flushed:
            del self._direct_ends[directs.popleft()]
        if not directs:
            self._late_cancelled.clear()
        read_ms = finished[0][0] if finished else self.read_ms
        self._held = [held for held in self._held if held[0] >= read_ms]
        first = directs[0] if directs else self.queue_offset
        return read_ms, min([first, *(number for _, number in self._held)])

    def overdue(self, now_ms: int) -> int:
        """Return the number of due messages that were not taken yet."""
        if not self._heap or self._heap[0][0] > now_ms:
            return 0
        return sum(entry[0] <= now_ms for entry in self._heap)

    @property
    def waiting(self) -> int:
        """Return the number of messages in memory."""
        return self._waiting
