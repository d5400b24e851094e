"""The vocabulary of the store's tests: a real store in a directory, and ways to hurt it.

`write`, `reopen`, `kill`, `flip_byte`, `cut_tail`: after LevelDB's log tests. `kill` ends a store
inside this process as SIGKILL would leave its files (nothing is written out, `abort` stays);
`test_kill.py` does it to a real process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.disk import Disk
from cometmq.store.format.record import Message, Record, decode, encode_properties, pack_host
from cometmq.store.format.results import AppendResult, PutStatus, RecoveryReport
from cometmq.store.message_store import MessageStore
from cometmq.store.native_parts import NativeParts
from cometmq.tests.harness.sparse import sparse_bytes
from cometmq.tests.store.heard import Heard

HOST = pack_host("127.0.0.1", 10911)
SEGMENT = 4096
QUEUE_FILE = 400  # 20 units
START_MS = 1_700_000_000_000
LIMIT = 1 << 62


def message(
    body: bytes = b"body",
    topic: str = "TopicTest",
    queue_id: int = 0,
    tags: str = "",
    **fields: Any,
) -> Message:
    properties = encode_properties({"TAGS": tags}) if tags else b""
    values: dict[str, Any] = {
        "properties": properties,
        "born_timestamp_ms": 1,
        "born_host": HOST,
        "store_host": HOST,
    }
    return Message(topic, queue_id, body, **{**values, **fields})


class Kit:
    """One directory and the store that runs in it, with a wall clock that the test moves."""

    make_disk: type[Disk] = Disk
    native: NativeParts = NativeParts()

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.now_ms = START_MS
        self.disk = Disk()
        self.heard = Heard()
        self.options: dict[str, Any] = {
            "mapped_file_size_commit_log": SEGMENT,
            "mapped_file_size_consume_queue": QUEUE_FILE,
            # No checkpoint is saved and no log is flushed behind a test's back.
            "flush_interval_consume_queue": 60_000,
            "flush_interval_commit_log": 60_000,
            **options,
        }
        self.store = self._new()

    def _new(self) -> MessageStore:
        self.disk = self.make_disk()
        config = StoreConfig(str(self.root), **self.options)
        return MessageStore(config, lambda: self.now_ms, self.disk, self.native, self.heard)

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """A new store that is opened and started."""
        report = self.open_only()
        self.store.start()
        return report

    def open_only(self) -> RecoveryReport:
        self.store = self._new()
        return self.store.open()

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> RecoveryReport:
        self.close()
        return self.open()

    def kill(self) -> None:
        """Leave everything as a killed process does: nothing is flushed at the end."""
        store = self.store
        if store._threads._log_flusher is not None and store._threads._queue_flusher is not None:
            store._threads._queue_flusher.stop()
            store._threads._log_flusher._flush = lambda: None  # type: ignore[method-assign]
            store._threads._log_flusher.stop()
        store._release()
        store.gate.close()
        store._opened = False

    # -- use ----------------------------------------------------------------------------------

    def write(self, body: bytes = b"body", **fields: Any) -> AppendResult:
        (result,) = self.store.writer.append_many([message(body, **fields)])
        assert result.status is PutStatus.PUT_OK, (result, self.store.refusal)
        return result

    def write_many(self, count: int, size: int = 100, **fields: Any) -> list[AppendResult]:
        results = [
            self.write(f"{index:06d}".encode().ljust(size, b"."), **fields)
            for index in range(count)
        ]
        self.dispatch()
        return results

    def dispatch(self) -> None:
        while self.store.dispatched_offset < self.store.log_end:
            before = self.store.dispatched_offset
            self.store.writer.dispatch(LIMIT)
            assert self.store.dispatched_offset > before or self.store.refusal, "no progress"
            if self.store.refusal.startswith("The store is read-only"):
                return

    def records(self) -> Iterator[Record]:
        """All records of the log in order, decoded and checked."""
        offset = self.store.log_start
        while offset < self.store.log_end:
            data = self.store.read_log(offset, LIMIT)
            position = 0
            while position < len(data):
                if data[position + 4 : position + 8] == bytes.fromhex("cbd43194"):
                    break
                record = decode(data[position:])
                assert record.physical_offset == offset + position
                yield record
                position += record.size
            offset += len(data)

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records()]

    def queue_bodies(self, topic: str = "TopicTest", queue_id: int = 0) -> list[bytes]:
        offset = self.store.min_offset(topic, queue_id)
        bodies = []
        while offset < self.store.max_offset(topic, queue_id):
            result = self.store.get(topic, queue_id, offset, 32)
            bodies += [decode(stored.data).body for stored in result.records]
            assert result.next_offset > offset
            offset = result.next_offset
        return bodies

    # -- files --------------------------------------------------------------------------------

    def segment_paths(self) -> list[Path]:
        return sorted((self.root / "commitlog").iterdir())

    def log_bytes(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.segment_paths())

    def queue_files(self) -> dict[str, bytes]:
        folder = self.root / "consumequeue"
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def all_files(self) -> dict[str, tuple[int, dict[int, bytes]]]:
        return {
            str(path.relative_to(self.root)): sparse_bytes(path)
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def change(self, offset: int, data: bytes) -> None:
        """Overwrite bytes of the log."""
        size = self.options["mapped_file_size_commit_log"]
        path = self.root / "commitlog" / f"{offset // size * size:020d}"
        with path.open("r+b") as file:
            file.seek(offset % size)
            file.write(data)

    def flip_byte(self, offset: int) -> None:
        size = self.options["mapped_file_size_commit_log"]
        path = self.root / "commitlog" / f"{offset // size * size:020d}"
        self.change(offset, bytes([path.read_bytes()[offset % size] ^ 0xFF]))

    def cut_tail(self, offset: int, end: int) -> None:
        """The bytes [offset, end) were never written."""
        self.change(offset, bytes(end - offset))


def filled(kit: Kit, count: int = 60) -> list[int]:
    """`count` records over several segments and three queues; returns their ends."""
    ends = []
    for index in range(count):
        ends.append(kit.write(f"{index:04d}".encode().ljust(200), queue_id=index % 3, tags="T").end)
    kit.dispatch()
    return ends


def assert_whole(kit: Kit, count: int) -> None:
    """Log and queues hold the first `count` records of `filled`, and the store goes on."""
    expected = [f"{index:04d}".encode().ljust(200) for index in range(count)]
    kit.dispatch()
    assert kit.bodies() == expected
    for queue_id in range(3):
        assert kit.queue_bodies(queue_id=queue_id) == expected[queue_id::3]
        assert kit.store.writer.next_offset("TopicTest", queue_id) == len(expected[queue_id::3])
    tail = kit.log_bytes()[kit.store.log_end - kit.store.log_start :]
    assert tail.strip(b"\0") == b"", "nothing lies behind the end"
