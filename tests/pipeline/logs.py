"""Logs for the pipeline tests: records written with the codec, and a live broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cometmq.pipeline.decode import decode
from cometmq.pipeline.schema import COLUMNS
from cometmq.pipeline.splits import plan
from cometmq.store.format.record import Message, encode, encode_properties
from cometmq.store.format.record_layout import (
    BLANK,
    MAGIC_BLANK,
    UNIT,
)
from cometmq.tests.broker.live import Live, running, settings

SEGMENT = 1 << 16
BORN_MS = 1_700_000_000_000


def message(number: int, topic: str = "t", queue: int = 0, **fields: Any) -> Message:
    """Return a message whose content has its number."""
    body = fields.pop("body", f"body-{number}".encode())
    properties = fields.pop("properties", None)
    if properties is None:
        properties = encode_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": f"T{number % 3}"})
    return Message(topic, queue, body, properties, born_timestamp_ms=BORN_MS + number, **fields)


@dataclass(slots=True)
class MadeLog:
    """A store directory of segments and consume queues, written without a broker."""

    root: Path
    segment: int = SEGMENT
    end: int = 0
    base: int = 0
    later_ms: int = 0  # added to store times: one message a millisecond otherwise
    data: bytearray = field(default_factory=bytearray)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)

    def append(self, *messages: Message) -> MadeLog:
        """Append records."""
        for one in messages:
            units = self.queues.setdefault((one.topic, one.queue_id), [])
            stored_ms = BORN_MS + 1_000 + len(self.starts) + self.later_ms
            record = encode(one, len(units), self.end, stored_ms)
            if len(self.data) + len(record) + 8 > self.segment:
                self.roll()
                record = encode(one, len(units), self.end, stored_ms)
            units.append(UNIT.pack(self.end, len(record), 0))
            self.starts.append(self.end)
            self.data += record
            self.end += len(record)
        self.save()
        return self

    def roll(self) -> None:
        """End the segment with a blank."""
        left = self.segment - len(self.data)
        self.data += BLANK.pack(left, MAGIC_BLANK)
        self.save()
        self.base += self.segment
        self.end = self.base
        self.data = bytearray()

    def save(self) -> None:
        folder = self.root / "commitlog"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.base:020d}").write_bytes(bytes(self.data).ljust(self.segment, b"\0"))
        for (topic, queue), units in self.queues.items():
            path = self.root / "consumequeue" / topic / str(queue)
            path.mkdir(parents=True, exist_ok=True)
            (path / f"{0:020d}").write_bytes(b"".join(units).ljust(20 * 4096, b"\0"))

    def change(self, offset: int, data: bytes) -> None:
        """Overwrite bytes of the log."""
        path = self.root / "commitlog" / f"{offset // self.segment * self.segment:020d}"
        with path.open("r+b") as file:
            file.seek(offset % self.segment)
            file.write(data)


def rows(
    root: Path, split_bytes: int = 1 << 30, columns: Sequence[str] = COLUMNS, **options: Any
) -> list[dict[str, Any]]:
    """Return every row of a store, decoded split by split."""
    found: list[dict[str, Any]] = []
    for split in plan([str(root)], split_bytes):
        for batch in decode(split, columns, **options):
            found += batch.to_pylist()
    return found


@contextmanager
def live_broker(directory: Path, segment: int = 1 << 20, **broker: Any) -> Iterator[Live]:
    """Run a broker on an event loop in another thread, for blocking callers."""
    chosen = settings(directory, **broker)
    chosen = replace(chosen, store=replace(chosen.store, mapped_file_size_commit_log=segment))
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    found: list[Live] = []
    failed: list[BaseException] = []
    ended = asyncio.Event()

    async def serve() -> None:
        async with running(chosen) as live:
            found.append(live)
            ready.set()
            await ended.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(60)
    if not found:
        raise RuntimeError(f"the broker did not start: {failed}")
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
