"""Archives that `cometmq pipeline archive` has written: what they hold, and the last jobs.

Read from the commit records of a directory, which are never changed. A page reads at most
`RECORDS_MAX` records of an archive, the newest; those read before are in memory.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..pipeline.archive.errors import ArchiveError
from ..pipeline.archive.manifest import Manifest, load
from ..pipeline.archive.names import MANIFESTS, SETTINGS
from .language import said

#: Commit records of an archive: a second of reading at the first look.
RECORDS_MAX = 5_000
_JOBS_SHOWN = 20
_LOG_KIND = "split"
_KEPT = ("kind", "broker", "start", "end")
_KINDS = {"split": said("range of a log"), "write": "write", "batch": said("batch of a stream")}


@dataclass(frozen=True, slots=True)
class Job:
    """One committed unit of work."""

    name: str
    kind: str
    at_ms: int
    rows: int
    bytes: int
    topics: int
    about: dict[str, Any]


@dataclass(slots=True)
class Archive:
    """An archive as its commit records describe it."""

    path: str
    jobs: list[Job] = field(default_factory=list)
    records: int = 0
    problem: str = ""

    @property
    def rows(self) -> int:
        """Rows that the records read have added; those of a compaction count again."""
        return sum(one.rows for one in self.jobs)

    @property
    def bytes(self) -> int:
        """Bytes of the same files."""
        return sum(one.bytes for one in self.jobs)

    @property
    def last(self) -> list[Job]:
        """The newest units of work."""
        return self.jobs[:_JOBS_SHOWN]

    def ranges(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """Return the archived ranges of each log, merged, by broker name."""
        found: dict[str, list[tuple[int, int]]] = {}
        for one in self.jobs:
            if one.about.get("kind") == _LOG_KIND:
                place = int(one.about["start"]), int(one.about["end"])
                found.setdefault(str(one.about["broker"]), []).append(place)
        return [(broker, merged(places)) for broker, places in sorted(found.items())]


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges that touch or overlap as one, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


class Archives:
    """Reads the archives of the command line."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [str(path) for path in paths]
        self._known: dict[tuple[str, str], Job] = {}

    def read(self) -> list[Archive]:
        """Return every archive; one that cannot be read has a problem."""
        return [self._read(path) for path in self._paths]

    def _read(self, path: str) -> Archive:
        found = Archive(path)
        try:
            with os.scandir(os.path.join(path, MANIFESTS)) as entries:
                files = [
                    (entry.stat().st_mtime_ns // 1_000_000, entry.name[:-5])
                    for entry in entries
                    if entry.name.endswith(".json")
                    and entry.name != SETTINGS
                    and not entry.name.startswith(".")
                ]
            found.records = len(files)
            newest = sorted(files, reverse=True)[:RECORDS_MAX]
            jobs = (self._job(path, name, at_ms) for at_ms, name in newest)
            found.jobs = [job for job in jobs if job is not None]
        except (OSError, ArchiveError) as error:
            found.problem = said("{} cannot be read as an archive: {}", path, error)
        return found

    def _job(self, path: str, name: str, at_ms: int) -> Job | None:
        known = self._known.get((path, name))
        if known is None:
            record = load(path, name)
            if record is None:
                return None  # removed by a compaction since the listing
            known = self._known[path, name] = _job_of(record, at_ms)
        return known


def _job_of(record: Manifest, at_ms: int) -> Job:
    kind = str(record.about.get("kind", ""))
    return Job(
        record.name,
        _KINDS.get(kind, kind or "unknown"),
        at_ms,
        record.rows,
        sum(file.bytes for file in record.files),
        len({file.topic for file in record.files}),
        {key: record.about[key] for key in _KEPT if key in record.about},
    )
