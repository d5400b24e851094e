"""Reseed: the store's data moves aside, and the replica starts empty under a new identity.

    <store>/aside/<plan id>/...                 the content of the store directory
    <store>/aside/<plan id>/ha/...              positions and histories of that log
    <log directory>/aside-<plan id>/...         segments of a log directory outside of the store's

Nothing is deleted: the operator frees the disk space once the replica is in sync again. These stay:
archived tails, the group's last state, and in `replica.meta` the promise (I1), the number of starts
and the suspect mark (I11). The uuid is new, because it identifies the data (docs/formats/ha.md, R9
and section 6.7).
"""

import uuid
from pathlib import Path
from typing import Final

from ...store import holdings
from ...store.config.store_config import StoreConfig
from ...store.format.disk import Disk
from ..state.replica_meta import META_NAME
from ..state.slots import SlotFile
from .plan import Plan

__all__ = ["ASIDE", "reseed"]

ASIDE: Final = "aside"
#: The parts of a store directory; other files there are not moved.
_DATA: Final = (
    *("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index"),
    *("timerwheel", "timerlog", "checkpoint", "config", "lost", "abort"),
)
#: State of the log that moves.
_STATE: Final = (
    *("epochs", "epochs.previous", "positions", "digests"),
    *("offsets-recent", "offsets-recent.copy", "pop-handover"),
)


def reseed(directory: Path, config: StoreConfig, plan: Plan, disk: Disk) -> list[str]:
    """Carry out a RESEED plan; `directory` is `<store>/ha`. Returns the steps. Raises OSError."""
    root = config.root
    target = root / ASIDE / plan.plan_id
    holdings.forget(root, disk)
    moved = _move([root / name for name in _DATA], target, disk)
    moved += _move([directory / name for name in _STATE], target / directory.name, disk)
    for folder in dict.fromkeys(config.commit_log_directories + config.read_only_directories):
        if folder.is_dir():  # outside of the store directory, whose own log has already moved
            segments = [path for path in sorted(folder.iterdir()) if path.is_file()]
            moved += _move(segments, folder / f"{ASIDE}-{plan.plan_id}", disk)
    _renew_identity(directory, disk)
    return [f"moved {moved} files and folders of the store to {target}", "the replica starts empty"]


def _move(paths: list[Path], target: Path, disk: Disk) -> int:
    """Rename the existing paths into the folder `target` durably. A second run finds none."""
    present = [path for path in paths if path.exists()]
    if not present:
        return 0
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True)
    for path in present:
        disk.replace(str(path), str(target / path.name))
    touched = {target, *(path.parent for path in present), *(folder.parent for folder in made)}
    for folder in sorted(touched):
        disk.sync_directory(str(folder))
    return len(present)


def _renew_identity(directory: Path, disk: Disk) -> None:
    slots = SlotFile(directory / META_NAME, durable=True, disk=disk)
    try:
        state = slots.load()
        if state is not None:
            slots.save({**state, "replica_uuid": str(uuid.uuid4())})
    finally:
        slots.close()
