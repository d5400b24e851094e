"""The threads that make a store durable: log flush, queue flush, and commit of the transient pool.

They save the checkpoint, the record of what the store holds (`holdings.py`) and the digests. Before
`start` the whole readable log counts as flushed: recovery has flushed it.
"""

from typing import TYPE_CHECKING

from .config.store_config import StoreConfig
from .digests import StoreDigests, sum_of_ends
from .dispatch import Dispatcher
from .events import StoreEvents
from .flush import LogFlusher, QueueFlusher
from .format.checkpoint import Checkpoint, CheckpointFile
from .format.disk import Disk, shortage
from .group_commit import FlushRequest
from .holdings import HoldingsFile
from .log.commit_log import CommitLog
from .log.transient_pool import LogCommitter
from .log.write_gate import WriteGate, suppress_no_space
from .queue.table import QueueTable

if TYPE_CHECKING:
    from .index.service import IndexService


class FlushThreads:
    """Started and stopped once, on the store's thread."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: Dispatcher,
        *,
        gate: WriteGate,
        digests: StoreDigests,
        holdings: HoldingsFile,
        disk: Disk,
        events: StoreEvents,
    ) -> None:
        self.checkpoint = Checkpoint()
        self._config = config
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._gate = gate
        self._digests = digests
        self._holdings = holdings
        self._events = events
        self._file = CheckpointFile(str(config.root / "checkpoint"), disk)
        self._committer: LogCommitter | None = None
        self._log_flusher: LogFlusher | None = None
        self._queue_flusher: QueueFlusher | None = None

    def load(self) -> None:
        """Load checkpoint and holdings. Raises OSError, AbsentPartError."""
        self.checkpoint = self._file.load()
        self._holdings.load()

    @property
    def started(self) -> bool:
        return self._log_flusher is not None

    @property
    def flushed(self) -> int:
        """Everything before it survives power loss."""
        return self._log.readable_end if self._log_flusher is None else self._log_flusher.flushed

    @property
    def rounds(self) -> int:
        """Number of log flushes that wrote something."""
        return 0 if self._log_flusher is None else self._log_flusher.rounds

    # -- start and stop -----------------------------------------------------------------------

    def prepare(self) -> None:
        """Save that the whole log is flushed; only what is appended later can be lost in a power
        loss. A full disk skips this; the next start then refuses to cut the log. Raises OSError."""
        self.checkpoint.flushed_end = self._log.end
        try:
            self._file.save(self.checkpoint)
        except OSError as error:
            if shortage(error) is None:
                raise
        with suppress_no_space():
            self._holdings.save(self._log, self._log.end)

    def create(self, index: "IndexService") -> None:
        """Create the threads, and start the one that commits."""
        log, config, gate = self._log, self._config, self._gate
        if log.pool is not None:
            self._committer = LogCommitter.of(log, config, gate)
            self._committer.start()
        self._log_flusher = LogFlusher(log, config, self.checkpoint, gate, self._flushed)
        self._queue_flusher = QueueFlusher(
            queues=self._queues,
            dispatcher=self._dispatcher,
            log_flusher=self._log_flusher,
            checkpoint=self.checkpoint,
            file=self._file,
            config=config,
            gate=gate,
            index=index,
            digests=self._digests,
            note_holdings=lambda flushed: self._holdings.save(log, flushed),
        )

    def start(self) -> None:
        """Start the threads that flush."""
        assert self._log_flusher is not None and self._queue_flusher is not None
        self._log_flusher.start()
        self._queue_flusher.start()

    def stop(self) -> None:
        """Flush everything and end the threads."""
        if self._committer is not None:
            self._committer.stop()
        if self._log_flusher is not None and self._queue_flusher is not None:
            self._queue_flusher.stop()
            self._log_flusher.stop()

    def finish(self) -> None:
        """Save what a start after a clean stop relies on. Raises OSError."""
        assert self._queue_flusher is not None
        self._queue_flusher.finish()
        self._log.discard_prepared()
        ends = list(self._queues.ends())
        self._digests.note_queues(self._log.end, sum_of_ends(ends))
        self._digests.note_ends(ends)
        with suppress_no_space():
            self._digests.save()
            self._holdings.finish(self._log, self.flushed)

    def close(self) -> None:
        """Close the checkpoint."""
        self._file.close()

    # -- flushing -----------------------------------------------------------------------------

    def request(self, request: FlushRequest) -> None:
        """Flush up to an offset before a sender's answer."""
        if self._log_flusher is not None:
            self._log_flusher.request(request)

    def hasten(self) -> None:
        """Start a flush of everything up to the log's end, without the usual pause."""
        if self._log_flusher is not None:
            self._log_flusher.hasten()

    def safe_end(self) -> int:
        """Return the offset before which retention may delete: flushed and dispatched. (The index
        may lag behind: it is not queried for deleted records.)"""
        return min(self.flushed, self._dispatcher.offset)

    def settle(self, end: int) -> str:
        """Make durable what else exists of the records before `end`, for their deletion; return why
        that is not possible, or "".

        That is the units in their queues, and the log as it is now: records that were made from
        them, such as a delivered timer or the metadata's snapshot. Called by retention's thread.
        """
        log, queues = self._log_flusher, self._queue_flusher
        if log is None or queues is None:
            return "the store is not started"
        if not log.wait(self._log.end):
            return self._gate.refusal or "the log cannot be flushed"
        try:
            queues.settle(end)
            self._holdings.raise_start(self._log, end)
        except OSError as error:
            if shortage(error) is None:
                self._gate.refuse(f"Flushing the queues failed: {error}.")
            return str(error)
        return ""

    def _flushed(self, offset: int) -> None:
        if self._holdings.needs(self._log, offset):  # before an answer relies on the segment
            try:
                self._holdings.save(self._log, offset)
            except OSError as error:
                if shortage(error) is None:
                    self._gate.refuse(f"The record of what the store has failed: {error}.")
                # Otherwise the next flush tries again.
        self._events.flushed(offset)
