"""Archived ranges of a log, ranges left to do, and the archive watermark. Pure.

Ranges are physical offsets [start, end) of one log (broker name). Planned splits lie on the
archive's grid; an archived range may end earlier, at the end of a live log.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..splits import Split
from .manifest import Manifest
from .splits import KIND

Range = tuple[int, int]


def ranges_of(manifests: Iterable[Manifest], broker: str, topics: str = "") -> list[Range]:
    """Return the archived ranges of a broker and topic selection, merged and ascending."""
    found = sorted(
        (one.about["start"], one.about["end"])
        for one in manifests
        if one.about.get("kind") == KIND
        and one.about["broker"] == broker
        and one.about["topics"] == topics
    )
    return list(_merged(found))


def _merged(ranges: Sequence[Range]) -> Iterator[Range]:
    begin = end = -1
    for start, stop in ranges:
        if start > end or begin < 0:
            if begin >= 0:
                yield begin, end
            begin, end = start, stop
        end = max(end, stop)
    if begin >= 0:
        yield begin, end


def left_to_do(planned: Iterable[Split], ranges: Sequence[Range]) -> list[Split]:
    """Return the planned splits without their archived beginnings."""
    found = []
    for split in planned:
        start = split.start
        for begin, end in ranges:
            if begin <= start < end:
                start = end
        if start < split.end:
            found.append(replace(split, start=start))
    return found


def covered_to(ranges: Sequence[Range], log_start: int) -> int:
    """Return the end of the archived range that contains `log_start`; 0 if it is not archived."""
    return next((end for begin, end in ranges if begin <= log_start < end), 0)
