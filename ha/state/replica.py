"""Durable state of this replica: identity, promise, epochs, positions; shared by both sides.

It owns the files of `<store>/ha/` that a running replica writes: `replica.meta`, `epochs`,
`group.state` and `positions`. Each change is durable on return (positions excepted), because later
steps depend on it: an acknowledgement on the promise (I1), a byte of a new epoch on its entry in
the history (docs/formats/ha.md, section 6.5).
"""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ...nodes.node_links import NodeLinks
from ...store.format.disk import Disk
from ..config import HaConfig
from ..core.epochs import EpochHistory, EpochStart
from ..core.group_state import GroupState, Ref
from ..core.replicated_log import ReplicatedLog
from ..errors import DamagedStateError
from . import epochs_file
from .group_state_file import GroupStateFile
from .host_process import this_process
from .positions import Positions
from .replica_meta import Identity, ReplicaMeta, start_replica

#: The epoch of a log without epochs.
FIRST_EPOCH = 1

logger = logging.getLogger(__name__)


class Replica:
    def __init__(
        self,
        config: HaConfig,
        identity: Identity,
        log: ReplicatedLog,
        steady_ns: Callable[[], int],
        *,
        directory: Path,
        segment_size: int,
        sync_flush: bool,
        links: NodeLinks,
        disk: Disk | None = None,
    ) -> None:
        """Open the files and count a start. Raises WrongReplicaError, DamagedStateError and
        OSError."""
        self.config = config
        self.links = links
        self.identity = identity
        self.log = log
        self.steady_ns = steady_ns
        self.segment_size = segment_size
        self.sync_flush = sync_flush
        self.directory = directory
        #: Event counts by name since the start, for metrics.
        self.counts: Counter[str] = Counter()
        self.meta: ReplicaMeta = start_replica(directory, identity, disk, sync_flush=sync_flush)
        self.ref = Ref(identity.broker_id, self.meta.incarnation)
        self.process = this_process()
        self._disk = disk
        self._state_file = GroupStateFile(directory, disk)
        self.positions = Positions(directory)
        self.history = self._load_history()
        #: Of the leader that this replica is or follows; at least the promised epoch.
        self.epoch = max(FIRST_EPOCH, self.history.last_epoch, self.meta.promised_epoch)
        if self.meta.suspect:
            logger.warning(
                "ha.suspect end=%d: this replica may lack bytes that it acknowledged", log.log_end
            )

    def _load_history(self) -> EpochHistory:
        directory, log = self.directory, self.log
        try:
            history = epochs_file.load(directory)
        except DamagedStateError as error:
            logger.error("ha.epochs.damaged error=%s", error)
            self.counts["epochs_damaged"] += 1
            history = None
            scanned = self._scan()
        else:
            scanned = self._scan() if history is None and log.log_end > log.log_start else None
        if history is None:
            history = scanned or EpochHistory()
            if not history.entries and log.log_end > log.log_start:
                # One leader wrote all of it: there was no other before epochs existed.
                history.assign(FIRST_EPOCH, 0)
            if history.entries:
                epochs_file.save(directory, history, self._disk)
                self.counts["epochs_made"] += 1
                logger.warning("ha.epochs.rebuilt history=%s", history)
        if history.entries and history.entries[-1].start > log.log_end:
            # A power loss removed the first bytes of an epoch whose entry was already on disk.
            history.truncate(log.log_end + 1)
            epochs_file.save(directory, history, self._disk)
        return history

    def _scan(self) -> EpochHistory | None:
        """Return the history from the log's EPOCH_START records."""
        try:
            from .epoch_scan import scan
        except ImportError:
            return None
        return scan(self.log)

    # --- durable state ----------------------------------------------------------------------------

    @property
    def state(self) -> GroupState | None:
        """The newest state of the group known to this replica."""
        return self._state_file.state

    @property
    def promised_epoch(self) -> int:
        return self.meta.promised_epoch

    def promise(self, epoch: int) -> None:
        self.meta.promise(epoch)

    def save_state(self, state: GroupState) -> None:
        self._state_file.save(state)

    def assign_epoch(self, epoch: int, start: int) -> None:
        """Label the bytes from `start` on with `epoch`; durable before any of them is
        acknowledged."""
        changed = EpochHistory(self.history.entries)
        changed.assign(epoch, start)
        changed.collapse(self.log.log_start)
        epochs_file.save(self.directory, changed, self._disk)
        self.history = changed
        logger.info("ha.epoch.assigned epoch=%d start=%d", epoch, start)

    def label_of(self, offset: int) -> EpochStart:
        """Return epoch and epoch start of the byte at `offset`; unlabelled bytes have the first
        epoch."""
        try:
            return self.history.epoch_at(offset)
        except LookupError:
            return EpochStart(FIRST_EPOCH, 0)

    def newest_epoch_with_bytes(self) -> int:
        """Return the epoch of the last byte; 0 for an empty log."""
        return self.history.last_written(self.log.log_end)

    def close_with(self, log: object) -> None:
        """Close the files after the last write.

        The stop counts as clean when the log closes with everything on disk, which a store reports
        through `add_close_listener`.
        """
        self.positions.close()
        self._state_file.close()

        def closed() -> None:
            if self.log.flushed_offset >= self.log.log_end and not self.meta.suspect:
                self.meta.mark_clean()
            self.meta.close()

        add_close_listener = getattr(log, "add_close_listener", None)
        if add_close_listener is None:
            closed()
        else:
            add_close_listener(closed)
