"""The message index: a sequence of index files that are filled one after the other.

Derived data, built from the log behind dispatch, in batches: NumPy pays off from about a thousand
records on, and a batch of BATCH_RECORDS takes the event loop about 1 ms, 2-3 ms without the native
crate. A lost index is rebuilt in the background; until then a query finds only what is indexed.
Keys and files are defined in `format/index_keys.py` and `format/index_file.py`
(docs/formats/store-format.md, section 4).

    offset          records before it are indexed; never beyond what was dispatched
    files           oldest first; only the last one has free entries

* After a clean stop everything is kept. After an unclean stop every file is deleted that is newer
  than the checkpoint or not full (its slots were in memory only). Deleted as well: a file with an
  invalid header, one that points behind the log end, one that is not full before the last. All
  files after a deleted one are deleted. Indexing continues behind the last entry of the rest.
* A killed store can be opened by Apache's broker, which keeps the files whose last time the
  checkpoint covers, and indexes all records from the last file's `end_offset` on. So the header of
  a full file is written just before the checkpoint covers it, one file at a time. The next file
  gets its name only when it holds the rest of the record in which the full one ends, and a header
  that is as old as that record and ends behind it. Entries beyond the count of a header are
  ignored. Killed between header and checkpoint, Apache's broker deletes this file and the next one,
  and indexes the last record of the file before them twice; of further files it may lack entries.
* The digest of a full file comes from memory and is saved before its header is written.
* A full disk suspends indexing (`stall_reason`) until space is free; messages and queues continue.
  Any other failed write is raised: the store becomes read-only.

The event loop's thread calls everything but `flush`, which runs on the flush thread.
"""

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from ..config.store_config import StoreConfig
from ..format.disk import Disk, shortage
from ..format.index_file import (
    UNFINISHED,
    IndexDigest,
    IndexFile,
    IndexHeader,
    IndexLayout,
    file_name,
    index_files,
    read_header,
    unfinished_files,
)
from ..log.commit_log import CommitLog
from .digest import read_digest, read_entries

if TYPE_CHECKING:
    from ..format.index_keys import Entries
    from ..format.index_writer import IndexWriter
    from .native_entries import NativeEntries

logger = logging.getLogger(__name__)
#: Records of one batch: larger ones are not cheaper per record, and the event loop waits for one.
BATCH_RECORDS: Final = 2048

#: Called on the flush thread with path, header and digest of a file that has become full.
OnFull: TypeAlias = Callable[[str, IndexHeader, IndexDigest], None]


class Filling(Struct, frozen=True):
    """The entries of the file that is being filled: those before number `count`."""

    path: str
    layout: IndexLayout
    count: int
    entries_sum: int

    def is_intact(self) -> bool:
        """Return whether the file holds them and has its size. Any thread. Raises OSError."""
        if os.path.getsize(self.path) != self.layout.file_bytes:
            return False
        return read_entries(self.path, self.layout, self.count) == self.entries_sum


class _File:
    """One file; `header` is kept current for the one that is being filled."""

    __slots__ = ("digest", "header", "path", "writer")

    def __init__(self, path: str, header: IndexHeader) -> None:
        self.path = path
        self.header = header
        #: The writer that has filled the file, until `digest` is taken from it.
        self.writer: IndexWriter | None = None
        self.digest: IndexDigest | None = None

    def take_digest(self) -> "IndexDigest | None":
        """Return the digest that is known; None without one."""
        if self.writer is not None:
            self.digest, self.writer = self.writer.digest(), None
        return self.digest


class Index:
    """Call `load` and `recover`, then `advance` and `find`; `finish` and `close` at the end."""

    def __init__(
        self,
        directory: str,
        config: StoreConfig,
        log: CommitLog,
        disk: Disk,
        wall_ms: Callable[[], int],
        *,
        native: "NativeEntries | None" = None,
    ) -> None:
        """`native`: reads the entries of common records."""
        self.offset = 0
        #: Why indexing is suspended (the disk is full), or "".
        self.stall_reason = ""
        self._directory = directory
        self._layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
        self._log = log
        self._disk = disk
        self._wall_ms = wall_ms
        self._native = native
        self._files: list[_File] = []
        self._writer: IndexWriter | None = None
        #: Last record (offset, store time) in files that are durable.
        self.durable = (0, 0)
        self._put = 0  # entries from `offset` on that are in a file before `offset` has moved
        #: Full files with the paths of the next ones: for the flush thread, oldest first.
        self._full: deque[tuple[_File, str]] = deque()

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the files; changes nothing. Raises OSError, or UnsupportedLayoutError for files of
        another size. An empty file is ignored, and all files behind it are distrusted (see
        `recover`): a power loss may take the size of one, or restore one."""
        paths = index_files(self._directory)
        whole = itertools.takewhile(os.path.getsize, paths)
        self._files = [_File(path, read_header(path, self._layout)) for path in whole]

    def recover(self, clean: bool, index_timestamp_ms: int) -> int:
        """Delete untrusted files, once log and checkpoint are known; set `offset`. Returns the
        number of files deleted. Raises OSError."""
        kept = 0
        ends_ms = [file.header.end_timestamp_ms for file in self._files]
        for at, file in enumerate(self._files):
            # The checkpoint has the time of the newest file that was flushed; those before it were
            # flushed too, and end later only where the clock was set back.
            covered = clean or index_timestamp_ms in ends_ms[at:]
            reason = self._doubt(file, clean, covered, index_timestamp_ms)
            if not reason and file is not self._files[-1] and not self._is_full(file):
                reason = "it is not full, and a later file exists."
            if reason:
                logger.info("index.dropped file=%s reason=%s", file.path, reason)
                break
            kept += 1
        del self._files[kept:]
        trusted = {file.path for file in self._files}
        untrusted = [path for path in index_files(self._directory) if path not in trusted]
        for path in (*untrusted, *unfinished_files(self._directory)):
            self._disk.unlink(path)
        if self._files:
            header = self._files[-1].header
            self.durable = header.end_offset, header.end_timestamp_ms
        self._resume()
        return len(untrusted)

    def _is_full(self, file: _File) -> bool:
        return file.header.count >= self._layout.entries

    def _doubt(self, file: _File, clean: bool, covered: bool, index_timestamp_ms: int) -> str:
        header = file.header
        if problem := header.problem(self._layout):
            return problem
        if not header.is_empty and header.end_offset >= self._log.end:
            return f"it points to offset {header.end_offset}, the log ends at {self._log.end}."
        if not covered and header.end_timestamp_ms > index_timestamp_ms:
            return "the store was not stopped, and the checkpoint is older."
        if not clean and not self._is_full(file):
            return "the store was not stopped while this file was being filled."
        return ""

    def _resume(self) -> None:
        """Continue behind the last entry, for a file may have become full in the middle of a
        record."""
        self.offset, self._put = self._log.start, 0
        filled = [file for file in self._files if not file.header.is_empty]
        if not filled or filled[-1].header.end_offset < self.offset:
            return
        self.offset = filled[-1].header.end_offset
        for file in reversed(filled):
            with IndexFile(file.path, self._layout) as opened:
                at_end = opened.entries_at_end(self.offset)
            self._put += at_end
            if at_end < file.header.count - 1:
                break
        entries, end, _ = self._next(self._log.end, 1)
        if entries is not None and len(entries) <= self._put:
            self.offset, self._put = end, 0

    @property
    def paths(self) -> list[str]:
        """Paths of all files, oldest first."""
        return [file.path for file in self._files]

    def header(self, path: str) -> IndexHeader:
        return self._files[self.paths.index(path)].header

    def known_digest(self, path: str) -> tuple[IndexHeader, IndexDigest] | None:
        """Return header and digest of a complete file from memory; None if it was not written
        since the start."""
        file = self._files[self.paths.index(path)]
        digest = file.take_digest()
        if self._writer is not None and file is self._files[-1]:
            digest = self._writer.digest()
        return None if digest is None else (file.header, digest)

    def read_digest(self, path: str) -> IndexDigest:
        """Return the digest of what the file holds. Any thread. Raises OSError."""
        return read_digest(path, self._layout)

    def expect(self, path: str, digest: IndexDigest) -> None:
        """Note the digest of a file that was read, so that its entries are not read again."""
        self._files[self.paths.index(path)].digest = digest

    @property
    def filling(self) -> Filling | None:
        """The entries of the file that is being filled, if there are any."""
        writer = self._writer
        if writer is None or writer.header.is_empty:
            return None
        return Filling(writer.path, self._layout, writer.header.count, writer.entries_sum)

    @property
    def full_paths(self) -> list[str]:
        """Paths of the files that are full and durable, oldest first."""
        waiting = {id(file) for file, _ in self._full}
        return [
            file.path for file in self._files if self._is_full(file) and id(file) not in waiting
        ]

    def drop_from(self, path: str) -> None:
        """Delete this file and all later ones, and continue behind the one before. Not during
        `flush`, which skips files that are missing. Raises OSError."""
        at = self.paths.index(path)
        dropped, self._files = self._files[at:], self._files[:at]
        self.close()
        for file in reversed(dropped):
            self._disk.unlink(file.path)
        last = self._files[-1].header if self._files else IndexHeader()
        self.durable = min(self.durable, (last.end_offset, last.end_timestamp_ms))
        self._resume()

    def warm_up(self) -> None:
        """Read the slots of the last file now, not during the first append; start the next file
        behind a full one. Raises OSError."""
        if not self._files or self._open_writer() is not None:
            return
        try:
            if self._put:
                self._step(self._log.end, 1)
            else:
                self._start_file(None, 0)
        except OSError as error:
            if shortage(error) is None:  # else the first record tries again
                raise

    def flush(self, log_flushed: int, on_full: OnFull) -> bool:
        """On the flush thread: flush the oldest full file if its records are flushed, and advance
        `durable`; return whether the checkpoint should be saved now. Raises OSError, also what
        `on_full` raises."""
        if not self._full or self._full[0][0].header.end_offset >= log_flushed:
            return False
        file, following = self._full[0]
        if self._sync(file.path) and self._sync(following):
            self._disk.sync_directory(self._directory)
            if (digest := file.take_digest()) is not None:
                on_full(file.path, file.header, digest)
            # Last, because the time until the checkpoint is saved counts.
            if self._sync(file.path, file.header.encode()):
                self.durable = file.header.end_offset, file.header.end_timestamp_ms
        self._full.popleft()
        return True

    def _sync(self, path: str, header: bytes = b"") -> bool:
        """Flush a file, after its header was written; return False if the file was deleted."""
        try:
            descriptor = self._disk.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if header:
                self._disk.pwrite(descriptor, header, 0)
            self._disk.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def finish(self, on_full: OnFull) -> None:
        """Write out and flush everything, for a clean stop. Raises OSError.

        On a full disk the unwritten file is deleted; the next start rebuilds it.
        """
        while self.flush(1 << 62, on_full):
            pass
        if not self._files:
            return
        try:
            if self._writer is not None and self._writer.header.is_empty:
                self.close()
                self._disk.unlink(self._files.pop().path)
            elif self._writer is not None:
                self._writer.write_out()
                self._writer.sync()
            elif self._is_full(self._files[-1]):  # the next file could not be created
                self._sync(self._files[-1].path)
                self._sync(self._files[-1].path, self._files[-1].header.encode())
            self._disk.sync_directory(self._directory)
        except OSError as error:
            if shortage(error) is None:
                raise
            logger.warning("index.dropped file=%s reason=%s", self._files[-1].path, error)
            self._disk.unlink(self._files.pop().path)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # -- building -----------------------------------------------------------------------------

    def advance(self, up_to: int, records_max: int = BATCH_RECORDS) -> int:
        """Index records that end at or before `up_to`, at most `records_max`; return how many bytes
        of the log were covered, 0 without work or disk space. Raises OSError."""
        if self.offset < self._log.start:
            self.offset, self._put = self._log.start, 0
        begin = self.offset
        left = records_max
        try:
            while left > 0 and self.offset < up_to:
                before = self.offset
                left -= self._step(up_to, left)
                if self.offset == before:
                    break
        except OSError as error:
            if shortage(error) is None:
                raise
            if not self.stall_reason:
                logger.warning("index.stalled offset=%d reason=%s", self.offset, error)
            self.stall_reason = f"Indexing is suspended at offset {self.offset}: {error}."
            return self.offset - begin
        if self.stall_reason and self.offset > begin:
            logger.info("index.goes_on offset=%d", self.offset)
            self.stall_reason = ""
        return self.offset - begin

    def _step(self, up_to: int, records_max: int) -> int:
        """Index some records of one segment; return how many."""
        entries, end, records = self._next(up_to, records_max)
        if entries is not None:
            self._put_entries(entries)
        elif end > self.offset:
            self._put = 0
        self.offset = end
        return records

    def _next(self, up_to: int, records_max: int) -> tuple["Entries | None", int, int]:
        """Return the entries of the records at `offset`, the offset behind them, and how many
        records."""
        from ..format.index_keys import entries_of
        from .columns import next_columns
        from .native_entries import next_entries

        segment = self._log.segment_at(self.offset)
        position = self.offset - segment.start
        limit = min(up_to - segment.start, segment.size)
        with segment.hold() as data:
            if self._native is not None:
                found = next_entries(
                    self._native, data, segment.start, (position, limit), records_max
                )
                if found is not None:
                    entries, end, records = found
                    return entries, segment.start + end, records
            columns, end = next_columns(data, segment.start, position, limit, records_max)
            if columns is None:
                return None, segment.start + end, 0
            return entries_of(data, columns), segment.start + end, len(columns)

    def _put_entries(self, entries: "Entries") -> None:
        """Put all entries, the rest of what does not fit into the next file; entries that were put
        before a failed write are not put again."""
        at = min(self._put, len(entries))
        while at < len(entries):
            writer = self._open_writer()
            if writer is None:
                at = self._put = self._start_file(entries, at)
                continue
            end = min(at + writer.room, len(entries))
            writer.put(entries, at, end)
            at = self._put = end
        self._put -= at

    def _open_writer(self) -> "IndexWriter | None":
        """Return the writer of the last file; None if there is no file or the last one is full."""
        from ..format.index_writer import IndexWriter

        writer = self._writer
        if writer is not None:
            return writer if writer.room else None
        if not self._files or self._is_full(self._files[-1]):
            return None
        last = self._files[-1]
        path, header = last.path, last.header
        entries = (
            read_entries(path, self._layout, header.count)
            if last.digest is None
            else last.digest.entries
        )
        writer = IndexWriter(
            path, self._layout, header, self._disk, create=False, entries_sum=entries
        )
        last.digest = None
        self._writer = writer
        if header.end_timestamp_ms and not self._put:
            writer.write_header_behind()
            writer.sync()
        return writer

    def _start_file(self, entries: "Entries | None", at: int) -> int:
        """Start a file with the rest of the record in which the full one ends; return the number
        of the next entry to put. Raises OSError; call it again then."""
        from ..format.index_writer import IndexWriter

        os.makedirs(self._directory, exist_ok=True)
        last = self._files[-1] if self._files else None
        if self._writer is not None and last is not None:
            self._writer.write_slots()
            self._writer.close()
            self._writer, last.writer = None, self._writer
        header = last.header.follower() if last else IndexHeader()
        name = file_name(self._wall_ms(), os.path.basename(last.path) if last else "")
        path = os.path.join(self._directory, name)
        writer = IndexWriter(path + UNFINISHED, self._layout, header, self._disk, create=True)
        try:
            while (
                last is not None
                and entries is not None
                and at < len(entries)
                and writer.room
                and entries.offsets[at] == last.header.end_offset
            ):
                writer.put(entries, at, at + 1)
                at += 1
            writer.write_slots()
            if last is not None:
                writer.write_header_behind()
            self._disk.replace(writer.path, path)
        except OSError:
            writer.close()
            os.unlink(writer.path)
            raise
        writer.path = path
        self._writer = writer
        self._files.append(_File(path, header))
        if last is not None:
            self._full.append((last, path))
        return at

    # -- asking -------------------------------------------------------------------------------

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return the log offsets of entries with this hash, newest first; see `IndexFile.find`.

        A file counts for the times of its first and last entry, which may leave out some where the
        clock was set within it; the newest one always counts.
        """
        writer = self._writer
        for number, file in enumerate(reversed(self._files[:])):
            header = file.header
            if header.is_empty:
                continue
            times = header.begin_timestamp_ms, header.end_timestamp_ms
            if number and (min(times) > end_ms or max(times) < begin_ms):
                continue
            with IndexFile(file.path, self._layout) as opened:
                if writer is not None and header is writer.header:
                    first = writer.slot(hash_)
                    yield from opened.find(hash_, begin_ms, end_ms, header=header, first=first)
                else:
                    yield from opened.find(hash_, begin_ms, end_ms, header=header)

    # -- retention ----------------------------------------------------------------------------

    def trim(self, log_start: int) -> int:
        """Delete the oldest file if all its records are deleted; never the last file, and one
        per call, because a file of 420 MB takes a while. Returns the number of files deleted (0
        or 1)."""
        if len(self._files) < 2 or self._files[0].header.end_offset >= log_start:
            return 0
        file = self._files.pop(0)
        logger.info("index.expired file=%s", file.path)
        self._disk.unlink(file.path)
        return 1
