"""The power fails: what a store's log may look like afterwards. Drills 11 to 15 of the HA note.

    python -m cometmq.tests.drills.power_loss arm STORE              before the broker's first start
    python -m cometmq.tests.drills.power_loss lose STORE [--seed N]  after SIGKILL of the broker

`arm` makes the folder that a broker with `testHooks=true` keeps its shadows in (`store/log/power_loss_disk.py`). `lose` decides for every
4 KiB page of the log that is not as it was flushed last: it reached the disk, it did not, or a part of its sectors did;
then it writes a new boot id, so that the replica knows that its machine went down. What it took is printed as JSON.
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

from cometmq.ha.state.boot_id import OVERRIDE_NAME
from cometmq.store.log.power_loss_disk import FOLDER

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@dataclass(slots=True)
class Loss:
    """What a power loss did to a store."""

    segments: int = 0
    pages: int = 0  #: that were written and not flushed
    kept: int = 0
    lost: int = 0
    torn: int = 0
    segments_lost: int = 0  #: that were made, and not durable
    boot_id: str = ""


def arm(store: Path) -> None:
    """Ask the next broker on this store for shadows."""
    (store / FOLDER).mkdir(parents=True, exist_ok=True)


def lose(store: Path, seed: int, *, kept: float = 0.4, torn: float = 0.2) -> Loss:
    """Apply a power loss to a store that nobody has open; `kept` and `torn` are the shares of the pages."""
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
            os.pwrite(flushed.fileno(), page, at)  # what is there after the loss is on the disk
        os.fsync(file.fileno())


def _torn(now: bytes, before: bytes, chance: random.Random) -> bytes:
    """Sectors are written whole; of a page any of them may be missing."""
    parts = []
    for at in range(0, len(now), SECTOR_BYTES):
        source = now if chance.random() < 0.5 else before
        parts.append(source[at : at + SECTOR_BYTES])
    return b"".join(parts)


def _pages_with_data(live: int, shadow: int, size: int) -> list[int]:
    """Starts of the pages in which either file has something."""
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
