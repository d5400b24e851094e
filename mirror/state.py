"""The files of a mirror: `positions.json` (how far each queue is copied), `status.json` (figures
for `cometmq mirror status`), `lock`.

Positions may be older than what was copied, never newer: they are saved after the copies. If the
file is lost, the mirror reads the queues of the target instead.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .copying import Place, Position

_POSITIONS, _STATUS, _LOCK = "positions.json", "status.json", "lock"


class StateError(Exception):
    """The state directory cannot be used."""


@dataclass(slots=True)
class Progress:
    """What a mirror remembers between two runs."""

    source: str = ""
    target: str = ""
    #: Target queue and position by source queue.
    queues: dict[Place, tuple[Place, Position]] = field(default_factory=dict)
    #: Groups that have had consumers in the target, with the first offsets of their retry queues.
    moved: dict[str, list[tuple[Place, int]]] = field(default_factory=dict)


class StateDirectory:
    """Files of one mirror; one process uses them at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def lock(self) -> None:
        """Create the directory and take its lock. Raises StateError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"another mirror uses {self._folder}: stop it") from None
        except OSError as error:
            raise StateError(f"{self._folder} cannot be used: {error.strerror}") from None

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def load(self) -> Progress:
        """Return the saved progress; empty without a file. Raises StateError."""
        path = self._folder / _POSITIONS
        try:
            document = json.loads(path.read_text("utf-8"))
            return Progress(
                document["source"],
                document["target"],
                {
                    Place(*row["from"]): (Place(*row["to"]), Position(**row["position"]))
                    for row in document["queues"]
                },
                {
                    group: [(Place(*place), begin) for place, begin in rows]
                    for group, rows in document["moved"].items()
                },
            )
        except FileNotFoundError:
            return Progress()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{path} cannot be read ({error}). Remove it: the mirror then reads the target"
            ) from None

    def save(self, progress: Progress) -> None:
        """Replace the file of positions. Raises OSError."""
        queues = [
            {
                "from": _listed(source),
                "to": _listed(target),
                "position": asdict(position),
            }
            for source, (target, position) in progress.queues.items()
        ]
        moved = {
            group: [(_listed(place), begin) for place, begin in rows]
            for group, rows in progress.moved.items()
        }
        document = {"source": progress.source, "target": progress.target}
        self._replace(_POSITIONS, {**document, "queues": queues, "moved": moved})

    def save_status(self, status: dict[str, Any]) -> None:
        """Replace the file of figures. Raises OSError."""
        self._replace(_STATUS, status)

    def status(self) -> dict[str, Any]:
        """Return the figures that a mirror saved last. Raises StateError."""
        path = self._folder / _STATUS
        try:
            document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise StateError(f"no mirror has run with the state directory {self._folder}") from None
        except (OSError, ValueError) as error:
            raise StateError(f"{path} cannot be read: {error}") from None
        return document

    def _replace(self, name: str, document: dict[str, Any]) -> None:
        path = self._folder / name
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def _listed(place: Place) -> list[Any]:
    return [place.topic, place.broker, place.queue_id]
