"""One random injury of a store directory: which file, which place, which change; from a seed."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from cometmq.store.format.disk import data_ranges

#: Path prefix -> kind. A kind is chosen first, then one of its files, so that few large files do
#: not take all injuries.
KINDS = {
    "commitlog/": "log",
    "consumequeue/": "queue",
    "consumequeue_ext/": "extension",
    "index/": "index",
    "timerlog/": "timer log",
    "timerwheel": "timer wheel",
    "checkpoint": "checkpoint",
    "config/timercheck": "timer checkpoint",
    "config/": "config",
    "ha/": "replica state",
    "abort": "marker",
    "lock": "marker",
}
WEIGHTS = {"log": 4, "queue": 5, "index": 3, "config": 4, "marker": 1}
#: Files that the running broker maps: a truncation under the map ends the process (SIGBUS).
MAPPED = ("commitlog/", "ha/answered")
_NEAR_BYTES = 64


@dataclass(frozen=True, slots=True)
class Injury:
    """A change of one file; `data` replaces the bytes at `begin`, None truncates the file there."""

    file: str
    kind: str
    how: str
    begin: int
    data: bytes | None

    def __str__(self) -> str:
        size = "" if self.data is None else f"+{len(self.data)}"
        return f"{self.how} {self.file} at {self.begin}{size}"

    def apply(self, root: Path) -> None:
        if self.data is None:
            os.truncate(root / self.file, self.begin)
            return
        with open(root / self.file, "r+b", buffering=0) as file:
            file.seek(self.begin)
            file.write(self.data)


def kind_of(name: str) -> str:
    return next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), "other")


def choose(root: Path, rng: random.Random, *, running: bool) -> Injury:
    """Return an injury that changes at least one byte."""
    files: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.stat().st_size:
            name = str(path.relative_to(root))
            files.setdefault(kind_of(name), []).append(name)
    while True:
        kinds = sorted(files)
        (kind,) = rng.choices(kinds, [WEIGHTS.get(kind, 2) for kind in kinds])
        name = rng.choice(files[kind])
        how = rng.choice(("flip", "flip", "byte", "zeros", "zeros", "noise", "cut"))
        if how == "cut" and running and name.startswith(MAPPED):
            continue
        injury = _injury(root / name, name, kind, how, rng)
        if injury is not None:
            return injury


def _injury(path: Path, name: str, kind: str, how: str, rng: random.Random) -> Injury | None:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        place = _place(file.fileno(), size, rng)
        if how == "cut":
            return Injury(name, kind, how, rng.choice((place, 0, rng.randrange(size))), None)
        length = min({"flip": 1, "byte": 1}.get(how) or rng.choice((4, 20, 64, 512, 4096)), size)
        begin = min(place, size - length)
        before = os.pread(file.fileno(), length, begin)
    if how == "flip":
        data = bytes([before[0] ^ 1 << rng.randrange(8)])
    elif how == "zeros":
        data = bytes(length)
    else:
        data = rng.randbytes(length)
    return Injury(name, kind, how, begin, data) if data != before else None


def _place(descriptor: int, size: int, rng: random.Random) -> int:
    """Return a position: most often one that is not zero, or close behind one."""
    used = []
    for begin, end in data_ranges(descriptor, 0, size):
        data = os.pread(descriptor, end - begin, begin)
        used += [begin + at for at, byte in enumerate(data) if byte]
    if not used or rng.random() < 0.05:
        return rng.randrange(size)
    place = rng.choice(used)
    if rng.random() < 0.2:
        place += rng.randrange(_NEAR_BYTES)
    return min(place, size - 1)
