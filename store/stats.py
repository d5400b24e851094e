"""Store statistics: counters, rates and a frozen snapshot.

Each batch costs at most two readings of the steady clock and a few additions, whatever its size.
Latencies are counted in buckets: "put" is the time inside one append (a message of a batch counts
with the time of its batch), without disk and replicas. Rates are computed from samples that the
broker's timer takes once a second. Nothing is persisted; counters start at zero.

The bucket bounds are ours, in microseconds: RocketMQ's begin at whole milliseconds, where a store
that writes to the page cache would show one bucket.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

#: Upper bounds in microseconds; one more bucket holds everything above.
LATENCY_BOUNDS_US: Final = (
    20,
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    5_000_000,
)
_BOUNDS_NS: Final = tuple(bound * 1_000 for bound in LATENCY_BOUNDS_US)
#: Windows of the rates, in seconds.
WINDOWS_S: Final = (10, 60, 600)
_NS_PER_S: Final = 1_000_000_000
#: Minimum distance of two samples.
_SAMPLE_EVERY_NS: Final = _NS_PER_S // 2


class Rates(Struct, frozen=True):
    """Per second, over one window (or since the start, while that is shorter)."""

    window_s: int
    put_messages: float
    put_bytes: float
    get_messages: float
    get_bytes: float


class StoreStats(Struct, frozen=True):
    """The store at one moment; sizes in bytes."""

    #: Accepted messages, and their bytes in the log.
    put_messages: int
    put_bytes: int
    put_batches: int
    #: Refused messages, for any reason.
    put_refused: int
    #: Accepted messages by append time: (upper bound in microseconds, None above all; count).
    put_latency: tuple[tuple[int | None, int], ...]
    put_longest_us: int
    gets: int
    #: Reads without a record.
    get_misses: int
    #: Units of consume queues that did not match the log and were written again.
    queue_units_repaired: int
    #: Damaged records that readers reached, by the part that did not match (`record_check.py`).
    record_mismatches: dict[str, int]
    #: Messages that readers skip because their records are damaged (at most gaps.LISTED_MAX).
    missing_messages: int
    #: Index files that did not match their digest.
    index_files_damaged: int
    get_messages: int
    get_bytes: int
    rates: tuple[Rates, ...]
    log_start: int
    log_end: int
    flush_behind: int
    dispatch_behind: int
    index_behind: int
    segments: int
    segment_size: int
    queues: int
    #: Percent of the fullest disk; -1 unknown.
    disk_use: int
    #: Retention's disk pressure: none, any_hour, forced or stop.
    pressure: str
    archive_watermark: int
    #: Why the store refuses writes, or "".
    refusal: str

    @property
    def average_put_size(self) -> float:
        return self.put_bytes / self.put_messages if self.put_messages else 0.0

    def put_percentile_us(self, share: float) -> int | None:
        """Return the bucket bound below which this share of the puts lies; None without puts or
        above all bounds."""
        total = sum(count for _, count in self.put_latency)
        seen = 0
        for bound, count in self.put_latency:
            seen += count
            if total and seen >= share * total:
                return bound
        return None


class Samples:
    """Readings of growing totals; from them come the rates over WINDOWS_S."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: deque[tuple[int, ...]] = deque()

    def add(self, now_ns: int, *totals: int) -> None:
        """Keep a reading, unless the last one is younger than half a second; drop what is older
        than all windows."""
        rows = self._rows
        if rows and now_ns - rows[-1][0] < _SAMPLE_EVERY_NS:
            return
        rows.append((now_ns, *totals))
        while rows[0][0] < now_ns - (WINDOWS_S[-1] + 1) * _NS_PER_S:
            rows.popleft()

    def rates(self, window_s: int, now_ns: int, *totals: int) -> tuple[float, ...]:
        """Return the growth a second of each total, from the window's oldest reading to now."""
        if not self._rows:
            return (0.0,) * len(totals)
        at = bisect_left(self._rows, (now_ns - window_s * _NS_PER_S,))
        then_ns, *then = self._rows[min(at, len(self._rows) - 1)]
        seconds = max((now_ns - then_ns) / _NS_PER_S, 1e-3)
        return tuple((b - a) / seconds for a, b in zip(then, totals, strict=True))

    def __len__(self) -> int:
        return len(self._rows)


class Meter:
    """The counters; used from the thread that writes and reads."""

    __slots__ = (
        "get_bytes",
        "get_messages",
        "get_misses",
        "gets",
        "latency",
        "longest_ns",
        "put_batches",
        "put_bytes",
        "put_messages",
        "put_refused",
        "samples",
        "steady_ns",
    )

    def __init__(self) -> None:
        #: Clock of latencies and rates; None: neither is measured.
        self.steady_ns: Callable[[], int] | None = None
        self.put_messages = 0
        self.put_bytes = 0
        self.put_batches = 0
        self.put_refused = 0
        self.latency = [0] * (len(_BOUNDS_NS) + 1)
        self.longest_ns = 0
        self.gets = 0
        self.get_misses = 0
        self.get_messages = 0
        self.get_bytes = 0
        self.samples = Samples()

    def now_ns(self) -> int:
        """Return the steady time; 0 without a clock."""
        return self.steady_ns() if self.steady_ns is not None else 0

    def put(self, messages: int, refused: int, size: int, took_ns: int) -> None:
        """Count one append of `messages`, of which `refused` were refused; the log grew by
        `size`."""
        accepted = messages - refused
        self.put_batches += 1
        self.put_messages += accepted
        self.put_refused += refused
        self.put_bytes += size
        if took_ns:
            self.latency[bisect_left(_BOUNDS_NS, took_ns)] += accepted
            self.longest_ns = max(self.longest_ns, took_ns)

    def get(self, messages: int, size: int) -> None:
        """Count one read of `messages` records with `size` bytes."""
        self.gets += 1
        if messages:
            self.get_messages += messages
            self.get_bytes += size
        else:
            self.get_misses += 1

    def latency_buckets(self) -> tuple[tuple[int | None, int], ...]:
        """Return (upper bound in microseconds, messages); the last bound is None."""
        return tuple(zip((*LATENCY_BOUNDS_US, None), self.latency, strict=True))

    def sample(self) -> None:
        """Keep a reading of the current counters for the rates."""
        if self.steady_ns is not None:
            self.samples.add(self.steady_ns(), *self._totals())

    def rates(self) -> tuple[Rates, ...]:
        """Return the rates of each window, from its oldest sample to now."""
        now_ns = 0 if self.steady_ns is None else self.steady_ns()
        totals = self._totals()
        return tuple(
            Rates(window, *self.samples.rates(window, now_ns, *totals)) for window in WINDOWS_S
        )

    def _totals(self) -> tuple[int, int, int, int]:
        return (self.put_messages, self.put_bytes, self.get_messages, self.get_bytes)
