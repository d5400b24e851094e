"""Archive gate: reads and sets the archive watermark of a broker.

With `archiveGate=true` the broker's retention keeps every segment that ends above the watermark. If
the disk is too full it deletes them anyway and logs `archive.overridden`. Only ranges that
`checking.py` found correct move the watermark.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...proto import paths, v1
from ..source.channel import Channel
from ..source.options import Access


@dataclass(frozen=True, slots=True)
class Mark:
    """Archive watermark and log bounds of a broker; `gate`: whether retention honours it."""

    watermark: int
    gate: bool
    log_start: int
    log_end: int


def get_watermark(access: Access) -> Mark:
    """Return the archive watermark of a broker. Raises PipelineError."""
    request = v1.GetArchiveWatermarkRequest()
    with Channel(access) as broker:
        found = broker.call(paths.GET_ARCHIVE_WATERMARK, request, v1.GetArchiveWatermarkResponse)
    return Mark(found.watermark, found.gate, found.log_start, found.log_end)


def set_watermark(access: Access, watermark: int) -> bool:
    """Set a broker's archive watermark; durable on return. Raises PipelineError.

    Return whether the broker's retention honours the watermark.
    """
    request = v1.SetArchiveWatermarkRequest(watermark=watermark)
    with Channel(access) as broker:
        found = broker.call(paths.SET_ARCHIVE_WATERMARK, request, v1.SetArchiveWatermarkResponse)
    return bool(found.gate)
