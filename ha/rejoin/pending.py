"""Carries out a pending plan on the closed store directory, before the store opens.

    steps = run(root, config, disk)

Every step can be repeated and the plan is deleted last: after a crash at any point the next start
repeats all steps with the same result (docs/formats/ha.md, R6; invariants I8 and I14). A plan that
cannot be carried out (disk full while archiving) stays, and so does the data. `cut.py` carries out
a cut, `reseed.py` a reseed; `plan.py` is the plan file.
"""

from collections.abc import Callable
from pathlib import Path

from ...store.config.store_config import StoreConfig
from ...store.format.disk import Disk
from ...store.store_lock import StoreLock
from .plan import CUT, PENDING_NAME, Plan, read_plan

__all__ = ["PENDING_NAME", "run"]


def run(store_root: str | Path, store_config: StoreConfig, disk: Disk | None = None) -> list[str]:
    """Carry out and delete the plan of the closed store directory; returns the steps as sentences.

    Does nothing without a plan. Raises StoreLockedError when the directory is open elsewhere,
    DamagedStateError for a damaged plan, CutRefusedError for a plan that must not be carried out,
                      and
    OSError (StoreError) when it cannot be carried out now: the plan then stays, and the store must
    not be opened.
    """
    directory = Path(store_root) / "ha"
    plan = read_plan(directory)
    if plan is None:
        return []
    disk = disk or Disk()
    lock = StoreLock(store_config.root, disk)
    lock.acquire()
    try:
        steps = _carry_out(plan)(directory, store_config, plan, disk)
        disk.unlink(str(directory / PENDING_NAME))
        disk.sync_directory(str(directory))
    finally:
        lock.release()
    return steps


def _carry_out(plan: Plan) -> Callable[[Path, StoreConfig, Plan, Disk], list[str]]:
    """Return the function for this kind of plan; imported for a plan only, as a cut needs NumPy."""
    if plan.kind == CUT:
        from .cut import cut

        return cut
    from .reseed import reseed

    return reseed
