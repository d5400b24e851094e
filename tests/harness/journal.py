"""Journal of a workload: acknowledgements written as they arrive, and read by the checker.

One line per event: `a ID` before a send, `k ID QUEUE_OFFSET` when it was acknowledged, `u ID WHY`
when its outcome is unknown (it is sent again with the same identity). Each line is flushed to the
kernel, so a killed workload loses no event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO


class Journal:
    """The writer of the workload."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", buffering=1)

    def attempt(self, identity: str) -> None:
        """Record the start of a send."""
        self._file.write(f"a {identity}\n")

    def acknowledged(self, identity: str, offset: int) -> None:
        """Record an acknowledgement."""
        self._file.write(f"k {identity} {offset}\n")

    def unknown(self, identity: str, why: str) -> None:
        """Record an unknown outcome."""
        self._file.write(f"u {identity} {why.split(maxsplit=1)[0] if why else '?'}\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(slots=True)
class Promises:
    """The checker's view: everything the workload wrote."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Promises:
        """Read a journal; an incomplete last line is skipped."""
        found = cls()
        text = path.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            found._take(line.split())
        return found

    def _take(self, words: list[str]) -> None:
        kind, identity = words[0], words[1]
        if kind == "a":
            self.attempted.add(identity)
        elif kind == "k":
            self.acknowledged[identity] = int(words[2])
        else:
            self.unknown[identity] = self.unknown.get(identity, 0) + 1
            self.reasons[words[2]] = self.reasons.get(words[2], 0) + 1


class AckCounter:
    """A counter of acknowledgements in a journal that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._rest = path, 0, ""
        self.count = 0

    def poll(self) -> int:
        """Read new lines; return the count so far."""
        if self._path.exists():
            with self._path.open() as file:
                file.seek(self._at)
                text = self._rest + file.read()
                self._at = file.tell()
            lines = text.split("\n")
            self._rest = lines.pop()
            self.count += sum(line.startswith("k ") for line in lines)
        return self.count
