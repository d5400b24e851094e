"""Fuzz targets of files: index, timer log, queue extension, checkpoint, JSON configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from cometmq.broker.metadata.files import GROUPS_TABLE, TOPICS_TABLE
from cometmq.broker.metadata.tables import group_from_json, topic_from_json
from cometmq.broker.offsets.entries import offsets_of
from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import RecordFormatError
from cometmq.store.format.index_file import IndexFile, IndexLayout, guess_layout, read_header
from cometmq.store.format.json_file import ConfigFileError, ConfigSyntaxError, dumps, load, loads
from cometmq.store.format.queue_ext import encode_unit as encode_ext
from cometmq.store.format.queue_ext import walk_units
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.unit import UNIT_BYTES
from cometmq.tests.fuzz.target import Check, target

LAYOUT = IndexLayout(slots=8, entries=16)
TIMER_FILE_BYTES = 10 * UNIT_BYTES + 20
_STEPS_MAX = LAYOUT.entries + 1


@target
def index(directory: Path) -> Iterator[Check]:
    """A lookup in any index file ends after as many steps as the file has entries."""
    path = str(directory / "20260101000000000")

    def check(data: bytes) -> None:
        Path(path).write_bytes(data[: LAYOUT.file_bytes].ljust(LAYOUT.file_bytes, b"\0"))
        header = read_header(path, LAYOUT)
        header.problem(LAYOUT)
        header.follower()
        with IndexFile(path, LAYOUT) as file:
            for hash_ in (0, 1, 7, 12_345, (1 << 31) - 1):
                found = list(islice(file.find(hash_, -(1 << 62), 1 << 62), 2 * _STEPS_MAX))
                assert len(found) <= _STEPS_MAX
            file.entries_at_end(0)
        Path(path).write_bytes(data)
        guess_layout(path)

    yield check


@target
def timer_log(directory: Path) -> Iterator[Check]:
    """A walk over any timer log ends; the units it yields can be read one by one."""
    folder = directory / "timerlog"
    folder.mkdir()

    def check(data: bytes) -> None:
        for number in range(2):
            part = data[number * TIMER_FILE_BYTES :][:TIMER_FILE_BYTES]
            name = f"{number * TIMER_FILE_BYTES:020d}"
            (folder / name).write_bytes(part.ljust(TIMER_FILE_BYTES, b"\0"))
        log = TimerLog(str(folder), TIMER_FILE_BYTES, Disk())
        try:
            assert log.load() == ""
            walked = dict(log.walk())
            for position, unit in walked.items():
                assert log.read(position) == unit
            _read_chains(log, walked)
            _find(log)
        finally:
            log.close()

    yield check


def _read_chains(log: TimerLog, walked: Mapping[int, object]) -> None:
    for last in (*walked, -1, 0, TIMER_FILE_BYTES - 1, 1 << 40):
        try:
            assert len(list(islice(log.chain(last), 100))) < 100
        except RecordFormatError:
            continue


def _find(log: TimerLog) -> None:
    for offset in (0, 100, 1 << 40):
        try:
            log.find(offset)
        except RecordFormatError:
            continue


@target
def queue_ext(_directory: Path) -> Iterator[Check]:
    """The units of an extension file have the bytes they were read from."""

    def check(data: bytes) -> None:
        for position, unit in walk_units(data):
            encoded = encode_ext(unit)
            assert data[position : position + len(encoded)] == encoded
        found = Checkpoint.decode(data)
        assert Checkpoint.decode(found.encode()).physic_msg_timestamp_ms == (
            found.physic_msg_timestamp_ms
        )

    yield check


@target
def json_files(directory: Path) -> Iterator[Check]:
    """A configuration file is read, and written back with the same content, or is unreadable."""
    logging.getLogger("cometmq").setLevel(logging.ERROR)
    path = directory / "topics.json"

    def check(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        try:
            found = loads(text)
        except ConfigSyntaxError:
            return
        assert loads(dumps(found)) == found
        for decode in (_topics, _groups, offsets_of, lambda _: None):
            path.write_text(text, encoding="utf-8")
            try:
                load(path, decode)
            except ConfigFileError:
                continue

    yield check


def _topics(content: dict[object, object]) -> object:
    table: dict[str, object] = content.get(TOPICS_TABLE) or {}  # type: ignore[assignment]
    return [topic_from_json(name, bean) for name, bean in table.items()]  # type: ignore[arg-type]


def _groups(content: dict[object, object]) -> object:
    table: dict[str, object] = content.get(GROUPS_TABLE) or {}  # type: ignore[assignment]
    return [group_from_json(name, bean) for name, bean in table.items()]  # type: ignore[arg-type]
