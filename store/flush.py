"""The flush threads: when the log, the queues and the checkpoint reach the disk.

SYNC_FLUSH is group commit: one fdatasync serves every append that came before it began. While it
runs, the next group gathers. With several senders at work a flush also waits a moment
(`syncFlushGatherMax`) for as many records as the last groups had: senders that were released
together send again together, and one flush then serves them all. A single sender never waits.

ASYNC_FLUSH wakes every 500 ms, flushes when 4 pages are dirty, and every 10 s whatever there is
(store format, section 7.2).

A failed fdatasync is never tried again: the kernel may have dropped the pages and would report
success the next time. The thread reports the failure and ends; the store becomes read-only.

No clock is read here: threads wait with timeouts and count their rounds.
"""

import os
import threading
from collections.abc import Callable
from typing import Final

from .checkpoint import Checkpoint, CheckpointFile
from .commit_log import CommitLog
from .config import StoreConfig
from .disk import Disk
from .dispatch import Dispatcher
from .queue_table import QueueTable

_PAGE_BYTES: Final = 4096
_NEVER: Final = 1 << 62


class LogFlusher:
    """Moves `flushed` behind the end of the log. `wake` and `stop` are the loop's."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        checkpoint: Checkpoint,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self.flushed = log.end
        self.rounds = 0  #: flushes that found something; each is one fdatasync, two at a roll-over
        self._log = log
        self._config = config
        self._checkpoint = checkpoint
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._sync = config.sync_flush
        self._condition = threading.Condition()
        self._stopping = False
        self._pending = 0  # records since the last flush began
        self._needed = _NEVER  # wake the thread at so many
        self._expected = 1  # records that the last groups had, decaying
        self._thread = threading.Thread(target=self._run, name="store-flush-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self, records: int) -> None:
        """So many records were appended. Costs nothing in ASYNC_FLUSH."""
        if self._sync:
            with self._condition:
                self._pending += records
                if self._pending >= self._needed:
                    self._condition.notify()

    def stop(self) -> None:
        """Flush what is left, unless a flush failed, and end the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._sync:
                self._run_sync()
            else:
                self._run_async()
            self._flush()
        except OSError as error:
            self._on_failed(f"fdatasync of the commit log failed: {error}.")

    def _run_sync(self) -> None:
        gather_seconds = self._config.sync_flush_gather_max / 1000
        while True:
            with self._condition:
                while not self._stopping and self._log.end <= self.flushed:
                    self._pending = 0
                    self._needed = 1
                    self._condition.wait()
                if not self._stopping and self._pending < self._expected and gather_seconds:
                    self._needed = self._expected
                    self._condition.wait(gather_seconds)
                if self._stopping:
                    return
                group, self._pending = self._pending, 0
                self._needed = _NEVER
            self._expected = max(group, self._expected * 3 // 4, 1)
            self._flush()

    def _run_async(self) -> None:
        config = self._config
        interval = config.flush_interval_commit_log
        thorough_every = max(config.flush_commit_log_thorough_interval // interval, 1)
        tick = 0
        while True:
            with self._condition:
                if not self._stopping:
                    self._condition.wait(interval / 1000)
                if self._stopping:
                    return
            tick += 1
            pages = self._log.end // _PAGE_BYTES - self.flushed // _PAGE_BYTES
            if pages >= config.flush_commit_log_least_pages or tick % thorough_every == 0:
                self._flush()

    def _flush(self) -> None:
        # The time first: read the other way round it could belong to a record behind `end`.
        store_timestamp_ms = self._log.last_store_timestamp_ms
        end = self._log.end
        if end <= self.flushed:
            return
        for segment in self._log.segments_between(self.flushed, end):
            segment.flush(min(end - segment.start, segment.size))
        self.rounds += 1
        self.flushed = end
        self._checkpoint.physic_msg_timestamp_ms = store_timestamp_ms
        self._on_flushed(end)


class QueueFlusher:
    """Flushes queue files, and the checkpoint behind them."""

    def __init__(
        self,
        *,
        queues: QueueTable,
        dispatcher: Dispatcher,
        log_flusher: LogFlusher,
        checkpoint: Checkpoint,
        file: CheckpointFile,
        config: StoreConfig,
        disk: Disk,
        on_failed: Callable[[str], None],
    ) -> None:
        self._queues = queues
        self._dispatcher = dispatcher
        self._log_flusher = log_flusher
        self._checkpoint = checkpoint
        self._file = file
        self._config = config
        self._disk = disk
        self._on_failed = on_failed
        self._flushed = (0, 0)  # last record whose unit is on the disk: start, store time
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-flush-queues", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; `finish` flushes the rest."""
        self._stop.set()
        self._thread.join()

    def finish(self) -> None:
        """Flush all queues and the checkpoint, on the caller's thread. Raises OSError."""
        self._flush_thorough()
        self._save()

    def _run(self) -> None:
        interval = self._config.flush_interval_consume_queue
        thorough_every = max(self._config.flush_consume_queue_thorough_interval // interval, 1)
        tick = 0
        try:
            while not self._stop.wait(interval / 1000):
                tick += 1
                if tick % thorough_every == 0:
                    self._flush_thorough()
                else:
                    self._flush_files(self._config.flush_consume_queue_least_pages)
                self._save()
        except OSError as error:
            self._on_failed(f"Flushing the consume queues or the checkpoint failed: {error}.")

    def _flush_thorough(self) -> None:
        last = self._dispatcher.last
        self._flush_files(0)
        self._flushed = last

    def _flush_files(self, pages_min: int) -> None:
        self._queues.write_out()
        for path in self._queues.take_dirty(pages_min):
            descriptor = self._disk.open(path, os.O_RDWR)
            try:
                self._disk.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def _save(self) -> None:
        offset, store_timestamp_ms = self._flushed
        if store_timestamp_ms and self._log_flusher.flushed > offset:
            self._checkpoint.logics_physical_offset = offset
            self._checkpoint.logics_msg_timestamp_ms = store_timestamp_ms
        self._file.save(self._checkpoint)
