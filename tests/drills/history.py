"""What every client of a drill writes down: one JSON line an event, flushed to the kernel at once.

`invoke`, and then `ok`, `fail` (refused: nothing was written) or `unknown`; consumers write `got` and `done`.
Keys: t (monotonic seconds, comparable between the processes of a machine), c (client), e (event), id, and where known
group and seq (the order that was promised), offset, broker (the address that was asked), why. The checker reads these
files, the replicas' logs and the events of the drill, and nothing else. Imports nothing of ours: the official client's
process writes the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


class History:
    """The writer's side."""

    def __init__(self, path: Path, client: str) -> None:
        self._file: TextIO = path.open("a", buffering=1)
        self._client = client

    def write(self, event: str, identity: str, **more: Any) -> None:
        """One event, now."""
        line = {"t": time.monotonic(), "c": self._client, "e": event, "id": identity, **more}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every event; a line that a kill cut in the middle is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class Counter:
    """Counts events of files that other processes are writing."""

    def __init__(self, event: str = "ok") -> None:
        self._mark = f'"e":"{event}"'
        self._at: dict[Path, int] = {}
        self._rest: dict[Path, str] = {}
        self.count = 0
        self.last = ""

    def poll(self, paths: list[Path]) -> int:
        """Read what was added; the count so far."""
        for path in paths:
            if not path.exists():
                continue
            with path.open(encoding="utf-8") as file:
                file.seek(self._at.get(path, 0))
                text = self._rest.get(path, "") + file.read()
                self._at[path] = file.tell()
            lines = text.split("\n")
            self._rest[path] = lines.pop()
            for line in lines:
                if self._mark in line:
                    self.count += 1
                    self.last = line
        return self.count

    def last_event(self) -> dict[str, Any]:
        """The newest that was counted."""
        found: dict[str, Any] = json.loads(self.last) if self.last else {}
        return found
