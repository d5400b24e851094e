"""`cometmq backup create`: copies definitions, consumer offsets and logs of a running cluster.

Everything is read through one node, by ReadOffsets and ReadLog of the Admin service. The offsets of
a group are read before its log, and the log at least up to the end on which they rely: a restored
group continues where it was, or a few messages before. Broker groups are saved one after another;
each is the state of its own moment.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from ... import __version__
from ...operations import private_file
from ...operations.broker_groups import BrokerGroups, answers
from ...operations.connection import Connection
from ...operations.errors import CliError
from ...proto import paths, v1
from ...store.format.record_layout import BLANK, MAGIC_BLANK
from ..cluster.definition_files import exported
from ..yaml import yaml_lines
from .files import Writer, check_space, sync_folder
from .manifest import (
    DEFINITIONS,
    LOG,
    MANIFEST,
    OFFSETS,
    Manifest,
    SavedGroup,
    SavedSegment,
    check_group_name,
)

#: Log bytes of one call: a call has a deadline, and a copy of a large log lasts hours.
_RANGE_BYTES = 32 << 20
_RANGE_TIMEOUT_S = 120.0
#: Calls of one range, if the broker is restarted or its leader changes.
_ATTEMPTS = 30
_PAUSE_S = 1.0
#: Longest wait until the end on which the offsets rely is replicated.
_CONFIRM_S = 30.0
_POLL_S = 0.05

Progress = Callable[[int], None]


def save(
    connection: Connection, groups: BrokerGroups, home: Path, progress: Progress
) -> tuple[Manifest, list[str]]:
    """Write a backup of the groups into an existing empty folder; return also why groups are not in
    it. One that fails does not stop the others. Raises CliError if none is saved, and OSError."""
    request = v1.DescribeClusterRequest()
    outcomes = groups.each(paths.DESCRIBE_CLUSTER, request, v1.DescribeClusterResponse)
    described = answers(outcomes)
    failed = [f"{one.broker}: {one.error}" for one in outcomes if one.error is not None]
    document = exported(groups.among([name for name, _ in described]))
    text = "\n".join(yaml_lines(document)) + "\n"
    definitions = Writer(home / DEFINITIONS)
    definitions.write(text.encode())
    saved_definitions = definitions.close()
    created_ms = time.time_ns() // 1_000_000
    saved = []
    for name, _ in described:
        try:
            saved.append(_save_group(connection, name, home, progress))
        except CliError as error:
            failed.append(f"{name}: {error}")
            if name:
                shutil.rmtree(home / name, ignore_errors=True)
    if not saved:
        raise CliError("\n".join(["No broker group was saved.", *failed]))
    manifest = Manifest(
        cluster=described[0][1].cluster,
        created_ms=created_ms,
        version=__version__,
        users=len(document["users"]),
        definitions=saved_definitions,
        groups=tuple(saved),
        complete=not failed,
    )
    last = Writer(home / MANIFEST)
    last.write(json.dumps(manifest.document(), indent=1).encode())
    last.close()
    return manifest, failed


def add(folder: Path, earlier: Manifest, more: Path, found: Manifest) -> Manifest:
    """Move the groups of a backup in `more` into an incomplete one; return its new manifest. Raises
    OSError; a repetition continues."""
    for group in found.groups:
        shutil.rmtree(folder / group.broker, ignore_errors=True)
        (more / group.broker).rename(folder / group.broker)
    sync_folder(folder)
    manifest = replace(
        earlier,
        users=max(earlier.users, found.users),
        groups=(*earlier.groups, *found.groups),
        complete=found.complete,
    )
    private_file.replace(folder / MANIFEST, json.dumps(manifest.document(), indent=1))
    shutil.rmtree(more)
    sync_folder(folder)
    return manifest


def log_bytes(connection: Connection, groups: BrokerGroups) -> int:
    """Return the bytes that the logs of the groups that answer have now."""
    total = 0
    for name in groups.names:
        request = v1.LocateLogRequest(broker=name, topics=["\0"])  # no queues
        try:
            answer = connection.call(paths.LOCATE_LOG, request, v1.LocateLogResponse)
        except CliError:
            continue  # `save` reports it
        total += answer.confirm - answer.log_start
    return total


def _save_group(connection: Connection, name: str, home: Path, progress: Progress) -> SavedGroup:
    first = v1.LocateLogRequest(broker=name, topics=["\0"])
    bounds = connection.call(paths.LOCATE_LOG, first, v1.LocateLogResponse)
    try:
        broker = check_group_name(bounds.broker)
    except ValueError as error:
        raise CliError(f"{error}.") from None
    folder = home / broker
    (folder / LOG).mkdir(mode=0o700, parents=True)
    offsets, needed, size = _offsets(connection, name)
    check_space(home, bounds.confirm - bounds.log_start)
    writer = Writer(folder / OFFSETS)
    writer.write(json.dumps(offsets).encode())
    saved_offsets = writer.close()
    segments = _Segments(folder / LOG, size)
    goal = max(needed, bounds.confirm)
    for at, frames in _log(connection, name, bounds.log_start, goal):
        segments.add(at, frames)
        progress(len(frames))
    return SavedGroup(broker, size, saved_offsets, segments.close())


def _offsets(connection: Connection, name: str) -> tuple[list[list[object]], int, int]:
    """Return the offsets, the end of the log that they need, and the size of a segment."""
    rows: list[list[object]] = []
    needed = size = 0
    request = v1.ReadOffsetsRequest(broker=name)
    parts = connection.stream(paths.READ_OFFSETS, request, v1.OffsetsPart, _RANGE_TIMEOUT_S)
    for part in parts:
        rows += [[each.topic, each.group, each.queue_id, each.offset] for each in part.offsets]
        needed, size = max(needed, part.log_end), part.segment_size
    return rows, needed, size


def _log(connection: Connection, name: str, start: int, goal: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records from `start` to `goal` with their offsets. Raises CliError."""
    request = v1.ReadLogRequest(broker=name, offset=start, at_least=True, whole=True)
    is_first, failures, waited_s = True, 0, 0.0
    while request.offset < goal:
        before = request.offset
        request.end = min(before + _RANGE_BYTES, goal)
        try:
            for answer in connection.stream(
                paths.READ_LOG, request, v1.LogFrames, _RANGE_TIMEOUT_S
            ):
                if crc32(answer.frames) != answer.crc32:
                    raise CliError(f"The records at {answer.offset} were damaged on their way.")
                if answer.frames:
                    yield answer.offset, answer.frames
                request.offset = max(request.offset, answer.next_offset)
                is_first = False
        except CliError:
            failures += 1
            if failures >= _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S)
            continue
        request.at_least = is_first
        if request.offset == before:
            # The goal is not replicated yet.
            waited_s += _POLL_S
            if waited_s > _CONFIRM_S:
                raise CliError(f"The log of {name or 'the broker'} is not replicated up to {goal}.")
            time.sleep(_POLL_S)
        else:
            failures, waited_s = 0, 0.0


class _Segments:
    """Files of one log, cut where the segments of the broker are."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size
        self._writer: Writer | None = None
        self._start = self._end = 0
        self._done: list[SavedSegment] = []

    def add(self, at: int, frames: bytes) -> None:
        """Add records at an offset. Raises CliError if some are missing before them."""
        if self._writer is None:
            if at % self._size:
                raise CliError(f"The log begins at {at}, which is no start of a segment.")
            self._begin(at)
        elif at != self._end:
            if at != self._start + self._size:
                raise CliError(f"Records are missing between {self._end} and {at} of the log.")
            self._finish(is_full=True)
            self._begin(at)
        assert self._writer is not None
        self._writer.write(frames)
        self._end = at + len(frames)
        if self._end > self._start + self._size:
            raise CliError(f"The records at {at} are beyond a segment of {self._size} bytes.")

    def close(self) -> tuple[SavedSegment, ...]:
        """Finish the last file; return all. Raises CliError if there is none."""
        if self._writer is None:
            raise CliError("The log is empty: there is nothing to save.")
        self._finish(is_full=False)
        return tuple(self._done)

    def _begin(self, at: int) -> None:
        self._start = self._end = at
        self._writer = Writer(self._folder / SavedSegment(at, 0, 0).file_name)

    def _finish(self, *, is_full: bool) -> None:
        assert self._writer is not None
        if is_full:  # the blank that ends the segment
            remaining = self._start + self._size - self._end
            self._writer.write(BLANK.pack(remaining, MAGIC_BLANK))
        saved = self._writer.close()
        self._done.append(SavedSegment(self._start, saved.bytes, saved.crc32))
