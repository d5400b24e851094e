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
#: Changes of a part of a file; the frequent ones are named twice.
_PARTS = ("flip", "flip", "byte", "zeros", "zeros", "noise", "cut", "tail")
#: Changes of a whole file, one injury of `_WHOLE_EVERY`.
WHOLE = ("gone", "folder", "other")
_WHOLE_EVERY = 5


@dataclass(frozen=True, slots=True)
class Injury:
    """A change of one file; `data` replaces the bytes at `begin`, None truncates the file there.

    Of a whole file: "gone" removes it, "folder" replaces it with a directory, "other" replaces its
    content with that of `source`, another file of its kind or its own earlier state.
    """

    file: str
    kind: str
    how: str
    begin: int = 0
    data: bytes | None = None
    source: Path | None = None

    def __str__(self) -> str:
        if self.how in WHOLE:
            return f"{self.how} {self.file}" + (f" from {self.source}" if self.source else "")
        size = "" if self.data is None else f"+{len(self.data)}"
        return f"{self.how} {self.file} at {self.begin}{size}"

    def apply(self, root: Path) -> None:
        path = root / self.file
        if self.how in WHOLE:
            content = self.source.read_bytes() if self.source is not None else b""
            path.unlink()
            if self.how == "folder":
                path.mkdir()
            elif self.how == "other":
                path.write_bytes(content)
        elif self.data is None:
            os.truncate(path, self.begin)
        else:
            with open(path, "r+b", buffering=0) as file:
                file.seek(self.begin)
                file.write(self.data)


def kind_of(name: str) -> str:
    return next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), "other")


def choose(root: Path, earlier: Path, rng: random.Random, *, running: bool) -> Injury:
    """Return an injury that changes at least one byte.

    `earlier` holds files of the directory in an earlier state.
    """
    files: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.stat().st_size:
            name = str(path.relative_to(root))
            files.setdefault(kind_of(name), []).append(name)
    while True:
        kinds = sorted(files)
        (kind,) = rng.choices(kinds, [WEIGHTS.get(kind, 2) for kind in kinds])
        name = rng.choice(files[kind])
        how = rng.choice(WHOLE if rng.randrange(_WHOLE_EVERY) == 0 else _PARTS)
        if how == "cut" and running and name.startswith(MAPPED):
            continue
        if how in WHOLE:
            same = [root / other for other in files[kind]]
            others = _other_contents(root / name, same, earlier / name)
            injury = _whole(name, kind, how, others, rng)
        else:
            injury = _injury(root / name, name, kind, how, rng)
        if injury is not None:
            return injury


def _whole(name: str, kind: str, how: str, others: list[Path], rng: random.Random) -> Injury | None:
    if how == "other":
        return Injury(name, kind, how, source=rng.choice(others)) if others else None
    if how == "gone" and kind == "log":
        return None  # a log without its first segments is what retention leaves
    return Injury(name, kind, how)


def _other_contents(path: Path, same: list[Path], earlier: Path) -> list[Path]:
    """Return files with another content: those of its kind, and as often its own earlier state."""
    sources = [other for other in same if other != path]
    if earlier.is_file():
        sources += [earlier] * max(1, len(sources))
    content = path.read_bytes()
    return [source for source in sources if source.read_bytes() != content]


def _injury(path: Path, name: str, kind: str, how: str, rng: random.Random) -> Injury | None:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        place = _place(file.fileno(), size, rng)
        if how == "cut":
            return Injury(name, kind, how, rng.choice((place, 0, rng.randrange(size))), None)
        if how == "tail":
            end = os.pread(file.fileno(), 512, max(0, size - 512))
            return Injury(name, kind, how, size, end[-rng.randrange(1, 513) :])
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
