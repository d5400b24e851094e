"""Where things lie in an archive.

    ROOT/topic=NAME/dt=2026-11-22/FILE.parquet    rows, as Hive, Spark, PyArrow and DuckDB lay them out
    ROOT/_manifest/NAME.json                      commit records (manifest.py)
    ROOT/_manifest/archive.json                   what holds for the whole archive
    ROOT/_staging/NAME~TOKEN/...                  files that no commit record names yet

Names that begin with an underscore are passed over by every reader of such a tree. Topics are
percent-encoded, as those readers expect; a name that is too long for a folder (retry topics of very long
groups) is cut and ends in its checksum: the whole of it stands in the file's metadata. Everything is derived from names: losing `_staging` costs the
work under way, losing `_manifest` costs the proof of what is there.
"""

import os
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

MANIFESTS: Final = "_manifest"
STAGING: Final = "_staging"
SETTINGS: Final = "archive.json"
LOCK: Final = ".lock"
#: Between the name of a unit of work and the token of one try at it.
ATTEMPT_MARK: Final = "~"
_MS_PER_DAY: Final = 86_400_000
#: A name of a folder has 255 bytes at most; of those `topic=` takes six.
_NAME_MAX: Final = 240
_BYTES_KEPT: Final = 70


def escaped(name: str) -> str:
    """A name as a part of a path: letters, digits, `_` and `-` stay."""
    return quote(name, safe="").replace("~", "%7E").replace(".", "%2E")


def folder_of(topic: str, day: int) -> str:
    """Relative folder of a topic's rows of one day, counted from 1970-01-01 UTC."""
    name = escaped(topic)
    if len(name) > _NAME_MAX:
        begin = escaped(topic.encode()[:_BYTES_KEPT].decode(errors="ignore"))
        name = f"{begin}{ATTEMPT_MARK}{zlib.crc32(topic.encode()):08x}"
    return f"topic={name}/dt={date_of(day)}"


def date_of(day: int) -> str:
    """`2026-11-22` of a number of days."""
    return datetime.fromtimestamp(day * _MS_PER_DAY // 1000, UTC).strftime("%Y-%m-%d")


def day_of(path: str) -> str:
    """The date of a file by its relative path."""
    return path.split("/", 2)[1].removeprefix("dt=")


def split_name(broker: str, base: int, position: int) -> str:
    """Name of the unit of work that archives a segment's bytes from `position` on."""
    return f"{escaped(broker)}.{base:020d}-{position:010d}"


def manifest_path(root: str, name: str) -> str:
    """Where the commit record of a unit of work lies."""
    return os.path.join(root, MANIFESTS, f"{name}.json")


def staging_folder(name: str, token: str) -> str:
    """Relative folder of one try at a unit of work."""
    return f"{STAGING}/{name}{ATTEMPT_MARK}{token}"


def sync_folder(path: str | Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
