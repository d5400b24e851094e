"""`cometmq backup restore`: makes store directories from a backup.

A restored store has the log byte for byte: the same message ids, keys, properties, queues and
offsets. Everything else in it is derived from the log by the first start. Every replica of a group
gets the same store, so that any of them can be the leader.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...operations.errors import CliError, Exit
from ...operations.local_cluster import TOKEN_FILE
from ..cluster.shape import NAMESERVERS, REPLICAS_MAX, Member, Shape
from ..config import properties
from .files import Writer, check_space, chunks, new_folder
from .manifest import LOG, MANIFEST, OFFSETS, Manifest, SavedFile, SavedGroup, manifest_of

_MANIFEST_BYTES_MAX = 64 << 20
_OFFSETS_FILE = "consumerOffset.json"

Progress = Callable[[int], None]


def read_manifest(backup: Path) -> Manifest:
    """Return the manifest of a backup. Raises CliError."""
    path = backup / MANIFEST
    try:
        with path.open("rb") as file:
            data = file.read(_MANIFEST_BYTES_MAX + 1)
        if len(data) > _MANIFEST_BYTES_MAX:
            raise ValueError("it is too large")
        return manifest_of(json.loads(data))
    except OSError as error:
        raise CliError(f"{backup} is no backup: {path}: {error.strerror}.", Exit.USAGE) from None
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path} is damaged: {error}.") from None


def verify(backup: Path, manifest: Manifest, progress: Progress) -> None:
    """Compare all files with the manifest. Raises CliError with each that differs."""
    failed = []
    for path, wanted in manifest.files().items():
        try:
            for _ in chunks(backup / path, wanted, progress):
                pass
        except CliError as error:
            failed.append(str(error))
    if failed:
        raise CliError("\n".join(failed))


def total_bytes(groups: Iterable[SavedGroup]) -> int:
    """Return the bytes of the logs."""
    return sum(each.bytes for group in groups for each in group.segments)


@dataclass(frozen=True, slots=True)
class UpDirectory:
    """The data directory of `cometmq up` that is made."""

    path: Path
    replicas: int
    nameservers: int
    token: str

    def members(self, manifest: Manifest) -> list[tuple[SavedGroup, list[Member]]]:
        """Return the groups with their replicas. Raises CliError."""
        shape = Shape(len(manifest.groups), self.replicas, self.nameservers)
        members = list(shape.members())
        names = {member.group for member in members}
        if names != {group.broker for group in manifest.groups}:
            raise CliError(
                f"`cometmq up` runs the groups {', '.join(sorted(names))}, but the backup has"
                f" {', '.join(group.broker for group in manifest.groups)}: restore each store with"
                " --store.",
                Exit.USAGE,
            )
        return [
            (group, [member for member in members if member.group == group.broker])
            for group in manifest.groups
        ]


def restore_up(backup: Path, manifest: Manifest, to: UpDirectory, progress: Progress) -> None:
    """Make a data directory of `cometmq up`: of all groups or, if the backup of one is damaged, of
    none. Raises CliError, which names each damaged group, and OSError."""
    assert to.replicas <= REPLICAS_MAX and to.nameservers in NAMESERVERS
    groups = to.members(manifest)
    with new_folder(to.path) as home:
        check_space(home, sum(_allocated(group) * len(members) for group, members in groups))
        _write_text(home / TOKEN_FILE, to.token + "\n")
        for name in Shape(1, 1, to.nameservers).namesrv_names():
            (home / name).mkdir(mode=0o700)
            _write_text(home / name / "namesrv.conf", properties.dump({"clusterToken": to.token}))
        failed = []
        for group, members in groups:
            for member in members:
                (home / member.name).mkdir(mode=0o700)
                settings = {
                    "brokerClusterName": manifest.cluster,
                    "brokerName": group.broker,
                    "brokerId": str(member.broker_id),
                    "mappedFileSizeCommitLog": str(group.segment_size),
                }
                text = properties.dump(settings, ["A broker restored by cometmq backup."])
                _write_text(home / member.name / "broker.conf", text)
            stores = [home / member.name / "store" for member in members]
            try:
                _write_stores(backup, group, stores, progress)
            except CliError as error:
                failed.append(f"{group.broker}: {error}")
        if failed:
            first = f"Nothing is restored: {len(failed)} of {len(groups)} groups are damaged."
            last = "Repeat the command with their files mended, or restore others with --store."
            raise CliError("\n".join([first, *failed, last]))


def restore_store(backup: Path, group: SavedGroup, store: Path, progress: Progress) -> None:
    """Make one store directory. Raises CliError and OSError."""
    with new_folder(store) as home:
        check_space(home, _allocated(group))
        home.rmdir()
        _write_stores(backup, group, [home], progress)


def _allocated(group: SavedGroup) -> int:
    return len(group.segments) * group.segment_size


def _write_stores(backup: Path, group: SavedGroup, stores: list[Path], progress: Progress) -> None:
    """Write the same store into folders that do not exist yet; the backup is read once."""
    source = backup / group.broker
    offsets = _offsets_text(source / OFFSETS, group)
    for store in stores:
        (store / "commitlog").mkdir(mode=0o700, parents=True)
        (store / "config").mkdir(mode=0o700)
        _write_text(store / "config" / _OFFSETS_FILE, offsets)
    for segment in group.segments:
        with ExitStack() as stack:
            writers = [Writer(store / "commitlog" / segment.file_name) for store in stores]
            for writer in writers:
                stack.callback(writer.close, size=group.segment_size)
            wanted = SavedFile(segment.bytes, segment.crc32)
            for data in chunks(source / LOG / segment.file_name, wanted, progress):
                for writer in writers:
                    writer.write(data)


def _offsets_text(path: Path, group: SavedGroup) -> str:
    """Return `consumerOffset.json` of a store. Raises CliError."""
    from ...broker.offsets.consumer_offsets import ConsumerOffsets

    data = b"".join(chunks(path, group.offsets, lambda _count: None))
    table = ConsumerOffsets(path, lambda: time.time_ns() // 1_000_000)
    try:
        for topic, name, queue_id, offset in _rows(json.loads(data)):
            table.commit(topic, name, queue_id, offset)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path} is damaged: {error}.") from None
    return table.render()


def _rows(document: Any) -> Iterator[tuple[str, str, int, int]]:
    if not isinstance(document, list):
        raise ValueError("it is no list")
    for row in document:
        kinds = [type(value) for value in row] if isinstance(row, list) else []
        if kinds != [str, str, int, int]:
            raise ValueError(f"{row!r} is no consumer offset")
        yield row[0], row[1], row[2], row[3]


def _write_text(path: Path, text: str) -> None:
    writer = Writer(path)
    writer.write(text.encode())
    writer.close()
