"""Flush threads: make the log, the queues and the checkpoint durable.

SYNC_FLUSH is group commit: one fdatasync serves every append before it. During the fdatasync the
next group collects (`group_commit.py`). With several senders a flush also waits briefly
(`syncFlushGatherMax`) for as many records as the last groups had: senders that are released
together send again together, and one flush then serves all of them. A single sender never waits.

ASYNC_FLUSH wakes every 500 ms, flushes when 4 pages are dirty, and every 10 s unconditionally
(docs/formats/store-format.md, section 7.2); `hasten` triggers a flush at once.

With the transient pool only committed bytes can be flushed: SYNC_FLUSH commits first, ASYNC_FLUSH
follows the commit thread (log/transient_pool.py).

A failed fdatasync is never repeated: the kernel may have dropped the pages and would report success
the next time. The thread reports the failure and ends; the store becomes read-only.

No clock is read here: threads wait with timeouts and count their rounds.
"""

import threading
from collections.abc import Callable
from typing import Final

from .config.store_config import StoreConfig
from .digests import StoreDigests
from .dispatch import Dispatcher
from .format.checkpoint import Checkpoint, CheckpointFile
from .format.disk import NO_DESCRIPTORS, shortage
from .group_commit import FlushRequest, GroupCommit
from .index.service import IndexService
from .log.commit_log import CommitLog
from .log.write_gate import WriteGate, suppress_no_space
from .queue.table import QueueTable

_PAGE_BYTES: Final = 4096
#: Pause cause: no disk space for queue files or the checkpoint.
_FILES: Final = "queue files"
_NEVER: Final = 1 << 62
#: A flush can only follow what the transient pool has committed, which nothing announces.
_COMMIT_WAIT_S: Final = 0.1


class LogFlusher:
    """Moves `flushed` towards the log end. `wake` and `stop` are called by the event loop."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        checkpoint: Checkpoint,
        gate: WriteGate,
        on_flushed: Callable[[int], None],
    ) -> None:
        self.flushed = log.end
        self.rounds = 0  #: flushes that wrote something; each is one fdatasync, two at a roll
        self._log = log
        self._config = config
        self._checkpoint = checkpoint
        self._on_flushed = on_flushed
        self._gate = gate
        self._sync = config.sync_flush
        self._condition = threading.Condition()
        self._moved = (
            threading.Condition()
        )  # notified when `flushed` moves and when the thread ends
        self._stopping = False
        self._ended = False
        self._hurry = False
        self._group = GroupCommit()
        self._needed = _NEVER  # wake the thread at this many records
        self._expected = 1  # records of the last groups, decaying
        self._thread = threading.Thread(target=self._run, name="store-flush-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request(self, request: FlushRequest) -> None:
        """Register an append; only in SYNC_FLUSH."""
        with self._condition:
            self._group.add(request)
            if self._group.pending >= self._needed or request.settled is not None:
                self._condition.notify()
            if self._ended:
                self._group.give_up()

    def hasten(self) -> None:
        """In ASYNC_FLUSH: flush soon, however little is dirty. In SYNC_FLUSH the thread flushes
        anyway."""
        with self._condition:
            self._hurry = True
            self._condition.notify()

    def wait(self, end: int) -> bool:
        """Flush up to `end` and return True; False if the thread ends before. Never called by the
        event loop."""
        with self._moved:
            while self.flushed < end and not self._ended:
                self.hasten()
                self._moved.wait(_COMMIT_WAIT_S)
        return self.flushed >= end

    def stop(self) -> None:
        """Flush the rest, unless a flush failed, and end the thread."""
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
            self._commit_and_flush()
        except OSError as error:
            self._gate.refuse(f"fdatasync of the commit log failed: {error}.")
        except BaseException as error:
            self._gate.refuse(f"The flush thread of the commit log ended: {error!r}.")
            raise
        finally:
            with self._condition:
                self._ended = True
                self._group.give_up()
            with self._moved:
                self._moved.notify_all()

    def _run_sync(self) -> None:
        gather_seconds = self._config.sync_flush_gather_max / 1000
        while True:
            with self._condition:
                while not self._stopping and self._log.end <= self.flushed:
                    self._group.swap()  # requests whose bytes were flushed already
                    self._group.settle()
                    self._needed = 1
                    self._condition.wait()
                if not self._stopping and self._group.pending < self._expected and gather_seconds:
                    self._needed = self._expected
                    self._condition.wait(gather_seconds)
                if self._stopping:
                    return
                group = self._group.swap()
                self._needed = _NEVER
            self._expected = max(group, self._expected * 3 // 4, 1)
            self._commit_and_flush()
            with self._condition:
                self._group.settle()

    def _run_async(self) -> None:
        config = self._config
        interval = config.flush_interval_commit_log
        thorough_every = max(config.flush_commit_log_thorough_interval // interval, 1)
        tick = 0
        while True:
            with self._condition:
                if not self._stopping and not self._hurry:
                    self._condition.wait(interval / 1000)
                if self._stopping:
                    return
                hurry, self._hurry = self._hurry, False
            tick += 1
            pages = self._log.readable_end // _PAGE_BYTES - self.flushed // _PAGE_BYTES
            enough = pages >= config.flush_commit_log_least_pages
            if enough or hurry or tick % thorough_every == 0:
                self._flush()

    def _commit_and_flush(self) -> None:
        self._log.commit()
        self._flush()

    def _flush(self) -> None:
        # The time is read first: in the other order it could belong to a record behind `end`.
        store_timestamp_ms = self._log.readable_store_timestamp_ms
        end = self._log.readable_end
        if end <= self.flushed:
            return
        for segment in self._log.segments_between(self.flushed, end):
            segment.flush(min(end - segment.start, segment.size))
        self.rounds += 1
        self.flushed = end
        self._checkpoint.note_flushed(end, store_timestamp_ms)
        with self._moved:
            self._moved.notify_all()
        self._on_flushed(end)


class QueueFlusher:
    """Flushes queue files, full index files and then the checkpoint."""

    def __init__(
        self,
        *,
        queues: QueueTable,
        dispatcher: Dispatcher,
        log_flusher: LogFlusher,
        checkpoint: Checkpoint,
        file: CheckpointFile,
        config: StoreConfig,
        gate: WriteGate,
        index: IndexService,
        digests: StoreDigests,
        note_holdings: Callable[[int], None],
    ) -> None:
        self._queues = queues
        self._dispatcher = dispatcher
        self._log_flusher = log_flusher
        self._checkpoint = checkpoint
        self._file = file
        self._config = config
        self._gate = gate
        self._index = index
        self._digests = digests
        self._note_holdings = note_holdings
        self._noted_changes = -1
        self._flushed = (0, 0)  # last record whose unit is durable: start, store time
        self._settled = 0  # units of records before it are durable
        self._flushing = threading.Lock()  # one thread at a time flushes the queues
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-flush-queues", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; `finish` flushes the rest."""
        self._stop.set()
        self._thread.join()

    def finish(self) -> None:
        """Flush all queues and the checkpoint on the caller's thread. Raises OSError."""
        last = self._dispatcher.last
        self._queues.flush(0)
        self._flushed = last
        self._note_names()
        self._save()

    def settle(self, end: int) -> None:
        """Make the units of all records before `end` durable, which must be dispatched and flushed.
        Any thread but the event loop. Raises OSError."""
        with self._flushing:
            if self._settled >= end:
                return
            dispatched = self._dispatcher.offset
            ends = list(self._queues.ends())
            self._queues.flush(0)
            self._settled = dispatched
        if self._log_flusher.wait(dispatched):
            self._digests.note_ends(ends)
            with suppress_no_space():  # second to the queues' own files
                self._digests.save()

    def _run(self) -> None:
        config = self._config
        interval = config.flush_interval_consume_queue
        thorough_every = max(config.flush_consume_queue_thorough_interval // interval, 1)
        thorough_bytes = config.flush_consume_queue_thorough_bytes
        tick = 0
        try:
            while not self._stop.wait(interval / 1000):
                tick += 1
                last, dispatched = self._dispatcher.last, self._dispatcher.offset
                if not self._write_out():
                    continue
                try:
                    with self._flushing:
                        behind = last[0] - self._flushed[0]
                        if tick % thorough_every == 0 or behind >= thorough_bytes:
                            self._queues.files.flush_written(0)
                            self._flushed, self._settled = last, dispatched
                        else:
                            self._queues.files.flush_written(config.flush_consume_queue_least_pages)
                    while self._index.flush(self._log_flusher.flushed, self._checkpoint):
                        self._save()
                    self._save()
                    with suppress_no_space():  # the next round tries again
                        self._note_holdings(self._log_flusher.flushed)
                except OSError as error:
                    if error.errno not in NO_DESCRIPTORS:
                        raise
                    self._lacking(error)  # the next round flushes what is left
        except OSError as error:
            self._gate.refuse(f"Flushing the queues, the index or the checkpoint failed: {error}.")
        except BaseException as error:
            self._gate.refuse(f"The flush thread of the queues ended: {error!r}.")
            raise

    def _write_out(self) -> bool:
        """Write waiting units into the files; return False without disk space or descriptors: the
        units stay in memory (the log has all of them), and the store pauses."""
        try:
            self._file.allocate()
            self._queues.write_out()
            self._note_names()
        except OSError as error:
            if not self._lacking(error):
                raise
            return False
        self._gate.resume(_FILES)
        return True

    def _lacking(self, error: OSError) -> bool:
        """Pause the store for a lack of disk space or descriptors; return False for a fault."""
        lack = shortage(error)
        if lack is not None:
            reason = f"{lack.what}: the queues cannot be written ({error})."
            self._gate.pause(_FILES, reason, lack.ends_when)
        return lack is not None

    def _save(self) -> None:
        offset, store_timestamp_ms = self._flushed
        if store_timestamp_ms and self._log_flusher.flushed > offset:
            checkpoint = self._checkpoint
            checkpoint.queued_offset = offset
            both = min((offset, store_timestamp_ms), self._index.durable)
            checkpoint.logics_physical_offset, checkpoint.logics_msg_timestamp_ms = both
        written = False
        with suppress_no_space():  # the next round tries again
            written = self._file.write(self._checkpoint)
        if written:
            self._file.flush()

    def _note_names(self) -> None:
        """Save the names of the queues: recovery does not read the log before the checkpoint."""
        changes = self._queues.changes
        if changes != self._noted_changes:
            self._digests.note_names(list(self._queues.queues))
            self._digests.save()
            self._noted_changes = changes
