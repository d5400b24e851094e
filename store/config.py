"""Configuration of the store: one frozen dataclass, the only place where its defaults stand.

Names, keys, units and defaults are RocketMQ's own (store format, section 14.1) unless the help says
"ours". The key in `broker.conf` is the camelCase of the field name.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

CONSUME_QUEUE_UNIT_BYTES: Final = 20
FLUSH_DISK_TYPES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")
#: The smallest segment that still holds a record and its blank; tests use a few KiB.
SEGMENT_BYTES_MIN: Final = 512
#: A record holds its body length in an i32 and all of it must fit one segment.
MESSAGE_BYTES_MAX: Final = 1 << 30


def _option(default: Any, text: str, unit: str = "", key: str = "") -> Any:
    metadata = {"help": text}
    if unit:
        metadata["unit"] = unit
    if key:
        metadata["key"] = key
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Everything that the store can be told; validated once, here."""

    store_path_root_dir: str = _option("~/store", "directory that holds the whole store")
    store_path_commit_log: str = _option(
        "", "directory of the commit log; empty means <storePathRootDir>/commitlog"
    )
    mapped_file_size_commit_log: int = _option(1 << 30, "size of one commit log segment", "bytes")
    mapped_file_size_consume_queue: int = _option(
        6_000_000, "size of one consume queue file, rounded up to a multiple of 20", "bytes"
    )
    flush_disk_type: str = _option(
        "ASYNC_FLUSH",
        "ASYNC_FLUSH answers from the page cache, SYNC_FLUSH after fdatasync",
    )
    flush_interval_commit_log: int = _option(500, "pause between asynchronous log flushes", "ms")
    flush_commit_log_least_pages: int = _option(
        4, "an asynchronous flush waits for this many dirty pages of 4 KiB", "pages"
    )
    flush_commit_log_thorough_interval: int = _option(
        10_000, "at this interval the log is flushed however little there is", "ms"
    )
    flush_interval_consume_queue: int = _option(1000, "pause between queue flushes", "ms")
    flush_consume_queue_least_pages: int = _option(
        2, "a queue flush waits for this many dirty pages of 4 KiB in the queue", "pages"
    )
    flush_consume_queue_thorough_interval: int = _option(
        60_000, "at this interval all queues are flushed and the checkpoint advances", "ms"
    )
    sync_flush_timeout: int = _option(
        5000, "a sender in SYNC_FLUSH waits this long before the outcome is unknown", "ms"
    )
    sync_flush_gather_max: int = _option(
        2,
        "ours: with several senders in SYNC_FLUSH, one flush waits up to this long for the "
        "others; 0 flushes at once; a single sender never waits",
        "ms",
    )
    max_message_size: int = _option(4 << 20, "largest body of one message", "bytes")
    max_filter_message_size: int = _option(
        16_000, "bytes of queue units that one read looks at when it filters by tag", "bytes"
    )
    check_crc_on_recover: bool = _option(
        True, "verify the checksum of every body while recovering", key="checkCRCOnRecover"
    )
    open_queue_files_max: int = _option(
        512, "ours: descriptors of consume queue files kept open, least recently used first"
    )

    def __post_init__(self) -> None:
        if not self.store_path_root_dir:
            raise ValueError("storePathRootDir is empty: name the directory of the store.")
        if self.flush_disk_type not in FLUSH_DISK_TYPES:
            raise ValueError(
                f"flushDiskType is {self.flush_disk_type!r}: use ASYNC_FLUSH or SYNC_FLUSH."
            )
        if self.mapped_file_size_commit_log < SEGMENT_BYTES_MIN:
            raise ValueError(
                f"mappedFileSizeCommitLog is {self.mapped_file_size_commit_log}: "
                f"a segment needs at least {SEGMENT_BYTES_MIN} bytes."
            )
        if self.mapped_file_size_consume_queue < CONSUME_QUEUE_UNIT_BYTES:
            raise ValueError(
                f"mappedFileSizeConsumeQueue is {self.mapped_file_size_consume_queue}: "
                f"a queue file needs room for one unit of {CONSUME_QUEUE_UNIT_BYTES} bytes."
            )
        if not 0 < self.max_message_size <= MESSAGE_BYTES_MAX:
            raise ValueError(
                f"maxMessageSize is {self.max_message_size}: use 1 to {MESSAGE_BYTES_MAX} bytes."
            )
        self._check_positive("flush_interval_commit_log", "flush_interval_consume_queue")
        self._check_positive("flush_commit_log_thorough_interval")
        self._check_positive("flush_consume_queue_thorough_interval", "sync_flush_timeout")
        self._check_positive("open_queue_files_max", "max_filter_message_size")
        self._check_positive("flush_commit_log_least_pages", "flush_consume_queue_least_pages")
        if self.sync_flush_gather_max < 0:
            raise ValueError("syncFlushGatherMax is negative: use 0 or more milliseconds.")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) <= 0:
                head, *rest = name.split("_")
                key = head + "".join(part.capitalize() for part in rest)
                raise ValueError(f"{key} is {getattr(self, name)}: use a number above 0.")

    @property
    def root(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def commit_log_directory(self) -> Path:
        if self.store_path_commit_log:
            return Path(self.store_path_commit_log).expanduser()
        return self.root / "commitlog"

    @property
    def consume_queue_directory(self) -> Path:
        return self.root / "consumequeue"

    @property
    def consume_queue_file_bytes(self) -> int:
        unit = CONSUME_QUEUE_UNIT_BYTES
        return -(-self.mapped_file_size_consume_queue // unit) * unit

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"
