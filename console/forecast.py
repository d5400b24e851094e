"""Forecast of the disk: when it is full at the present rate, or how full retention keeps it. Pure.

The log grows until its oldest segment expires; then it keeps the size that is written within
`fileReservedTime`. The rate is that of the last ten minutes, or of the whole log while nothing is
written. Deletion by disk pressure and other users of the disk are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..operations import words
from ..proto import v1
from .language import said

_MS_PER_S = 1_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """What happens to the disk of the log at the present rate."""

    sentence: str
    #: Whether the disk fills before retention deletes.
    is_bad: bool = False
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What happens to the log of one broker group."""

    disk: Forecast
    #: When its oldest segment is deleted.
    oldest: str


def growth(segments: Sequence[v1.SegmentStatus], log_end: int, now_ms: int) -> list[list[float]]:
    """Return the columns of a curve: times in seconds, and the log end at each."""
    points = [(one.modified_ms / _MS_PER_S, one.end) for one in segments[:-1] if one.modified_ms]
    points = sorted({*points, (now_ms / _MS_PER_S, log_end)})
    return [[at for at, _ in points], [float(end) for _, end in points]]


def oldest(store: v1.DescribeStoreResponse, now_ms: int) -> str:
    """Return when retention deletes the oldest segment, as a sentence."""
    if len(store.segments) < 2:
        return said("The log has one segment, which is written to: retention deletes nothing yet.")
    first = store.segments[0]
    if not first.modified_ms:
        return said("When the oldest segment expires is unknown.")
    left_ms = first.modified_ms + store.reserved_ms - now_ms
    if left_ms > 0:
        return said("The oldest segment expires in {}.", words.span(left_ms))
    return said("The oldest segment has expired; {}.", first.explanation)


def rate_of(store: v1.DescribeStoreResponse) -> float:
    """Return the bytes written a second: of ten minutes, or of the time that the log covers."""
    recent = store.put_bytes_per_s[-1] if store.put_bytes_per_s else 0.0
    if recent >= 1 or len(store.segments) < 2:
        return recent
    first, last = store.segments[0], store.segments[-1]
    covered_s = (last.modified_ms - first.modified_ms) / _MS_PER_S
    return (store.log_end - first.end) / covered_s if covered_s > 0 else 0.0


def forecast(store: v1.DescribeStoreResponse) -> Forecast:
    """Return the forecast for the emptiest disk of the log, which gets the next segment."""
    disks = [disk for disk in store.disks if disk.total]
    if not disks:
        return Forecast(said("The use of the disk is unknown."), is_bad=True)
    rate = rate_of(store)
    if rate < 1:
        return Forecast(said("Nothing is written: the disk use does not change."), rate=rate)
    disk = min(disks, key=lambda one: one.use)
    # What others keep from the broker (a quota, root's reserve) is no part of its disk.
    used = disk.usable * disk.use / (100 - disk.use) if disk.use < 100 else float(disk.total)
    size = used + disk.usable
    limit = size * store.forced_percent / 100
    hours = store.reserved_ms / 3_600_000
    # What the log will gain until retention deletes as much as is written.
    gain = max(0.0, rate * store.reserved_ms / _MS_PER_S - (store.log_end - store.log_start))
    if used + gain <= limit:
        share = min(100, round((used + gain) * 100 / size))
        text = said(
            "At {}/s retention ({} h) keeps the disk at about {} %, below the {} % "
            "from which segments are deleted before their time.",
            words.size(rate),
            format(hours, "g"),
            share,
            store.forced_percent,
        )
        return Forecast(text, rate=rate)
    left_ms = max(0.0, limit - used) / rate * _MS_PER_S
    text = said(
        "At {}/s the disk is {} % full in {}, before retention ({} h) deletes "
        "enough: then segments are deleted before their time.",
        words.size(rate),
        store.forced_percent,
        words.span(left_ms),
        format(hours, "g"),
    )
    return Forecast(text, is_bad=True, rate=rate)
