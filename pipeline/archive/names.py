"""Paths in an archive.

    ROOT/topic=NAME/dt=2026-11-22/FILE.parquet    rows, in the Hive layout
    ROOT/_manifest/NAME.json                      commit records (manifest.py)
    ROOT/_manifest/archive.json                   settings of the archive (settings.py)
    ROOT/_staging/NAME~TOKEN/...                  files of uncommitted units

Readers of the Hive layout (Spark, PyArrow, DuckDB) ignore names that begin with an underscore, and
expect percent-encoded topics. A name too long for a folder (retry topics of long group names) is
truncated and ends in its checksum; the file's metadata has the full name. Losing `_staging` loses
the work in progress; losing `_manifest` loses the record of what is archived.
"""

import os
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ...store.format.layout import check_name

MANIFESTS: Final = "_manifest"
STAGING: Final = "_staging"
SETTINGS: Final = "archive.json"
LOCK: Final = ".lock"
#: Separates the name of a unit of work from the token of an attempt.
ATTEMPT_MARK: Final = "~"
_MS_PER_DAY: Final = 86_400_000
#: A folder name has at most 255 bytes, of which `topic=` takes six.
_NAME_MAX: Final = 240
_BYTES_KEPT: Final = 70


def escaped(name: str) -> str:
    """Percent-encode a name for a path; letters, digits, `_` and `-` stay."""
    return quote(name, safe="").replace("~", "%7E").replace(".", "%2E")


def folder_of(topic: str, day: int) -> str:
    """Return the relative folder of a topic and day (days since 1970-01-01 UTC)."""
    name = escaped(topic)
    if len(name) > _NAME_MAX:
        begin = escaped(topic.encode()[:_BYTES_KEPT].decode(errors="ignore"))
        name = f"{begin}{ATTEMPT_MARK}{zlib.crc32(topic.encode()):08x}"
    return f"topic={name}/dt={date_of(day)}"


def date_of(day: int) -> str:
    """Return a number of days as `2026-11-22`."""
    return datetime.fromtimestamp(day * _MS_PER_DAY // 1000, UTC).strftime("%Y-%m-%d")


def day_of(path: str) -> str:
    """Return the date in a file's relative path."""
    return path.split("/", 2)[1].removeprefix("dt=")


def split_name(broker: str, base: int, position: int) -> str:
    """Return the name of the unit of work that archives a segment from `position` on."""
    return f"{escaped(broker)}.{base:020d}-{position:010d}"


def manifest_path(root: str, name: str) -> str:
    """Return the path of a unit's commit record."""
    return os.path.join(root, MANIFESTS, f"{name}.json")


def check_relative(path: str) -> str:
    """Return a path of a commit record. Raises ValueError for one that leaves the archive."""
    for part in path.split("/"):
        check_name(part, f"part of the path {path[:80]!r}")
    return path


def staging_folder(name: str, token: str) -> str:
    """Return the relative staging folder of one attempt at a unit of work."""
    return f"{STAGING}/{name}{ATTEMPT_MARK}{token}"


def sync_folder(path: str | Path) -> None:
    """Make the directory entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
