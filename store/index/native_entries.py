"""Entries of the index from the native crate, for records of the common form.

Promises: `next_entries` returns the entries that `next_columns` and `entries_of` return for the
same records (a test compares both), or None where the first record is left to them.
"""

from typing import Any, Protocol

import numpy as np

from ..format.index_keys import BATCH_BYTES_MAX, Entries


class NativeEntries(Protocol):
    """The function `index_entries` of the crate."""

    def __call__(
        self, data: Any, base: int, range: tuple[int, int], records_max: int, bytes_max: int
    ) -> tuple[list[bytes], int, int]:
        """Return the columns of `Entries`, the position behind the last record, and how many
        records. Ends in front of a record of another form."""


def next_entries(
    native: NativeEntries, data: Any, base: int, range: tuple[int, int], records_max: int
) -> tuple[Entries, int, int] | None:
    """Return entries of records in `range` of `data`, a segment that begins at log offset `base`;
    the position behind the last record; how many records."""
    columns, end, records = native(data, base, range, records_max, BATCH_BYTES_MAX)
    if not records:
        return None
    hashes, offsets, times, kinds = (np.frombuffer(column, np.int64) for column in columns)
    return Entries(hashes, offsets, times, kinds), end, records
