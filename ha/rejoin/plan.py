"""Plan file `<store>/ha/pending`: a change of the commit log that waits for the next start.

    plan = Plan(CUT, to=81920, epoch=7, reason="...", leader="broker 1")
    write_plan(directory, plan)                  # `<store>/ha`; durable on return

A running replica never changes bytes of its log. To remove some, because its tail diverged from the
leader's log or because it reseeds, it writes a plan and closes the store; `pending.run` carries the
plan out before the store opens again.
"""

import logging
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from ...store.format.disk import Disk
from ...store.format.layout import check_name
from ..errors import DamagedStateError
from ..state import documents

__all__ = ["CUT", "PENDING_NAME", "RESEED", "Plan", "read_plan", "write_plan"]

logger = logging.getLogger(__name__)

PENDING_NAME: Final = "pending"
CUT: Final = "cut"
RESEED: Final = "reseed"


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of the log, and its reason for the archive's description."""

    kind: str  #: CUT or RESEED
    to: int = 0  #: CUT: the first byte that is cut
    epoch: int = 0  #: of the leader or the operator's decision behind it
    #: CUT: (epoch, start) of the entries that stay; empty: the own history up to `to`.
    epochs: tuple[tuple[int, int], ...] = ()
    reason: str = ""
    leader: str = ""  #: origin, for operators: "broker 1 at 10.0.0.2:10912"
    accept_loss: bool = False  #: bytes below the own confirm offset may be cut (a forced election)
    at_ms: int = 0  #: wall time of the decision
    plan_id: str = field(default_factory=_new_id)  #: distinguishes a repeated run from another plan

    def __post_init__(self) -> None:
        if self.kind not in (CUT, RESEED):
            raise ValueError(f"a plan is {CUT!r} or {RESEED!r}, not {self.kind!r}")
        check_name(self.plan_id, "plan id")
        if self.to < 0:
            raise ValueError(f"the log cannot be cut to {self.to}")
        object.__setattr__(self, "epochs", _pairs(self.epochs))


def _pairs(epochs: Iterable[Iterable[Any]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(epoch), int(start)) for epoch, start in epochs)


def write_plan(directory: Path, plan: Plan, disk: Disk | None = None) -> None:
    """Write `plan` durably to `directory` (`<store>/ha`), replacing a pending one. Raises
    OSError."""
    documents.write(directory / PENDING_NAME, asdict(plan), disk or Disk())
    logger.warning(
        "ha.plan.written kind=%s to=%d epoch=%d reason=%s",
        plan.kind,
        plan.to,
        plan.epoch,
        plan.reason,
    )


def read_plan(directory: Path) -> Plan | None:
    """Return the pending plan, or None. Raises DamagedStateError."""
    path = directory / PENDING_NAME
    try:
        content = documents.read(path)
        if content is None:
            return None
        known = {each.name for each in fields(Plan)}
        return Plan(**{name: value for name, value in content.items() if name in known})
    except (DamagedStateError, TypeError, ValueError) as error:
        raise DamagedStateError(
            f"The plan {path} cannot be read ({error}). Delete it: if it is still needed, "
            "this replica's leader orders it again."
        ) from None
