"""Progress that rests on bytes which are about to go: consumer offsets, delay levels, timers.

A consumer's offset may pass a message whose checkpoint lies in the log behind it, and a delay level's a message
whose delivered copy does. When those records go, the progress must go as well, or the message is passed over for
good: replicas merge progress by maximum. The leader has its own, and sends all of it to a replica that joins. So
the files move aside, beside the archived tail; nothing is deleted:

    <store>/ha/diverged/<file id>.progress/consumerOffset.json ...

Without a leader that asked for the cut (an operator's decision on the only replica) there is nobody to learn
progress from: offsets are lowered to the new ends of their queues instead. (HA note, R6 step 3)
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
_RECENT: Final = "offsets-recent"
_SEPARATOR: Final = "@"


def set_aside(directory: Path, root: Path, file_id: str, disk: Disk) -> list[str]:
    """Move the files of progress beside the archive `file_id`; what was done. Raises OSError."""
    target = folder_of(directory) / f"{file_id}.progress"
    config = root / "config"
    files = [config / _OFFSETS, config / _DELAYS]
    files = [each for path in files for each in (path, backup_of(path))]
    present = [path for path in (*files, directory / _RECENT) if path.exists()]
    if not present:
        return []
    target.mkdir(parents=True, exist_ok=True)
    for path in present:
        disk.replace(str(path), str(target / path.name))
    for folder in {str(path.parent) for path in present} | {str(target), str(target.parent)}:
        disk.sync_directory(folder)
    return [
        f"moved {len(present)} files of progress to {os.path.join(target.parent.name, target.name)}"
    ]


def lower_offsets(
    directory: Path, root: Path, ends: Mapping[tuple[str, int], int], disk: Disk
) -> list[str]:
    """Lower consumer offsets to the new `ends` of their queues; what was done. Raises OSError."""
    path = root / "config" / _OFFSETS
    content = load(path)
    lowered: list[str] = []
    if content is not None:
        for name, queues in (content.get("offsetTable") or {}).items():
            lowered += _lower(str(name), queues, ends)
        if lowered:
            persist(path, dumps(ordered(content)), disk)
    recent = directory / _RECENT
    if recent.exists():  # frames that rely on the old end; the table is a few seconds old at most
        disk.unlink(str(recent))
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
