"""Frames recorded between real clients and Apache RocketMQ 5.5.0: formats/golden/remoting."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cometmq.remoting.command import Command

FOLDER = Path(__file__).parents[1] / "formats" / "golden" / "remoting"


@dataclass(frozen=True)
class Recorded:
    """One frame of a recording."""

    #: `namesrv`, `broker` or `vip`.
    server: str
    connection: int
    from_client: bool
    command: Command
    #: Header as it was on the wire, where the recording has it.
    header: bytes | None


def scenarios() -> list[str]:
    """Return the names of all recordings."""
    return sorted(file.name.removesuffix(".jsonl.gz") for file in FOLDER.iterdir())


@dataclass(frozen=True)
class Closed:
    """The end of a connection."""

    connection: int


def events(scenario: str) -> Iterator[Recorded | Closed]:
    """Yield the frames of a recording and the ends of its connections in their order."""
    with gzip.open(FOLDER / f"{scenario}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            found = json.loads(line)
            if "event" not in found:
                yield _recorded(found)
            elif found["event"] == "close":
                yield Closed(found["conn"])


def frames(scenario: str) -> Iterator[Recorded]:
    """Yield the frames of a recording in their order."""
    return (each for each in events(scenario) if isinstance(each, Recorded))


def _recorded(found: dict[str, Any]) -> Recorded:
    header = found.get("headerBytes")
    command = Command(
        found["code"],
        found["extFields"] or {},
        base64.b64decode(found.get("body", "")),
        found["flag"],
        found["opaque"],
        found["remark"],
        found["language"],
        found["version"],
        found["header"] == "ROCKETMQ",
    )
    return Recorded(
        found["server"],
        found["conn"],
        found["dir"] == "c2s",
        command,
        None if header is None else base64.b64decode(header),
    )
