"""A store that loses messages, and streams that read it by files and by the broker's handlers.

The store is a real one. `endpoints` is served by the real handlers of ReadLog and LocateLog, called
without a network, so that a restart of the broker costs nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from cometmq.broker.admin.read_log import LogReads
from cometmq.client.transport.addresses import parse_endpoints
from cometmq.front.clock import Clock
from cometmq.pipeline.errors import DataLossError
from cometmq.pipeline.source.channel import Channel, NotServedError
from cometmq.pipeline.source.options import parse
from cometmq.pipeline.source.stream import LogStreamReader
from cometmq.proto import paths
from cometmq.proto.errors import WireError
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.properties import encode_properties
from cometmq.store.format.record import Message
from cometmq.store.message_store import MessageStore
from cometmq.tests.store.retention_kit import rounds

SEGMENT = 4096
BEGIN_MS = 1_795_000_000_000
BROKER = "broker-a"
_BODY = b"x" * 900
#: Forms of a report: of a queue, of a part of the log, and of a log that was replaced.
_OF_QUEUE = re.compile(
    r"[Qq]ueue (\d+) of (\w+) \(broker-a\)[^:]*: messages (\d+) to (\d+) are (?:lost|not those)"
)
_REQUESTED = re.compile(
    r"Messages (\d+) to (\d+) of queue (\d+) of (\w+) \(broker-a\) were requested; the queue has "
    r"(\d+) to (\d+)"
)
_OF_LOG = re.compile(r"offsets (\d+) (?:and|to) (\d+)(?: before|: it was deleted| were read)")
_GONE = re.compile(r"Queue (\d+) of (\w+) \(broker-a\) is gone.* from (\d+) on are lost")
_REPLACED = "is not the one of the checkpoint"


@dataclass(frozen=True, slots=True)
class Sent:
    """An accepted message and where it was stored."""

    number: int
    topic: str
    queue: int
    offset: int
    position: int


@dataclass(slots=True)
class LossyStore:
    """A store at a fixed path, with everything that it has accepted."""

    root: Path
    now_ms: int = BEGIN_MS
    sent: list[Sent] = field(default_factory=list)
    there: list[Sent] = field(default_factory=list)  # of the present log, also what expired
    _copies: dict[str, tuple[Path, list[Sent]]] = field(default_factory=dict)
    _flushed: int = 0
    store: MessageStore = field(init=False)

    def __post_init__(self) -> None:
        self._open()

    def close(self) -> None:
        self.store.close()

    def send(self, topic: str = "t", count: int = 1, queues: int = 2) -> None:
        """Send messages to the queues in turn."""
        messages = []
        for number in range(len(self.sent), len(self.sent) + count):
            properties = encode_properties({"UNIQ_KEY": f"{number:032X}"})
            messages.append(Message(topic, number % queues, _BODY, properties))
        for message, result in zip(messages, self.store.writer.append_many(messages), strict=True):
            assert result.status.name == "PUT_OK", result
            place = (result.queue_offset, result.physical_offset)
            one = Sent(len(self.sent), topic, message.queue_id, *place)
            self.sent.append(one)
            self.there.append(one)
        self._dispatch()
        self.now_ms += 1

    def expire(self, segments: int = 1) -> None:
        """Let retention delete the first segments, all but the last at most."""
        store = self.store
        assert store._threads._log_flusher is not None
        store._threads._log_flusher.wait(store.log_end)
        self._flushed = store.log_end
        for segment in store.log.segments[:-1][:segments]:
            os.utime(segment.path, (0, 0))
        rounds(store, now_ms=Clock().machine_ms())
        while store.queue_table.trimmed_to < store.log_start:
            store.queue_table.trim(store.log_start)

    def back_up(self, name: str = "backup") -> None:
        """Copy the store, as a snapshot of its disk or a follower does."""
        copy = self.root.with_name(name)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.root, copy)
        self._copies[name] = copy, list(self.there)

    def restore(self, name: str = "backup") -> None:
        """Replace the store by a copy."""
        copy, there = self._copies[name]
        self._replace(copy)
        self.there = list(there)

    def crash(self) -> None:
        """Kill the broker; nothing that it wrote is lost."""
        self.back_up("crashed")
        self.restore("crashed")

    def tear(self, name: str) -> None:
        """Take the last record of a copy from its log, if it was not flushed."""
        copy, there = self._copies[name]
        last = there[-1] if there else None
        if last is None or last.position % SEGMENT == 0 or last.position < self._flushed:
            return
        base = last.position // SEGMENT * SEGMENT
        with (copy / "commitlog" / f"{base:020d}").open("r+b") as file:
            file.seek(last.position - base)
            file.write(bytes(SEGMENT - (last.position - base)))
        self._copies[name] = copy, there[:-1]

    def hide(self, topic: str) -> set[int]:
        """Delete a topic and create it again: its old messages are hidden from readers of the
        broker. Return them."""
        for name, queue in list(self.store.queues()):
            if name == topic:
                self.store.queue_table.hide_below(name, queue, self.store.max_offset(name, queue))
        return {one.number for one in self.there if one.topic == topic}

    def remove_expired(self, topic: str) -> set[int]:
        """Remove the queues of a deleted topic whose messages have expired; return the messages."""
        removed = {
            queue
            for name, queue in list(self.store.queues())
            if name == topic and self.store.removal.remove_expired([(name, queue)])
        }
        return {one.number for one in self.there if one.topic == topic and one.queue in removed}

    def readable(self) -> set[int]:
        """Return the messages that have not expired."""
        start = self.store.log_start
        return {one.number for one in self.there if one.position >= start}

    def first_position(self) -> int:
        """Return the first physical offset of the log."""
        return self.store.log_start

    def _replace(self, copy: Path) -> None:
        self.store.close()
        shutil.rmtree(self.root)
        shutil.copytree(copy, self.root)
        self.now_ms += 1
        self._open()

    def _open(self) -> None:
        config = StoreConfig(
            store_path_root_dir=str(self.root),
            mapped_file_size_commit_log=SEGMENT,
            mapped_file_size_consume_queue=6000,
            max_hash_slot_num=200,
            max_index_num=800,
            delete_commit_log_files_interval=0,
            flush_interval_commit_log=600_000,  # only `expire` and a clean stop flush
        )
        self.store = MessageStore(config, lambda: self.now_ms)
        self.store.open()
        self.store.start()
        self._flushed = self.store.log_end
        self._dispatch()

    def _dispatch(self) -> None:
        while self.store.dispatched_offset < self.store.log_end:
            self.store.writer.dispatch(self.store.log_end)
        self.store.queue_table.write_out()


class HandlerChannel(Channel):
    """A channel whose calls are calls of the handlers of a store's broker."""

    world: LossyStore

    def __init__(self, *_: object) -> None:
        self.target = parse_endpoints("127.0.0.1:1")

    def close(self) -> None:
        """Nothing to close."""

    def call(self, path: str, request: Any, answer: type[Any]) -> Any:
        if path != paths.LOCATE_LOG:
            raise NotServedError(path)
        try:
            return run(self._reads().locate_log(request, None))  # type: ignore[arg-type]
        except WireError as error:
            return self._checked(path, answer(code=error.code, message=error.message))

    def stream(self, path: str, request: Any, answer: type[Any]) -> Iterator[Any]:
        assert path == paths.READ_LOG
        answers = self._reads().read_log(request, None)  # type: ignore[arg-type]
        while True:
            try:
                yield run(anext(answers))  # type: ignore[arg-type]
            except StopAsyncIteration:
                return
            except WireError as error:
                self._checked(path, answer(code=error.code, message=error.message))

    def _reads(self) -> LogReads:
        store = self.world.store
        pump = SimpleNamespace(readable_limit=lambda: store.log_end, catch_up=lambda: None)
        cluster = SimpleNamespace(groups={BROKER: None})
        return LogReads(BROKER, Clock(), store, cluster, pump, offsets=None)  # type: ignore[arg-type]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing but its next turn."""
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        return done.value


@dataclass(slots=True)
class Query:
    """A streaming query: the checkpoint as Spark keeps it, and the rows of committed batches."""

    world: LossyStore
    source: str  # path or endpoints
    options: dict[str, str] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    checkpoint: dict[str, Any] | None = None
    pending: dict[str, Any] | None = None  # the end of a batch that was planned and not committed
    reader: LogStreamReader | None = None
    known: set[int] = field(default_factory=set)  # in the log when the last batch was planned
    plans: int = 0
    form: type[LogStreamReader] = LogStreamReader  # StreamReaderWithoutStart: of Spark 4.0 and 4.1

    def start(self) -> LogStreamReader:
        """Return the running reader, or start one, as after a kill of the driver."""
        if self.reader is None:
            where = {"path": str(self.world.root), "brokerName": BROKER}
            if self.source == "endpoints":
                where = {"endpoints": "127.0.0.1:1", "wireTimeoutMs": "1"}
            given = {"startingOffsets": "earliest", "subscribe": "t,u", **where, **self.options}
            self.reader = self.form(parse(given))
            if self.checkpoint is None:
                self.checkpoint = stored(self.reader.initialOffset())
                self._know()
        return self.reader

    def kill(self) -> None:
        """Kill the driver."""
        if self.reader is not None:
            self.reader.stop()
        self.reader = None

    def restart(self, **options: str) -> None:
        """Start the query again with other options, at the next step."""
        self.kill()
        self.options = options

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Plan the next batch and store its end. Whether there is one. Raises DataLossError."""
        reader = self.start()
        assert self.checkpoint is not None
        if self.pending is None:
            end = stored(reader.latestOffset(self.checkpoint, limit or ReadAllAvailable()))
            if end != self.checkpoint:
                self.pending = end
                self._know()
        return self.pending is not None

    def batch(
        self, limit: ReadLimit | None = None, between: Callable[[], None] = lambda: None
    ) -> list[int]:
        """Run one batch and return its new rows; `between` planning and reading something else
        happens. Raises DataLossError."""
        if not self.plan(limit):
            return []
        reader = self.start()
        assert self.checkpoint is not None
        assert self.pending is not None
        found: list[int] = []
        parts = reader.partitions(self.checkpoint, self.pending)
        between()
        for part in parts:
            for rows in reader.read(part):
                found += [int(row["msgId"], 16) for row in rows.to_pylist()]
        self.rows += found
        self.checkpoint, self.pending = self.pending, None
        return found

    def _know(self) -> None:
        self.known = {one.number for one in self.world.there}
        self.plans += 1

    def drain(self) -> list[int]:
        """Run batches until there is nothing new."""
        found: list[int] = []
        while self.plan():
            found += self.batch()
        return found

    def is_reported(self, one: Sent) -> bool:
        """Whether a report covers a message. That a log was replaced covers what it lacks."""
        is_there = one in self.world.there
        return any(
            _covers(report, one) or (_REPLACED in report and not is_there)
            for report in self.reports
        )


def stored(document: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint as Spark reads it back."""
    found: dict[str, Any] = json.loads(json.dumps(document))
    return found


def _covers(report: str, one: Sent) -> bool:
    mine = (one.topic, one.queue)
    queues = [(t, int(q), int(a), int(b)) for q, t, a, b in _OF_QUEUE.findall(report)]
    for start, end, queue, topic, first, last in _REQUESTED.findall(report):
        queues.append((topic, int(queue), int(start), min(int(end), int(first))))
        queues.append((topic, int(queue), max(int(start), int(last)), int(end)))
    queues += [(t, int(q), int(a), 1 << 62) for q, t, a in _GONE.findall(report)]
    logs = [(int(a), int(b)) for a, b in _OF_LOG.findall(report)]
    return any((t, q) == mine and a <= one.offset < b for t, q, a, b in queues) or any(
        a <= one.position < b for a, b in logs
    )


__all__ = ["DataLossError", "HandlerChannel", "LossyStore", "Query"]
