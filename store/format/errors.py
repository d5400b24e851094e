"""Errors of the store, one class per way to react.

    StoreError
        CorruptLogError         bytes that were whole are damaged; restore from a replica
        UnsupportedLayoutError  a file does not fit the configuration; nothing was changed
        AbsentPartError         a part of the store is missing, or another store's; nothing was
                                changed
        RecordFormatError       bytes that are not a record
        OffsetOutOfRangeError   an offset outside of the log or a queue
        DiskFullError           no space for the next file; nothing was half written
        NoBufferError           all buffers of the transient store pool are in use
        StoreLockedError        another process uses the directory
        StoreClosedError        the store was not opened, or was closed

Each message is a sentence: what failed, why, and what to do.
"""


class StoreError(Exception):
    """Base class of all errors of the store."""


class CorruptLogError(StoreError):
    """Damage inside the log: valid records follow, so the log cannot be cut."""

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


class AbsentPartError(StoreError):
    """A part that the store had is missing, or is another store's."""


class RecordFormatError(StoreError):
    """The bytes do not form a record; the message names the failed check."""


class OffsetOutOfRangeError(StoreError):
    """The requested offset lies outside [first, end)."""

    def __init__(self, requested: int, first: int, end: int) -> None:
        super().__init__(f"Offset {requested} is outside of [{first}, {end}).")
        self.requested = requested
        self.first = first
        self.end = end


class DiskFullError(StoreError):
    """A new file could not be allocated; existing files are unchanged."""


class NoBufferError(StoreError):
    """No transient pool buffer is free: the disk is slower than the senders. Temporary."""


class StoreLockedError(StoreError):
    """Another process uses the directory."""


class StoreClosedError(StoreError):
    """A call came before `open` or after `close`."""
