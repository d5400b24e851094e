"""Histories of drill clients: one JSON line per event, flushed to the kernel at once.

Senders write `invoke`, then `ok`, `fail` (refused: nothing was written) or `unknown`; consumers
write `got` and `done`. Keys: t (monotonic seconds, comparable between processes of one machine), c
(client), e (event), id, and if known group and seq (the acknowledged order), offset, broker (the
dialled address), why. The checker reads only these files, the replicas' logs and the events of the
drill. Imports no module of the project, because the official client's process uses it as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


class History:
    """A writer of events."""

    def __init__(self, path: Path, client: str) -> None:
        self._file: TextIO = path.open("a", buffering=1)
        self._client = client

    def write(self, event: str, identity: str, **more: Any) -> None:
        """Write one event with the current time."""
        line = {"t": time.monotonic(), "c": self._client, "e": event, "id": identity, **more}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Return every event; an incomplete last line is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class Counter:
    """A counter of events in files that other processes write."""

    def __init__(self, event: str = "ok") -> None:
        self._mark = f'"e":"{event}"'
        self._at: dict[Path, int] = {}
        self._rest: dict[Path, str] = {}
        self.count = 0
        self.last = ""

    def poll(self, paths: list[Path]) -> int:
        """Read new lines; return the count so far."""
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
        """Return the newest counted event."""
        found: dict[str, Any] = json.loads(self.last) if self.last else {}
        return found
