"""Errors of the store, one class for each thing that a caller can react to.

    StoreError
        CorruptLogError         bytes that were whole once are not any more; restore from a replica
        UnsupportedLayoutError  a file that this configuration cannot read; nothing was changed
        RecordFormatError       bytes that are no record (the codec's verdict, before anyone judges)
        OffsetOutOfRangeError   an offset that the log or a queue does not hold
        DiskFullError           no room for the next file; nothing was half written
        NoBufferError           all buffers of the transient store pool are in use
        StoreLockedError        another process owns the directory
        StoreClosedError        the store was not opened, or was closed

Every message is a sentence that says what is wrong and, where someone can act, what to do.
"""


class StoreError(Exception):
    """Anything that the store refuses or finds broken."""


class CorruptLogError(StoreError):
    """Damage in the middle of the log: valid records follow, so nothing may be cut."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"The commit log is damaged at offset {offset} (file {path}): {reason} "
            "Nothing was changed. Restore this directory from another replica or a backup."
        )
        self.path = path
        self.offset = offset
        self.reason = reason


class UnsupportedLayoutError(StoreError):
    """A file has a size, name or content that does not fit the configuration."""


class RecordFormatError(StoreError):
    """The bytes at hand do not form a record; `reason` says which check failed."""


class OffsetOutOfRangeError(StoreError):
    """The requested offset lies outside [first, end)."""

    def __init__(self, requested: int, first: int, end: int) -> None:
        super().__init__(f"Offset {requested} is outside of what is held, [{first}, {end}).")
        self.requested = requested
        self.first = first
        self.end = end


class DiskFullError(StoreError):
    """A new file could not get its space; what was there before is unchanged."""


class NoBufferError(StoreError):
    """The disk is slower than the senders; there is a buffer again in a moment."""


class StoreLockedError(StoreError):
    """A second process wants the directory."""


class StoreClosedError(StoreError):
    """A call came before `open` or after `close`."""
