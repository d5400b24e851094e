"""Rates of topics and groups for classic tools: messages in the last minute, hour and day.

What was stored is counted exactly from the times in the log. What a group has consumed is known by
its offsets now: the part before is what earlier requests saw. The first request for a group
therefore reports nothing; a tool that asks every minute gets the rate between its requests. So it
is with bytes and with messages sent back, which are counted since the start.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...base.slices import Slices

if TYPE_CHECKING:
    from ....front.clock import Clock
    from ....store.message_store import MessageStore
    from ...base.counters import Counters
    from ...metadata.tables import Metadata
    from ...offsets.consumer_offsets import ConsumerOffsets
    from ...visible.dispatch_pump import DispatchPump

_WINDOWS_S = (60, 3_600, 86_400)
#: Groups and topics that tools asked for lately, with about 100 totals each.
_KEYS_MAX = 2_000
_SAMPLES_MAX = 100
_NS_PER_S = 1_000_000_000


class Rate(Struct, frozen=True):
    """Messages of one window, and a second."""

    sum: int = 0
    tps: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return RocketMQ's form; every message counts once."""
        return {"avgpt": 1.0 if self.sum else 0.0, "sum": self.sum, "tps": self.tps}


class Rates(Struct, frozen=True):
    """The three windows."""

    minute: Rate
    hour: Rate
    day: Rate


class Totals:
    """Growing totals by key, each with what it was at earlier requests. Pure."""

    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[tuple[int, int]]] = OrderedDict()

    def note(self, key: str, total: int, now_ns: int) -> Rates:
        """Enter a total; return the rates up to now."""
        samples = self._samples.setdefault(key, deque(maxlen=_SAMPLES_MAX))
        self._samples.move_to_end(key)
        if len(self._samples) > _KEYS_MAX:
            self._samples.popitem(last=False)
        if samples and total < samples[-1][1]:
            samples.clear()  # an offset was set back
        rates = Rates(*(_rate(samples, total, now_ns, window) for window in _WINDOWS_S))
        samples.append((now_ns, total))
        return rates


def _rate(samples: deque[tuple[int, int]], total: int, now_ns: int, window_s: int) -> Rate:
    """Return the growth since the last sample at the begin of a window, or since the first one."""
    if not samples:
        return Rate()
    begin_ns = now_ns - window_s * _NS_PER_S
    base = samples[0]
    for sample in samples:
        if sample[0] > begin_ns:
            break
        base = sample
    elapsed_s = (now_ns - base[0]) / _NS_PER_S
    if elapsed_s <= 0:
        return Rate()
    tps = (total - base[1]) / elapsed_s
    return Rate(round(tps * min(window_s, elapsed_s)), tps)


class StoreRates:
    """Rates of one broker."""

    def __init__(
        self,
        *,
        clock: Clock,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        pump: DispatchPump,
        counters: Counters,
    ) -> None:
        self._clock = clock
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._pump = pump
        self._counters = counters
        self._totals = Totals()

    async def stored(self, topic: str) -> Rates:
        """Return what was stored in a topic."""
        self._pump.catch_up()
        known = self._metadata.topic(topic)
        store, now_ms = self._store, self._clock.wall_ms()
        slices = Slices(self._clock)
        sums = [0] * len(_WINDOWS_S)
        for queue_id in range(max(known.read_queues, known.write_queues) if known else 0):
            end = store.max_offset(topic, queue_id)
            if end <= store.min_offset(topic, queue_id):
                continue
            for number, window_s in enumerate(_WINDOWS_S):
                begin = store.reader.offset_by_time(topic, queue_id, now_ms - window_s * 1_000)
                sums[number] += max(end - begin, 0)
                await slices.pause()
        rows = zip(sums, _WINDOWS_S, strict=True)
        return Rates(*(Rate(found, found / window_s) for found, window_s in rows))

    def consumed(self, topic: str, group: str) -> Rates:
        """Return what a group has consumed of a topic."""
        total = sum(offset for _, offset in self._offsets.queues(topic, group))
        return self._totals.note(f"{topic}@{group}", total, self._clock.steady_ns())

    def stored_bytes(self, topic: str) -> Rates:
        """Return the bytes that were sent to a topic."""
        return self._grown("sent bytes", topic, self._counters.sent_bytes(topic))

    def consumed_bytes(self, topic: str, group: str) -> Rates:
        """Return the bytes of a topic that were handed to a group."""
        total = self._counters.received_bytes(topic, group)
        return self._grown("received bytes", f"{topic}@{group}", total)

    def sent_back(self, topic: str, group: str) -> Rates:
        """Return the messages of a topic that the consumers of a group sent back."""
        total = self._counters.sent_back[topic, group]
        return self._grown("sent back", f"{topic}@{group}", total)

    def _grown(self, what: str, key: str, total: int) -> Rates:
        # A blank is in no name of a topic or group.
        return self._totals.note(f"{what} {key}", total, self._clock.steady_ns())

    def broker(self, *, reads: bool) -> Rates:
        """Return what was read from the store, or stored, by everyone."""
        meter = self._store.meter
        total = meter.get_messages if reads else meter.put_messages
        return self._totals.note("reads" if reads else "", total, self._clock.steady_ns())
