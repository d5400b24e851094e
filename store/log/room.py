"""Disk space that a store needs to start: for its first segment, or for the rest of its last.

Segments that this store creates have all their space. A segment that was copied, or that another
broker made, may be sparse: without the space for its holes, a write in the middle of it fails.
"""

import logging
import os
from collections.abc import Sequence

from ..format.disk import Disk, existing, full_disk
from ..format.errors import DiskFullError
from .commit_log import CommitLog

logger = logging.getLogger(__name__)

#: The unit of st_blocks.
_STAT_BLOCK_BYTES = 512


def check_room(disk: Disk, log: CommitLog) -> None:
    """Raise DiskFullError when the log cannot get its first segment, or fill its last one."""
    size, folders = log.segment_bytes, log.writable_directories
    if lack := lack_of_room(disk, folders, size, log.tail.path if log.tail else ""):
        raise DiskFullError(lack)
    if not holds_next_segment(disk, folders, size):
        logger.warning(
            "store.small_disk segment_bytes=%d: the disk of %s holds fewer than two segments, "
            "and the last one is never deleted. Put the directory on a larger disk.",
            size,
            folders[0],
        )


def lack_of_room(
    disk: Disk, directories: Sequence[str], segment_bytes: int, last_segment: str
) -> str:
    """Return the sentence for a store that cannot write its next message, or "".

    `last_segment` is the path of the log's last segment; empty: there is none. Raises OSError.
    """
    if last_segment:
        folders = [os.path.dirname(last_segment)]
        missing = segment_bytes - os.stat(last_segment).st_blocks * _STAT_BLOCK_BYTES
        needs = (
            f"the last segment of the commit log, {last_segment}, needs {missing} more bytes "
            f"(mappedFileSizeCommitLog is {segment_bytes})"
        )
    else:
        folders = [existing(path) for path in directories]
        missing = segment_bytes
        needs = (
            f"the first segment of the commit log needs {segment_bytes} bytes "
            "(mappedFileSizeCommitLog; a new store may have a smaller one)"
        )
    if missing <= 0 or any(disk.free_bytes(path) >= missing for path in folders):
        return ""
    return full_disk(folders[0], needs)


def holds_next_segment(disk: Disk, directories: Sequence[str], segment_bytes: int) -> bool:
    """Return whether a disk is large enough for the segment in use and the next one: retention
    never deletes the last segment. Raises OSError."""
    return any(disk.space(existing(path)).total >= 2 * segment_bytes for path in directories)
