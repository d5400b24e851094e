"""Epoch history of one log: which leader's epoch wrote which bytes.

An entry (epoch, start) labels the bytes from `start` up to the next entry's start as written in
`epoch`. Two logs with the same entry are equal below its start, and from there up to the smaller
end of that epoch (invariant I4): that is how a rejoining replica finds where its log diverged (rule
R6).

Rules (docs/formats/ha.md, section 6.5):

1. `assign` never fails on order: a newer epoch that starts where an older one starts replaces it,
   because the older one has no bytes left.
2. A follower assigns an epoch with its first data, never on an announcement alone.
3. The first record of an epoch is EPOCH_START. An epoch is empty until its leader has the disk
   space for that record, or if it ended before.
4. A chunk never crosses `next_start`.
5. Entries that label no byte at or above the log's start are dropped; the first remaining entry
   keeps its true start, so that logs with different starts can still be compared.

`entries` ascend strictly in epoch and in start. An empty log may have an empty history.
"""

from collections.abc import Iterable

from msgspec import Struct


class EpochStart(Struct, frozen=True):
    epoch: int
    start: int


class EpochHistory:
    __slots__ = ("entries",)

    entries: tuple[EpochStart, ...]

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        """Raise ValueError for entries that do not ascend (damaged file, invalid peer)."""
        self.entries = tuple(entries)
        if not self._is_ascending():
            raise ValueError(f"epochs do not ascend: {self.entries}")

    def __repr__(self) -> str:
        return f"EpochHistory({', '.join(f'{e.epoch}@{e.start}' for e in self.entries)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochHistory) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def last_epoch(self) -> int:
        """The newest epoch; 0 for an empty history."""
        return self.entries[-1].epoch if self.entries else 0

    # --- changes ----------------------------------------------------------------------------------

    def assign(self, epoch: int, start: int) -> None:
        """Label the bytes from `start` on with `epoch`, replacing older labels there (rule 1)."""
        if epoch < 1 or start < 0:
            raise ValueError(f"epoch {epoch} cannot start at {start}")
        kept = tuple(e for e in self.entries if e.epoch < epoch and e.start < start)
        self.entries = (*kept, EpochStart(epoch, start))

    def truncate(self, end: int) -> None:
        """Drop the entries without a byte below `end`, including one that starts exactly there."""
        self.entries = tuple(e for e in self.entries if e.start < end)

    def collapse(self, log_start: int) -> None:
        """Drop the entries whose last byte is below the log's new start (rule 5)."""
        first = 0
        while first + 1 < len(self.entries) and self.entries[first + 1].start <= log_start:
            first += 1
        self.entries = self.entries[first:]

    # --- queries ----------------------------------------------------------------------------------

    def ends_with(self, epoch: int, start: int) -> bool:
        """Return whether this is the newest entry."""
        last = self.entries[-1] if self.entries else None
        return last is not None and last.epoch == epoch and last.start == start

    def last_written(self, log_end: int) -> int:
        """Return the epoch of the last byte of a log that ends at `log_end`; 0 for an empty log."""
        return max((each.epoch for each in self.entries if each.start < log_end), default=0)

    def epoch_at(self, offset: int) -> EpochStart:
        """Return the entry of the byte at `offset`, or of a byte appended there.

        Raises LookupError below the first entry.
        """
        for entry in reversed(self.entries):
            if entry.start <= offset:
                return entry
        raise LookupError(f"no epoch is known at {offset}: {self}")

    def next_start(self, offset: int) -> int | None:
        """Return the first boundary above `offset`, which a chunk from `offset` must not cross, or
        None."""
        earliest = None
        for entry in reversed(self.entries):
            if entry.start <= offset:
                break
            earliest = entry.start
        return earliest

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return the end of the bytes of `epoch`, an epoch of the history, in a log that ends at
        `log_end`."""
        end = log_end
        for entry in reversed(self.entries):
            if entry.epoch <= epoch:
                break
            end = min(end, entry.start)
        return end

    def cut_against(self, leader: "EpochHistory", own_end: int, leader_end: int) -> int | None:
        """Return the end up to which this log surely equals the leader's, or None (rule R6).

        It is the smaller end of the newest entry that both histories contain.
        """
        of_leader = set(leader.entries)
        for entry in reversed(self.entries):
            if entry in of_leader:
                own = self.end_of(entry.epoch, own_end)
                return min(own, leader.end_of(entry.epoch, leader_end))
        return None

    # --- invariants -------------------------------------------------------------------------------

    def _is_ascending(self) -> bool:
        before_epoch, before_start = 0, -1
        for entry in self.entries:
            if entry.epoch <= before_epoch or entry.start <= before_start:
                return False
            before_epoch, before_start = entry.epoch, entry.start
        return True

    def validate(self) -> None:
        """Assert every invariant; tests and the simulation call it after each event."""
        assert self._is_ascending(), self.entries
