"""Configuration of the store: one frozen dataclass with all defaults.

Names, keys, units and defaults are RocketMQ's (docs/formats/store-format.md, section 14.1) unless
the help has "ours". The key in `broker.conf` is the camelCase of the field name.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..format.record_layout import UNIT_BYTES
from .delay_levels import parse_levels

#: One extension unit without a bitmap, and the end mark behind it.
CONSUME_QUEUE_EXT_BYTES_MIN: Final = 24
FLUSH_DISK_TYPES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")
#: The smallest segment that holds a record and its blank; tests use a few KiB.
SEGMENT_BYTES_MIN: Final = 512
#: Slots of the timer wheel: two weeks of seconds.
TIMER_SLOTS: Final = 7 * 86_400 * 2
#: One unit of 52 bytes and the end mark of 16.
TIMER_FILE_BYTES_MIN: Final = 68
#: A record holds its body length in an i32 and all of it must fit one segment.
MESSAGE_BYTES_MAX: Final = 1 << 30


def _setting(default: Any, help_text: str, unit: str = "", key: str = "") -> Any:
    metadata = {"help": help_text}
    if unit:
        metadata["unit"] = unit
    if key:
        metadata["key"] = key
    return field(default=default, metadata=metadata)


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part.strip()).expanduser() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """All settings of the store, validated on construction. Raises ValueError."""

    store_path_root_dir: str = _setting("~/store", "directory of the store")
    store_path_commit_log: str = _setting(
        "",
        "directory of the commit log, or several separated by commas, used in turn; empty "
        "means <storePathRootDir>/commitlog",
    )
    store_file_mode: str = _setting(
        "0600",
        "ours: permissions of new files, in octal digits; directories also get x where r is set. "
        "0640 lets the group read (Spark as another user), 0660 lets it write (Apache's broker as "
        "another user). The process sets its umask to this",
    )
    read_only_commit_log_store_paths: str = _setting(
        "", "directories of the commit log, separated by commas, that get no new segments"
    )
    mapped_file_size_commit_log: int = _setting(1 << 30, "size of one commit log segment", "bytes")
    mapped_file_size_consume_queue: int = _setting(
        6_000_000, "size of one consume queue file, rounded up to a multiple of 20", "bytes"
    )
    enable_consume_queue_ext: bool = _setting(
        False, "write tags code and store time of every message into extension files of its queue"
    )
    mapped_file_size_consume_queue_ext: int = _setting(
        48 << 20, "size of one consume queue extension file", "bytes"
    )
    enable_lmq: bool = _setting(True, "put records into the light queues that they name")
    enable_multi_dispatch: bool = _setting(
        True, "second switch of light queues; both must be true (RocketMQ's default is false)"
    )
    max_lmq_consume_queue_num: int = _setting(
        20_000,
        "maximum number of light queues; messages that would create more are refused",
    )
    flush_disk_type: str = _setting(
        "ASYNC_FLUSH", "ASYNC_FLUSH acknowledges from the page cache, SYNC_FLUSH after fdatasync"
    )
    flush_interval_commit_log: int = _setting(500, "pause between asynchronous log flushes", "ms")
    flush_commit_log_least_pages: int = _setting(
        4, "an asynchronous flush waits for this many dirty pages of 4 KiB", "pages"
    )
    flush_commit_log_thorough_interval: int = _setting(
        10_000, "interval of a log flush regardless of dirty pages", "ms"
    )
    transient_store_pool_enable: bool = _setting(
        False,
        "write to buffers in memory first, which are committed to the files every 200 ms: a crash "
        "of the process then loses what was not committed; followers write directly",
    )
    transient_store_pool_size: int = _setting(
        5, "buffers of the transient pool, each as large as a commit log segment"
    )
    fast_fail_if_no_buffer_in_store_pool: bool = _setting(
        False,
        "refuse messages when no buffer is free for a new segment; else it is written directly",
    )
    commit_interval_commit_log: int = _setting(
        200, "with the transient pool, pause between commits to the files", "ms"
    )
    commit_commit_log_least_pages: int = _setting(
        4, "with the transient pool, a commit waits for this many pages of 4 KiB", "pages"
    )
    commit_commit_log_thorough_interval: int = _setting(
        200, "with the transient pool, interval of a commit regardless of pages", "ms"
    )
    warm_maped_file_enable: bool = _setting(
        False, "fill new segments with zeros ahead, so that their pages and blocks exist"
    )
    flush_least_pages_when_warm_maped_file: int = _setting(
        4096, "while filling in SYNC_FLUSH, flush after this many pages", "pages"
    )
    lock_maped_file_enable: bool = _setting(
        False, "ours: keep the current segment and the prepared ones in memory (mlock)"
    )
    data_read_ahead_enable: bool = _setting(
        True, "let the kernel read ahead in the commit log (madvise RANDOM when false)"
    )
    os_page_cache_busy_time_out_mills: int = _setting(
        1000, "when one write to the log takes this long, the waiting sends are refused", "ms"
    )
    enabled_append_prop_crc: bool = _setting(
        False,
        "end the properties of every record with a checksum of the whole record",
        key="enabledAppendPropCRC",
    )
    force_verify_prop_crc: bool = _setting(
        False,
        "recovery requires that checksum in every record, and ignores the body's own",
        key="forceVerifyPropCRC",
    )
    flush_interval_consume_queue: int = _setting(1000, "pause between queue flushes", "ms")
    flush_consume_queue_least_pages: int = _setting(
        2, "a queue flush waits for this many dirty pages of 4 KiB in the queue", "pages"
    )
    flush_consume_queue_thorough_interval: int = _setting(
        60_000, "interval of a flush of all queues and of the checkpoint", "ms"
    )
    flush_consume_queue_thorough_bytes: int = _setting(
        256 << 20,
        "ours: also flush all queues and the checkpoint after this much new log; after a kill the "
        "start reads the log from the checkpoint on",
        "bytes",
    )
    sync_flush_timeout: int = _setting(
        5000,
        "how long a sender in SYNC_FLUSH waits for the flush; then the outcome is unknown",
        "ms",
    )
    sync_flush_gather_max: int = _setting(
        2,
        "ours: with several senders in SYNC_FLUSH, one flush waits up to this long for the "
        "others; 0 flushes at once; a single sender never waits",
        "ms",
    )
    max_message_size: int = _setting(4 << 20, "largest body of one message", "bytes")
    max_filter_message_size: int = _setting(
        16_000, "bytes of queue units that one read examines when it filters by tag", "bytes"
    )
    max_transfer_bytes_on_message_in_memory: int = _setting(
        262_144, "maximum bytes of recent records per read without a limit of its own"
    )
    max_transfer_count_on_message_in_memory: int = _setting(
        32, "maximum number of recent records per read without a limit of its own"
    )
    max_transfer_bytes_on_message_in_disk: int = _setting(
        65_536, "maximum bytes of older records per read without a limit of its own"
    )
    max_transfer_count_on_message_in_disk: int = _setting(
        8, "maximum number of older records per read without a limit of its own"
    )
    access_message_in_memory_max_ratio: int = _setting(
        40, "records this share of the machine's memory behind the log's end count as older", "%"
    )
    check_crc_on_recover: bool = _setting(
        True, "verify the checksum of every body while recovering", key="checkCRCOnRecover"
    )
    commit_log_recover_max_num: int = _setting(
        10,
        "maximum of segments that recovery walks when neither queues nor checkpoint confirm a "
        "newer one; earlier ones are trusted",
    )
    accept_absent: bool = _setting(
        False,
        "ours: start although a part of the store is missing or another store's, and take what is "
        "there for all of it; offsets continue behind what is missing. For one start",
    )
    enable_accelerated_recovery: bool = _setting(
        False,
        "after an unclean stop begin at the last record whose queue unit was flushed, not at the "
        "start of its segment",
    )
    open_queue_files_max: int = _setting(
        512, "ours: descriptors of consume queue files kept open, least recently used first"
    )
    message_index_enable: bool = _setting(
        True, "index UNIQ_KEY, KEYS and TAGS of every message, for queries by key"
    )
    max_hash_slot_num: int = _setting(5_000_000, "hash slots of one index file")
    max_index_num: int = _setting(
        20_000_000, "entries of one index file, a message has one for each of its keys"
    )
    max_msgs_num_batch: int = _setting(64, "messages that one query by key returns at most")
    default_query_max_num: int = _setting(
        32, "messages that a query by unique id examines; it returns the last of them"
    )
    delete_when: str = _setting(
        "04", "hours of the day (local time, separated by ;) in which expired segments are deleted"
    )
    file_reserved_time: int = _setting(
        72, "a commit log segment may be deleted this long after its last write", "hours"
    )
    disk_max_used_space_ratio: int = _setting(
        75, "above this use of the disk expired segments are deleted at any hour; 10 to 95", "%"
    )
    disk_space_clean_forcibly_ratio: int = _setting(
        85, "above this use of the disk segments are deleted regardless of age; 30 to 85", "%"
    )
    disk_space_warning_level_ratio: int = _setting(
        90,
        "above this use of the disk messages are refused, until it is back at "
        "diskSpaceCleanForciblyRatio; 35 to 90",
        "%",
    )
    clean_file_forcibly_enable: bool = _setting(
        True, "delete segments before their time when the disk is too full"
    )
    delete_file_batch_max: int = _setting(10, "segments that one round of retention deletes")
    clean_resource_interval: int = _setting(10_000, "pause between rounds of retention", "ms")
    delete_commit_log_files_interval: int = _setting(
        100, "pause between the deletion of two segments", "ms"
    )
    destroy_maped_file_interval_forcibly: int = _setting(
        120_000,
        "a reader that holds a segment delays its deletion this long; then the file is deleted and "
        "the reader keeps its bytes (they are never unmapped under it)",
        "ms",
    )
    archive_gate: bool = _setting(
        False,
        "ours: keep segments that lie above the archive watermark (Admin.SetArchiveWatermark), "
        "unless the disk is too full",
    )

    timer_wheel_enable: bool = _setting(True, "accept messages with an arbitrary delivery time")
    timer_precision_ms: int = _setting(1000, "width of one slot of the timer wheel", "ms")
    timer_roll_window_slot: int = _setting(
        172_800,
        "a message that is due later waits in a nearer slot first and is enqueued again",
        "slots",
    )
    timer_max_delay_sec: int = _setting(
        259_200, "a delivery time further away than this is refused", "s"
    )
    timer_congest_num_each_slot: int = _setting(
        (1 << 31) - 1, "messages for one slot; above it some are refused, from twice as many on all"
    )
    mapped_file_size_timer_log: int = _setting(104_857_600, "size of one timer log file", "bytes")
    timer_flush_interval_ms: int = _setting(
        1000, "interval of flushes of the timer wheel, log and progress", "ms"
    )
    timer_stop_dequeue: bool = _setting(False, "suspend the delivery of timer messages")
    message_delay_level: str = _setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "delays of the levels 1, 2, 3, ...; units s, m, h and d",
    )
    flush_delay_offset_interval: int = _setting(
        10_000, "interval of writes of delayOffset.json, the progress of the delay levels", "ms"
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
        if self.mapped_file_size_consume_queue < UNIT_BYTES:
            raise ValueError(
                f"mappedFileSizeConsumeQueue is {self.mapped_file_size_consume_queue}: "
                f"a queue file needs room for one unit of {UNIT_BYTES} bytes."
            )
        if not 0 < self.max_message_size <= MESSAGE_BYTES_MAX:
            raise ValueError(
                f"maxMessageSize is {self.max_message_size}: use 1 to {MESSAGE_BYTES_MAX} bytes."
            )
        if self.mapped_file_size_consume_queue_ext < CONSUME_QUEUE_EXT_BYTES_MIN:
            raise ValueError(
                f"mappedFileSizeConsumeQueueExt is {self.mapped_file_size_consume_queue_ext}: "
                f"a file needs room for one unit and its end, {CONSUME_QUEUE_EXT_BYTES_MIN} bytes."
            )
        if not 0 <= self.access_message_in_memory_max_ratio <= 100:
            raise ValueError(
                f"accessMessageInMemoryMaxRatio is {self.access_message_in_memory_max_ratio}: "
                "use 0 to 100 percent."
            )
        for place in ("memory", "disk"):
            self._check_positive(f"max_transfer_bytes_on_message_in_{place}")
            self._check_positive(f"max_transfer_count_on_message_in_{place}")
        self._check_positive("flush_interval_commit_log", "flush_interval_consume_queue")
        self._check_positive("flush_commit_log_thorough_interval")
        self._check_positive("flush_consume_queue_thorough_interval", "sync_flush_timeout")
        self._check_positive("flush_consume_queue_thorough_bytes")
        self._check_positive("open_queue_files_max", "max_filter_message_size")
        self._check_positive("commit_log_recover_max_num")
        self._check_positive("flush_commit_log_least_pages", "flush_consume_queue_least_pages")
        if self.sync_flush_gather_max < 0:
            raise ValueError("syncFlushGatherMax is negative: use 0 or more milliseconds.")
        self._check_mode()
        self._check_memory()
        self._check_retention()
        self._check_index()
        self._check_timers()

    def _check_mode(self) -> None:
        text = self.store_file_mode
        mode = int(text, 8) if re.fullmatch("0?[0-7]{3}", text) else 0
        if mode & 0o600 != 0o600 or mode & 0o113:
            raise ValueError(
                f"storeFileMode is {text!r}: use octal digits with rw for the owner, without x "
                "and without w for others, like 0600 or 0640."
            )

    def _check_memory(self) -> None:
        self._check_positive("transient_store_pool_size", "commit_interval_commit_log")
        self._check_positive("commit_commit_log_least_pages", "os_page_cache_busy_time_out_mills")
        self._check_positive("commit_commit_log_thorough_interval")
        self._check_positive("flush_least_pages_when_warm_maped_file")
        if not set(self.commit_log_directories) - set(self.read_only_directories):
            raise ValueError(
                "readOnlyCommitLogStorePaths names every directory of storePathCommitLog: one of "
                "them must take new segments."
            )

    def _check_index(self) -> None:
        self._check_positive("max_hash_slot_num", "max_msgs_num_batch", "default_query_max_num")
        for name, key in (
            ("max_hash_slot_num", "maxHashSlotNum"),
            ("max_index_num", "maxIndexNum"),
        ):
            if getattr(self, name) >= 1 << 31:
                raise ValueError(f"{key} is {getattr(self, name)}: the files count with 31 bits.")
        if self.max_index_num < 2:
            raise ValueError(
                f"maxIndexNum is {self.max_index_num}: use 2 or more, a file holds one entry less."
            )

    def _check_timers(self) -> None:
        self._check_positive("timer_precision_ms", "timer_roll_window_slot")
        self._check_positive("timer_max_delay_sec", "timer_congest_num_each_slot")
        self._check_positive("timer_flush_interval_ms", "flush_delay_offset_interval")
        parse_levels(self.message_delay_level)
        if self.timer_roll_window_slot >= TIMER_SLOTS // 2:
            raise ValueError(
                f"timerRollWindowSlot is {self.timer_roll_window_slot}: use less than "
                f"{TIMER_SLOTS // 2}, half of the wheel."
            )
        if self.mapped_file_size_timer_log < TIMER_FILE_BYTES_MIN:
            raise ValueError(
                f"mappedFileSizeTimerLog is {self.mapped_file_size_timer_log}: a timer log file "
                f"needs at least {TIMER_FILE_BYTES_MIN} bytes."
            )

    def _check_retention(self) -> None:
        self._check_positive("delete_file_batch_max", "clean_resource_interval")
        self._check_positive("disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio")
        self._check_positive("disk_space_warning_level_ratio")
        for name in (
            "file_reserved_time",
            "delete_commit_log_files_interval",
            "destroy_maped_file_interval_forcibly",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{_key(name)} is {getattr(self, name)}: use 0 or more.")
        try:
            hours = self.delete_hours
        except ValueError:
            hours = frozenset()
        if not hours or not hours <= frozenset(range(24)):
            raise ValueError(
                f"deleteWhen is {self.delete_when!r}: use hours from 00 to 23, separated by ;."
            )

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) <= 0:
                raise ValueError(f"{_key(name)} is {getattr(self, name)}: use a number above 0.")

    @property
    def umask(self) -> int:
        """The umask for `storeFileMode`."""
        mode = int(self.store_file_mode, 8)
        return 0o777 & ~(mode | (mode & 0o444) >> 2)

    @property
    def root(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def commit_log_directory(self) -> Path:
        """The first directory, where there are several."""
        return self.commit_log_directories[0]

    @property
    def commit_log_directories(self) -> tuple[Path, ...]:
        return _paths(self.store_path_commit_log) or (self.root / "commitlog",)

    @property
    def read_only_directories(self) -> tuple[Path, ...]:
        return _paths(self.read_only_commit_log_store_paths)

    @property
    def index_directory(self) -> Path:
        return self.root / "index"

    @property
    def consume_queue_directory(self) -> Path:
        return self.root / "consumequeue"

    @property
    def consume_queue_file_bytes(self) -> int:
        unit = UNIT_BYTES
        return -(-self.mapped_file_size_consume_queue // unit) * unit

    @property
    def lmq_max(self) -> int:
        """Maximum number of light queues (LMQ); 0: none are written."""
        both = self.enable_lmq and self.enable_multi_dispatch
        return self.max_lmq_consume_queue_num if both else 0

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of `deleteWhen`."""
        return frozenset(int(hour) for hour in self.delete_when.split(";") if hour.strip())

    @property
    def waiting_kept_ms(self) -> int:
        """How long the record of a message that waits is kept, then it is written again: an hour
        at least, also with fileReservedTime=0."""
        return max(self.file_reserved_time, 1) * 3_600_000

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"


def _key(name: str) -> str:
    """Return the key of a field in `broker.conf`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
