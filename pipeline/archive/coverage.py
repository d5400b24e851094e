"""Which ranges of a log are archived, what is left to do, and how far the broker may delete. Pure.

Ranges are of physical offsets, [start, end), one log (broker name) at a time. Splits that are planned
lie on the archive's grid; a record may end earlier, where a log that was still being written to ended.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..splits import Split
from .manifest import Manifest
from .splits import KIND

Range = tuple[int, int]


def ranges_of(manifests: Iterable[Manifest], broker: str, topics: str = "") -> list[Range]:
    """Ranges of this broker that are archived with this choice of topics, merged and ascending."""
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
    """What of the planned splits is not archived yet: a split loses what is covered at its front."""
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
    """The end of what is archived without a gap from `log_start` on; 0 when the start is not."""
    return next((end for begin, end in ranges if begin <= log_start < end), 0)
