"""Progress that depends on bytes to be cut: consumer offsets, deliveries without a leader, delay
levels, timers.

A consumer offset may have passed a message whose checkpoint lies later in the log, and a delay
level a message whose delivered copy does. When those records are cut, the progress must be lowered
too, or the message would be skipped, because replicas merge progress by maximum. The leader sends
its progress to a replica that joins. So the files move aside, next to the archived tail; nothing is
deleted:

    <store>/ha/diverged/<file id>.progress/consumerOffset.json ...

Without a leader (an operator's cut on the only replica) offsets are lowered to the new ends of
their queues instead (docs/formats/ha.md, R6 step 3).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...store.config.catalog import number_table
from ...store.format.disk import Disk
from ...store.format.json_file import backup_of, dumps, load, ordered, persist
from .archive import folder_of

_OFFSETS: Final = "consumerOffset.json"
_DELAYS: Final = "delayOffset.json"
#: Files in `<store>/ha`. The last has what this replica delivered while it had no leader: offsets
#: of the cut bytes would let the leader skip other messages at the same offsets.
_RECENT: Final = ("offsets-recent", "offsets-recent.copy", "pop-handover")
_SEPARATOR: Final = "@"


def move_progress_aside(directory: Path, root: Path, file_id: str, disk: Disk) -> list[str]:
    """Move the progress files next to the archive `file_id`; returns the steps. Raises OSError."""
    target = folder_of(directory) / f"{file_id}.progress"
    config = root / "config"
    files = [config / _OFFSETS, config / _DELAYS]
    files = [each for path in files for each in (path, backup_of(path))]
    files += [directory / name for name in _RECENT]
    present = [path for path in files if path.exists()]
    if not present:
        return []
    target.mkdir(parents=True, exist_ok=True)
    for path in present:
        disk.replace(str(path), str(target / path.name))
    for folder in {str(path.parent) for path in present} | {str(target), str(target.parent)}:
        disk.sync_directory(folder)
    return [
        f"moved {len(present)} progress files to {os.path.join(target.parent.name, target.name)}"
    ]


def lower_offsets(
    directory: Path, root: Path, ends: Mapping[tuple[str, int], int], disk: Disk
) -> list[str]:
    """Lower consumer offsets to the new `ends` of their queues; returns the steps. Raises
    OSError."""
    path = root / "config" / _OFFSETS
    content = load(path)
    lowered: list[str] = []
    if content is not None:
        for name, queues in (content.get("offsetTable") or {}).items():
            lowered += _lower(str(name), queues, ends)
        if lowered:
            persist(path, dumps(ordered(content)), disk)
    for name in _RECENT:
        # They rely on the old end; the table is at most a few seconds old.
        if (directory / name).exists():
            disk.unlink(str(directory / name))
            disk.sync_directory(str(directory))
    if not lowered:
        return []
    return [f"lowered {len(lowered)} consumer offsets: {', '.join(lowered[:8])}"]


def _lower(name: str, queues: dict[Any, Any], ends: Mapping[tuple[str, int], int]) -> list[str]:
    topic = name.partition(_SEPARATOR)[0]
    lowered = []
    for queue_id, offset in number_table(queues).items():
        end = ends.get((topic, queue_id))
        if end is not None and offset > end:
            key = queue_id if queue_id in queues else str(queue_id)
            queues[key] = end
            lowered.append(f"{name}/{queue_id} {offset}->{end}")
    return lowered
