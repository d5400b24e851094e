"""Simulated power loss of a store (drills 11 to 15 of docs/formats/ha.md, section 6.12).

    python -m cometmq.drills.power_loss arm STORE              before the broker's first start
    python -m cometmq.drills.power_loss lose STORE [--seed N]  after SIGKILL of the broker

`arm` creates the folder in which a broker with `testHooks=true` keeps shadow copies
(`store/log/power_loss_disk.py`). `lose` decides for every 4 KiB page of the log that differs from
its last flushed state: written, not written, or only some of its sectors written. It then writes a
new boot id, so that the replica detects the restart of its machine, and prints the loss as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from ..ha.state.boot_id import OVERRIDE_NAME
from ..store.log.power_loss_disk import FOLDER

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@dataclass(slots=True)
class Loss:
    """The effect of a power loss on a store."""

    segments: int = 0
    pages: int = 0  #: that were written but not flushed
    kept: int = 0
    lost: int = 0
    torn: int = 0
    segments_lost: int = 0  #: that were created but not durable
    boot_id: str = ""


def arm(store: Path) -> None:
    """Make the next broker on this store keep shadow copies."""
    (store / FOLDER).mkdir(parents=True, exist_ok=True)


def lose(store: Path, seed: int, *, kept: float = 0.4, torn: float = 0.2) -> Loss:
    """Apply a power loss to a closed store; `kept` and `torn` are shares of the pages."""
    chance = random.Random(seed)
    loss = Loss()
    shadows = store / FOLDER
    if not shadows.is_dir():
        raise SystemExit(f"{store} has no shadows: arm it before the broker's first start")
    for live in sorted((store / "commitlog").iterdir()):
        shadow = shadows / live.name
        if not live.name.isdecimal():
            continue
        if not shadow.exists():  # its name was not durable
            live.unlink()
            loss.segments_lost += 1
            continue
        loss.segments += 1
        _lose_segment(live, shadow, chance, loss, (kept, kept + torn))
    loss.boot_id = f"{uuid.UUID(int=chance.getrandbits(128))}"
    override = store / "ha" / OVERRIDE_NAME
    override.parent.mkdir(exist_ok=True)
    override.write_text(loss.boot_id + "\n")
    return loss


def _lose_segment(
    live: Path, shadow: Path, chance: random.Random, loss: Loss, limits: tuple[float, float]
) -> None:
    size = live.stat().st_size
    with open(live, "r+b", buffering=0) as file, open(shadow, "r+b", buffering=0) as flushed:
        for at in _pages_with_data(file.fileno(), flushed.fileno(), size):
            now = os.pread(file.fileno(), PAGE_BYTES, at)
            before = os.pread(flushed.fileno(), len(now), at).ljust(len(now), b"\0")
            if now == before:
                continue
            loss.pages += 1
            draw = chance.random()
            if draw < limits[0]:
                loss.kept += 1
                page = now
            elif draw < limits[1]:
                loss.torn += 1
                page = _torn(now, before, chance)
            else:
                loss.lost += 1
                page = before
            os.pwrite(file.fileno(), page, at)
            os.pwrite(flushed.fileno(), page, at)  # the remaining data counts as flushed
        os.fsync(file.fileno())


def _torn(now: bytes, before: bytes, chance: random.Random) -> bytes:
    """Mix old and new sectors of a page; sectors are written atomically."""
    parts = []
    for at in range(0, len(now), SECTOR_BYTES):
        source = now if chance.random() < 0.5 else before
        parts.append(source[at : at + SECTOR_BYTES])
    return b"".join(parts)


def _pages_with_data(live: int, shadow: int, size: int) -> list[int]:
    """Yield the starts of the pages with data in either file."""
    pages: set[int] = set()
    for descriptor in (live, shadow):
        position = 0
        while position < size:
            try:
                begin = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError:
                break
            position = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
            pages.update(range(begin // PAGE_BYTES * PAGE_BYTES, position, PAGE_BYTES))
    return sorted(pages)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("arm", "lose"))
    parser.add_argument("store", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.what == "arm":
        arm(given.store)
    else:
        print(json.dumps(asdict(lose(given.store, given.seed))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
