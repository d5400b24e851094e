"""The manifest of a backup: what it holds, with sizes and checksums. Pure.

    BACKUP/manifest.json            this document; written last
    BACKUP/definitions.yaml         topics, groups, users, quotas, for readers and `cluster apply`
    BACKUP/GROUP/offsets.json       rows of topic, consumer group, queue id, offset
    BACKUP/GROUP/log/<20 digits>    its commit log by segments, from the first byte of the segment
                                    named so to the end of its last record, or of its blank

The log of a group holds its messages, topics, consumer groups, users (with encrypted secret keys),
quotas, timers, transactions and the journal of pops; with the consumer offsets it is all that a new
replica gets. Paths are made from the names of groups and from numbers, which are checked here: a
manifest is input from outside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

FORMAT = 1
MANIFEST = "manifest.json"
DEFINITIONS = "definitions.yaml"
OFFSETS = "offsets.json"
LOG = "log"
#: Broker groups of a backup: more than a cluster has.
GROUPS_MAX = 1_000
_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}")
_NUMBER_MAX = 2**63 - 1
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a backup."""

    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class SavedSegment:
    """A segment of a log; `start` is the offset of its first byte, and its name."""

    start: int
    bytes: int
    crc32: int

    @property
    def file_name(self) -> str:
        """The name of the file, here and in a store directory."""
        return f"{self.start:0{_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class SavedGroup:
    """A broker group of a backup."""

    broker: str
    segment_size: int
    offsets: SavedFile
    segments: tuple[SavedSegment, ...]

    @property
    def log_end(self) -> int:
        """The end of the saved log."""
        last = self.segments[-1]
        return last.start + last.bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole backup."""

    #: The brokerClusterName: names of system topics contain it.
    cluster: str
    created_ms: int
    version: str
    #: Users in the log, whose secret keys are encrypted.
    users: int
    definitions: SavedFile
    groups: tuple[SavedGroup, ...]
    #: Whether every broker group of the cluster was saved.
    complete: bool = True

    def files(self) -> dict[PurePosixPath, SavedFile]:
        """Return every other file of the backup, by its path in it."""
        found = {PurePosixPath(DEFINITIONS): self.definitions}
        for group in self.groups:
            home = PurePosixPath(group.broker)
            found[home / OFFSETS] = group.offsets
            for each in group.segments:
                found[home / LOG / each.file_name] = SavedFile(each.bytes, each.crc32)
        return found

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"format": FORMAT, **asdict(self)}


def manifest_of(document: Any) -> Manifest:
    """Return the manifest of a document. Raises ValueError."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ValueError(f"it is not a manifest of format {FORMAT}")
    groups = _list(document, "groups")
    if not 0 < len(groups) <= GROUPS_MAX:
        raise ValueError(f"a backup has 1 to {GROUPS_MAX} groups, not {len(groups)}")
    found = Manifest(
        cluster=_name(document, "cluster"),
        created_ms=_number(document, "created_ms"),
        version=str(document.get("version", "")),
        users=_number(document, "users"),
        definitions=_file(document, "definitions"),
        groups=tuple(map(_group, groups)),
        complete=document.get("complete", True) is True,
    )
    names = [group.broker for group in found.groups]
    if len(set(names)) < len(names):
        raise ValueError("a group is twice in it")
    return found


def check_group_name(name: str) -> str:
    """Return a name that is safe as a folder. Raises ValueError."""
    if not _GROUP_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a broker group that can be a folder")
    return name


def _group(document: Any) -> SavedGroup:
    if not isinstance(document, Mapping):
        raise ValueError("a group is no mapping")
    size = _number(document, "segment_size")
    segments = tuple(_segment(each, size) for each in _list(document, "segments"))
    if not segments:
        raise ValueError("a group has no segments")
    for before, after in pairwise(segments):
        if before.start + before.bytes > after.start:
            raise ValueError(f"segment {after.file_name} begins inside the one before it")
        if after.start != before.start + size:
            raise ValueError(f"a segment is missing before {after.file_name}")
    return SavedGroup(_name(document, "broker"), size, _file(document, "offsets"), segments)


def _segment(document: Any, size: int) -> SavedSegment:
    if not isinstance(document, Mapping):
        raise ValueError("a segment is no mapping")
    start = _number(document, "start")
    found = SavedSegment(start, _number(document, "bytes"), _number(document, "crc32"))
    if not size or start % size or found.bytes > size:
        raise ValueError(f"segment {found.file_name} does not fit segments of {size} bytes")
    return found


def _list(document: Mapping[Any, Any], name: str) -> Sequence[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise ValueError(f"'{name}' is no list")
    return value


def _name(document: Mapping[Any, Any], name: str) -> str:
    return check_group_name(str(document.get(name)))


def _file(document: Mapping[Any, Any], name: str) -> SavedFile:
    value = document.get(name)
    if not isinstance(value, Mapping):
        raise ValueError(f"'{name}' is no mapping")
    return SavedFile(_number(value, "bytes"), _number(value, "crc32"))


def _number(document: Mapping[Any, Any], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"'{name}' is no number")
    return value
