"""Retention rules: which segments of the log may be deleted, and why the others stay. Pure.

The rules are RocketMQ's (docs/formats/store-format.md, section 10.2): a segment whose last write is
`fileReservedTime` old is deleted in an hour of `deleteWhen`, or at any hour while the disk use is
above `diskMaxUsedSpaceRatio`; above `diskSpaceCleanForciblyRatio` segments are deleted regardless
of age, above `diskSpaceWarningLevelRatio` the store refuses messages. Oldest first, never the last
one, at most `deleteFileBatchMax` per round, and nothing behind a segment that stays.

What disk pressure deletes goes one segment at a time: the disk use is measured before the next, so
that no segment goes that could stay (RocketMQ deletes a whole batch).

Our additions, each named in the verdict: a segment stays until it is flushed and dispatched in
full; while a connected follower still needs it; while it is not archived (`archiveGate`); while the
only record of a delayed message or an open transaction lies there; and for
`destroyMapedFileIntervalForcibly` while a reader holds it. Disk pressure overrides all but the
first and the last.
A reader never loses its bytes: after that time the file is unlinked and the map stays until the
reader releases it (Apache unmaps it under the reader).
"""

import math
from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from typing import Final

from msgspec import Struct

from ..config.store_config import StoreConfig

_MS_PER_HOUR: Final = 3_600_000
_MS_PER_MINUTE: Final = 60_000
#: RocketMQ's limits of the three ratios, in percent.
WARNING_RANGE: Final = (35, 90)
FORCED_RANGE: Final = (30, 85)
MAX_USED_RANGE: Final = (10, 95)
#: Disk use that could not be determined.
UNKNOWN: Final = -1


class Pressure(IntEnum):
    """What the disk use demands; each level includes the ones before."""

    NONE = 0
    #: Expired segments are deleted at any hour.
    ANY_HOUR = 1
    #: Segments are deleted regardless of age (while `cleanFileForciblyEnable`).
    FORCED = 2
    #: The store also refuses messages.
    STOP = 3


class Reason(Enum):
    """Why a segment stays or is deleted."""

    LAST = "last"
    UNSAFE = "not written out"
    YOUNG = "young"
    HOUR = "hour"
    ARCHIVE = "archive"
    REPLICA = "replica"
    WAITS = "waits"
    HELD = "held"
    BATCH = "batch"
    BEHIND = "behind"
    EXPIRED = "expired"
    FORCED = "disk"


class Rules(Struct, frozen=True):
    """The settings, clamped as RocketMQ clamps them."""

    reserved_ms: int
    hours: frozenset[int]
    max_used: int
    forced: int
    warning: int
    forcibly: bool
    batch_max: int
    hold_max_ms: int
    archive_gate: bool

    @classmethod
    def of(cls, config: StoreConfig) -> "Rules":
        return cls(
            reserved_ms=config.file_reserved_time * _MS_PER_HOUR,
            hours=config.delete_hours,
            max_used=_clamp(config.disk_max_used_space_ratio, MAX_USED_RANGE),
            forced=_clamp(config.disk_space_clean_forcibly_ratio, FORCED_RANGE),
            warning=_clamp(config.disk_space_warning_level_ratio, WARNING_RANGE),
            forcibly=config.clean_file_forcibly_enable,
            batch_max=config.delete_file_batch_max,
            hold_max_ms=config.destroy_maped_file_interval_forcibly,
            archive_gate=config.archive_gate,
        )


class SegmentFacts(Struct, frozen=True):
    """The state of one segment."""

    start: int
    end: int
    #: Last write, by the file system's clock.
    modified_ms: int
    #: How long its deletion has waited for a reader that holds it; None: not held.
    held_ms: int | None = None


class Situation(Struct, frozen=True):
    """The other inputs of a round."""

    now_ms: int
    hour: int  #: of the day, local
    pressure: Pressure
    #: Everything before it is flushed and dispatched.
    safe_end: int
    #: Everything before it is archived; used while `archiveGate` is on.
    archive_watermark: int = 0
    #: Connected followers have everything before it; None: no followers.
    replica_end: int | None = None
    #: No delayed message and no open transaction has its record before it; None: unknown.
    waiting_from: int | None = None


class Verdict(Struct, frozen=True):
    """The decision for one segment. `overridden` names reasons to stay that pressure overrode."""

    segment: SegmentFacts
    delete: bool
    reason: Reason
    sentence: str
    overridden: tuple[Reason, ...] = ()


def used_percent(total: int, free: int, usable: int) -> int:
    """Return the disk use for processes without root's reserve, in percent, rounded up."""
    used = total - free
    return math.ceil(used * 100 / (used + usable)) if used + usable > 0 else UNKNOWN


def pressure_of(rules: Rules, log_percents: Iterable[int], queues_percent: int) -> Pressure:
    """Return the pressure: the emptiest disk of the log counts (it gets the next segment), and that
    of the queues."""
    log_percent = min(log_percents, default=UNKNOWN)
    worst = max(log_percent, queues_percent)
    if worst > rules.warning:
        return Pressure.STOP
    if worst > rules.forced:
        return Pressure.FORCED
    if worst > rules.max_used or UNKNOWN in (log_percent, queues_percent):
        return Pressure.ANY_HOUR
    return Pressure.NONE


def writes_stop(pressure: Pressure, stopped: bool) -> bool:
    """Return whether messages are refused: from the warning level on, until the use is back at the
    level of forced deletion."""
    return pressure is Pressure.STOP or (stopped and pressure is Pressure.FORCED)


def decide(
    segments: Sequence[SegmentFacts], situation: Situation, rules: Rules, *, whole: bool = True
) -> list[Verdict]:
    """Return a verdict for every segment, oldest first. `whole`: the last one of the sequence is
    the log's last."""
    verdicts: list[Verdict] = []
    deleted = 0
    limit, limit_text = rules.batch_max, f"one deletes {rules.batch_max} (deleteFileBatchMax)"
    if situation.pressure > Pressure.NONE:
        limit, limit_text = 1, "the disk use is measured after each"
    kept: SegmentFacts | None = None
    last = segments[-1] if segments and whole else None
    for segment in segments:
        if segment is last:
            verdict = _keep(segment, Reason.LAST, "it is the last one: messages are written to it")
        else:
            verdict = _judge(segment, situation, rules)
        if verdict.delete and kept is not None:
            text = f"it may be deleted only after the older one at {kept.start}, which stays"
            verdict = _keep(segment, Reason.BEHIND, text)
        elif verdict.delete and deleted >= limit:
            text = f"it may go in a later round: {limit_text}"
            verdict = _keep(segment, Reason.BATCH, text)
        deleted += verdict.delete
        if not verdict.delete and kept is None:
            kept = segment
        verdicts.append(verdict)
    return verdicts


def _judge(segment: SegmentFacts, situation: Situation, rules: Rules) -> Verdict:
    """Return the reasons for and against one segment, independent of the others."""
    if segment.end > situation.safe_end:
        return _keep(segment, Reason.UNSAFE, "it is not flushed and dispatched in full")
    forced = rules.forcibly and situation.pressure >= Pressure.FORCED
    left_ms = segment.modified_ms + rules.reserved_ms - situation.now_ms
    if left_ms > 0 and not forced:
        text = (
            f"it is younger than fileReservedTime ({rules.reserved_ms // _MS_PER_HOUR} h): "
            f"{_duration(left_ms)} are left; then it is {_at_hours(rules)}"
        )
        return _keep(segment, Reason.YOUNG, text)
    if situation.hour not in rules.hours and situation.pressure < Pressure.ANY_HOUR:
        text = f"it is expired, and is {_at_hours(rules)}; the hour is {situation.hour:02d} now"
        return _keep(segment, Reason.HOUR, text)
    against = _against(segment, situation, rules)
    for reason, text in against:
        if not forced:
            return _keep(segment, reason, text)
    if segment.held_ms is not None and segment.held_ms < rules.hold_max_ms:
        left = _duration(rules.hold_max_ms - segment.held_ms)
        return _keep(segment, Reason.HELD, f"a reader holds it; deletion waits {left} more")
    overridden = tuple(reason for reason, _ in against)
    if left_ms > 0:
        text = f"the disk is too full: deleted {_duration(left_ms)} before its time"
        return Verdict(segment, True, Reason.FORCED, text, overridden)
    text = "the disk is too full, and it is expired" if overridden else "it is expired"
    return Verdict(segment, True, Reason.EXPIRED, text, overridden)


def _against(segment: SegmentFacts, situation: Situation, rules: Rules) -> list[tuple[Reason, str]]:
    """Return what still needs a segment; only disk pressure overrides it."""
    found = []
    watermark = situation.archive_watermark
    if rules.archive_gate and segment.end > watermark:
        found.append(
            (Reason.ARCHIVE, f"it is not archived: its end is above the watermark {watermark}")
        )
    replica_end = situation.replica_end
    if replica_end is not None and segment.end > replica_end:
        found.append((Reason.REPLICA, f"a connected follower is only at {replica_end}"))
    waiting_from = situation.waiting_from
    if waiting_from is not None and segment.end > waiting_from:
        text = f"delayed messages or open transactions may wait from {waiting_from} on"
        found.append((Reason.WAITS, text))
    return found


def _keep(segment: SegmentFacts, reason: Reason, sentence: str) -> Verdict:
    return Verdict(segment, False, reason, sentence)


def _clamp(value: int, limits: tuple[int, int]) -> int:
    low, high = limits
    return min(max(value, low), high)


def _at_hours(rules: Rules) -> str:
    hours = ";".join(f"{hour:02d}" for hour in sorted(rules.hours))
    return f"deleted in the hour {hours} (deleteWhen)"


def _duration(ms: int) -> str:
    hours, rest = divmod(max(ms, 0), _MS_PER_HOUR)
    minutes, rest = divmod(rest, _MS_PER_MINUTE)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{rest / 1000:.0f} s"
