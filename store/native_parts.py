"""What the native crate does for the store. Without a part Python does the same."""

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from .dispatch import NativeUnits
    from .index.native_entries import NativeEntries
    from .log.commit_log import WholeRecords
    from .reading import NativeRecords


class NativeParts(Struct, frozen=True):
    """Functions for records of the common form; each is None without the crate."""

    records: "NativeRecords | None" = None
    index_entries: "NativeEntries | None" = None
    whole_records: "WholeRecords | None" = None
    queue_units: "NativeUnits | None" = None
