"""Cut of a diverged tail: archived first, then zeroed, so that it never comes back.

Steps on the closed directory (docs/formats/ha.md, R6; each can be repeated):

1. Copy [to, end) to `diverged/` with a description, durably (`archive.py`; invariant I8).
2. Lower the checkpoint below the cut and create `abort`: recovery then rebuilds every derived file
   behind the cut and accepts the log's new end.
3. Move aside or lower progress that depends on the tail: consumer offsets, timers (`progress.py`),
   digests.
4. Delete later segments, the last one first; zero and flush the rest of the cut's own segment
   (I14). Bytes that merely lay beyond a lowered end would pass their checksums after a crash and
   return.
5. Truncate the epoch history durably, and lower positions to the cut.

The store's own recovery cuts queues, index and timer log when it opens.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...store import holdings
from ...store.config.store_config import StoreConfig
from ...store.digests import DIGESTS_FILE
from ...store.format.checkpoint import CheckpointFile
from ...store.format.disk import Disk
from ...store.format.json_file import backup_of
from ...store.log.commit_log import CommitLog
from ...store.scan.walk import walk
from ...store.store_lock import StoreLock
from ...store.timer.checkpoint import TimerCheckpointFile
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ..core.epochs import EpochHistory, EpochStart
from ..errors import CutRefusedError, DamagedStateError
from ..state import (
    digests,
    epochs_file,
)
from ..state.positions import POSITIONS_NAME
from ..state.slots import SlotFile
from . import (
    archive,
)
from .archive import DivergedTail
from .diverged_survey import TailSurvey, survey_tail
from .plan import PENDING_NAME, Plan
from .progress import lower_offsets, move_progress_aside

__all__ = ["cut"]

logger = logging.getLogger(__name__)

#: Margin before the first timer that the tail delivered: slots are one second wide and read after
#: it.
_TIMER_MARGIN_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _CutPoint:
    """The last whole record that stays."""

    at: int  #: its end: where the log is cut
    last_start: int  #: -1: none in the cut's own segment
    last_stored_ms: int


def cut(directory: Path, config: StoreConfig, plan: Plan, disk: Disk) -> list[str]:
    """Carry out a CUT plan; `directory` is `<store>/ha`. Returns the steps as sentences.

    A plan that must not be carried out leaves the log unchanged, and a step states the reason.
    Raises OSError.
    """
    log = _open_log(config, disk)
    try:
        return _Cut(directory, config, plan, log, disk).run()
    except CutRefusedError as error:
        logger.error("ha.cut.refused to=%d reason=%s", plan.to, error)
        return [f"refused: {error} Nothing was changed."]
    finally:
        log.close()


def _open_log(config: StoreConfig, disk: Disk) -> CommitLog:
    log = CommitLog(
        [str(path) for path in config.commit_log_directories],
        config.mapped_file_size_commit_log,
        disk,
        read_only=[str(path) for path in config.read_only_directories],
    )
    log.load()
    return log


class _Cut:
    """One run of a plan over a log that is loaded and not recovered."""

    def __init__(
        self, directory: Path, config: StoreConfig, plan: Plan, log: CommitLog, disk: Disk
    ) -> None:
        self._directory = directory
        self._config = config
        self._plan = plan
        self._log = log
        self._disk = disk
        self._positions = self._load_positions()

    def run(self) -> list[str]:
        plan, log = self._plan, self._log
        self._check()
        if plan.to >= log.end:
            self._cut_epochs(plan.to)
            return [f"the log already ends at or before {plan.to}"]
        cut_point = self._cut_point()
        survey = survey_tail(log, cut_point.at, self._positions.get("local_ok", 0))
        tail = self._archive(cut_point, survey)
        steps = [_summary(tail)] if tail is not None else ["nothing to archive"]
        self._prepare_recovery(cut_point)
        if tail is not None:
            # While the tail is still in the log: a second run finds less of it.
            steps += self._lower_progress(survey, tail)
        digests.forget(self._directory, cut_point.at, self._disk)
        self._forget_ends()
        removed = log.cut(cut_point.at)
        steps.append(f"cut the log at {cut_point.at}, {removed} segments removed, the rest zeroed")
        self._cut_epochs(cut_point.at)
        self._lower_positions(cut_point.at)
        logger.warning(
            "ha.cut.done to=%d end=%d messages=%d answered_ok=%d archive=%s reason=%s",
            cut_point.at,
            tail.end if tail is not None else cut_point.at,
            tail.messages if tail is not None else 0,
            tail.answered_ok if tail is not None else 0,
            tail.file_id if tail is not None else "-",
            plan.reason,
        )
        return steps

    # --- checks -----------------------------------------------------------------------------------

    def _load_positions(self) -> dict[str, Any]:
        slots = SlotFile(self._directory / POSITIONS_NAME, durable=True, disk=self._disk)
        try:
            return slots.load() or {}
        except DamagedStateError:
            return {}
        finally:
            slots.close()

    def _check(self) -> None:
        plan, log = self._plan, self._log
        confirm = min(self._positions.get("confirm", 0), log.end)
        if plan.to < log.start:
            raise CutRefusedError(
                f"The log begins at {log.start}, so it cannot be cut to {plan.to}: this "
                "replica has to reseed (cometmq ha reseed)."
            )
        if plan.to < confirm and not plan.accept_loss:
            raise CutRefusedError(
                f"Everything below {confirm} is confirmed, and a cut to {plan.to} would "
                "remove confirmed bytes. Only a forced election with accepted loss permits "
                "that."
            )

    def _cut_point(self) -> _CutPoint:
        """Return the record end at or before `to`; `to` itself if damage precedes it (left to the
        scrub)."""
        log, to = self._log, self._plan.to
        segment = log.segment_at(to)
        start, stored_ms, end, lost = -1, 0, segment.start, False
        with segment.hold() as data:
            records = walk(data, segment.start, 0, to - segment.start, "skip")
            for columns in records:
                ends = columns.physical_offset + columns.size
                whole = int((ends <= to).sum())
                if whole:
                    start = int(columns.physical_offset[whole - 1])
                    stored_ms = int(columns.store_timestamp[whole - 1])
                    end = int(ends[whole - 1])
            lost = bool(records.lost)
        return _CutPoint(to if lost else end, start, stored_ms)

    # --- steps ------------------------------------------------------------------------------------

    def _archive(self, cut_point: _CutPoint, survey: TailSurvey) -> DivergedTail | None:
        """Step 1. An interrupted run may have zeroed a part already: then its archive counts."""
        plan = self._plan
        existing = archive.load_tails(self._directory)
        for tail in existing:
            if tail.plan_id == plan.plan_id:
                return tail
        if survey.used_end <= cut_point.at:
            return None
        epoch = self._epoch_of(survey.end)
        file_id = f"{epoch}-{cut_point.at}-{survey.end}"
        taken = {tail.file_id for tail in existing}
        number = 2
        while file_id in taken:  # the same bytes of another history
            file_id = f"{epoch}-{cut_point.at}-{survey.end}.{number}"
            number += 1
        size, crc = archive.copy_tail(
            self._directory, file_id, self._log, (cut_point.at, survey.used_end), self._disk
        )
        confirm = self._positions.get("confirm", 0)
        tail = DivergedTail(
            file_id=file_id,
            epoch=epoch,
            start=cut_point.at,
            end=survey.end,
            size=size,
            crc32=crc,
            messages=survey.messages,
            records=survey.records,
            answered_ok=survey.answered_ok,
            sample_ids=tuple(survey.sample_ids),
            local_ok=self._positions.get("local_ok", 0),
            confirm=confirm,
            below_confirm=cut_point.at < confirm,
            first_stored_ms=survey.first_stored_ms,
            last_stored_ms=survey.last_stored_ms,
            decided_epoch=plan.epoch,
            leader=plan.leader,
            reason=plan.reason,
            cut_at_ms=plan.at_ms or _written_ms(self._directory / PENDING_NAME),
            plan_id=plan.plan_id,
        )
        archive.save(self._directory, tail, self._disk)
        return tail

    def _forget_ends(self) -> None:
        """Remove what the store has noted of its log and of the ends of its queues."""
        holdings.forget(self._config.root, self._disk)
        noted = self._config.root / "config" / DIGESTS_FILE
        for path in (noted, backup_of(noted)):
            if path.exists():
                self._disk.unlink(str(path))
        if noted.parent.exists():
            self._disk.sync_directory(str(noted.parent))

    def _history(self) -> EpochHistory:
        try:
            return epochs_file.load(self._directory) or EpochHistory()
        except DamagedStateError:
            return EpochHistory()  # rebuilt from the log when it opens

    def _epoch_of(self, end: int) -> int:
        """Return the epoch of the newest byte that is cut."""
        try:
            return self._history().epoch_at(max(end - 1, 0)).epoch
        except LookupError:
            return 0

    def _prepare_recovery(self, cut_point: _CutPoint) -> None:
        """Step 2."""
        ownership = StoreLock(self._config.root, self._disk)
        if ownership.stopped_cleanly:
            ownership.mark_running()
        file = CheckpointFile(str(self._config.root / "checkpoint"), self._disk)
        try:
            checkpoint = file.load()
            at, stored_ms = cut_point.at, cut_point.last_stored_ms
            checkpoint.flushed_end = min(checkpoint.flushed_end, at)
            # Without a record the time is unknown: 0 vouches for nothing.
            for name in ("physic", "logics", "index"):
                key = f"{name}_msg_timestamp_ms"
                setattr(checkpoint, key, min(getattr(checkpoint, key), stored_ms))
            for key in (
                "logics_physical_offset",
                "confirm_physical_offset",
                "queued_offset",
            ):
                if getattr(checkpoint, key) >= at:
                    setattr(
                        checkpoint,
                        key,
                        cut_point.last_start if cut_point.last_start >= 0 else at - 1,
                    )
            file.save(checkpoint)
        finally:
            file.close()

    def _cut_epochs(self, at: int) -> None:
        """Step 5."""
        history = self._history()
        if self._plan.epochs:
            history = EpochHistory(EpochStart(epoch, start) for epoch, start in self._plan.epochs)
        history.truncate(at)
        epochs_file.save(self._directory, history, self._disk)

    def _lower_progress(self, survey: TailSurvey, tail: DivergedTail) -> list[str]:
        """Step 3."""
        root = self._config.root
        self._lower_timers(survey, tail)
        if self._plan.leader:
            return move_progress_aside(self._directory, root, tail.file_id, self._disk)
        return lower_offsets(self._directory, root, survey.queues, self._disk)

    def _lower_positions(self, at: int) -> None:
        lowered = {
            name: min(value, at) if name in ("confirm", "local_ok") else value
            for name, value in self._positions.items()
        }
        if lowered != self._positions:
            slots = SlotFile(self._directory / POSITIONS_NAME, durable=True, disk=self._disk)
            try:
                slots.load()
                slots.save(lowered)
            finally:
                slots.close()

    def _lower_timers(self, survey: TailSurvey, tail: DivergedTail) -> None:
        """Lower the timer progress, so that the leader's state delivers the tail's timers again."""
        file = TimerCheckpointFile(str(self._config.root / "config" / "timercheck"), self._disk)
        try:
            check = file.load()
            if check is None:
                return
            due_ms = min(survey.delivered_from_ms or tail.first_stored_ms, tail.first_stored_ms)
            check.last_read_ms = min(check.last_read_ms, max(due_ms - _TIMER_MARGIN_MS, 0))
            enqueued = survey.queues.get((TIMER_TOPIC, TIMER_QUEUE), check.last_timer_queue_offset)
            check.last_timer_queue_offset = min(check.last_timer_queue_offset, enqueued)
            check.master_timer_queue_offset = min(check.master_timer_queue_offset, enqueued)
            file.save(check)
        finally:
            file.close()


def _written_ms(path: Path) -> int:
    """Return the time of the plan, from its file."""
    return path.stat().st_mtime_ns // 1_000_000


def _summary(tail: DivergedTail) -> str:
    path = os.path.join(archive.FOLDER, tail.log_name)
    return (
        f"archived {tail.messages} messages ({tail.answered_ok} answered OK) of "
        f"[{tail.start}, {tail.end}) as {path}"
    )
