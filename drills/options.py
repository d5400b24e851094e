"""What `cometmq drill` is to run, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Sends after the last fault of a random drill.
AFTER = 1_000


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command; its help describes them."""

    numbers: tuple[int, ...] = ()
    all: bool = False
    mode: str | None = None
    seed: int | None = None
    faults: str | None = None
    seconds: float = 10.0
    after: int = AFTER
    random: int | None = None
    kills: int | None = None
    pauses: int | None = None
    lease: int | None = None
    beat: int | None = None
    default_timers: bool = False
    no_exit_report: bool = False
    scale: float = 0.0
    compose: bool = False
    services: str | None = None
    no_build: bool = False
    out: Path | None = None
    merge: tuple[Path, ...] = ()
    junit: Path | None = None
    report: Path | None = None
    note: str = ""
    picture: Path | None = None
    keep: Path | None = None
