"""Job replay: sends messages of an archive or a store to a topic.

    replay(spark, ReplayPlan(archive="/archive", topic="orders", to="orders-again",
                             endpoints="127.0.0.1:8081", rate=5000))

Body, tags, keys, properties, message group and priority are those of the original. Properties
`replay-...` have its origin (topic, broker, queue, offset, id, times). The unique key is derived
from the replay's identity and the physical offset: a broker with `messageDeduplicationEnable`
stores a message once although a task is repeated; without it a message may be stored twice.
Prepared and rolled-back messages are left out; messages without a body, which brokers refuse, are
left out and counted. With `keep_order` a task sends one queue in order; messages with message
groups require it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ...client.identity import unique_key
from ...client.transport.tls import Tls
from ..archive.manifest import FileEntry, all_manifests, files_of
from ..archive.names import day_of
from ..archive.planning import grid_splits, snapshot
from ..archive.reading import NO_TIME, Selection, files, matching, queues, rows
from ..bulk import SendTarget, Sent, send_all
from ..errors import PipelineError
from ..outbound import ORIGIN, SHARDING_KEY
from ..selection import TopicFilter
from ..source.named_topics import suggestion
from ..source.store_topics import topics_of
from ..splits import SPLIT_BYTES, Split
from .running import Report, run_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ...client.outgoing import Outgoing

_COLUMNS: Final = (
    *("topic", "queueId", "queueOffset", "brokerName", "msgId", "tags", "keys", "body"),
    *("properties", "sysFlag", "bornTimestamp", "storeTimestamp", "physicalOffset"),
)
#: Transaction bits of the system flag, and their values for prepared and rolled-back messages.
_TRANSACTION: Final = 0xC
_NOT_DELIVERED: Final = (0x4, 0xC)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Selection of messages and destination. Exactly one of `archive` and `store`."""

    topic: str
    to: str
    endpoints: str
    archive: str = ""
    store: str = ""
    broker: str = ""
    queue_id: int = -1
    start_ms: int = 0
    end_ms: int = NO_TIME
    rate: float = 0.0  #: messages per second of all tasks
    keep_order: bool = False
    identity: str = ""  #: identity of this replay; empty: derived from topics and range
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: Tls | None = None

    @property
    def selection(self) -> Selection:
        """Selection of rows."""
        return Selection(self.topic, self.start_ms, self.end_ms, self.broker, self.queue_id)


@dataclass(frozen=True, slots=True)
class ReplayPart:
    """Work of one task: files or ranges of the log, of one queue or of all."""

    root: str
    files: tuple[FileEntry, ...]
    splits: tuple[Split, ...]
    selection: Selection
    target: SendTarget
    to: str
    identity: str
    keep_order: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class ReplayDone:
    """Counts of one task."""

    found: int
    sent: Sent


def replay(
    spark: SparkSession | None, plan: ReplayPlan, *, dry_run: bool = False, tasks: int = 1
) -> Report:
    """Send the selected messages. `tasks`: concurrent tasks, which share the rate.

    Raises PipelineError.
    """
    if bool(plan.archive) == bool(plan.store):
        raise PipelineError("Name either an archive or a store to replay from.")
    if plan.rate < 0:
        raise PipelineError(f"The rate must be 0 or more, not {plan.rate}.")
    parts = _parts(plan, dry_run)
    rate = plan.rate / max(min(tasks, len(parts)), 1)
    parts = [replace(part, target=replace(part.target, rate=rate)) for part in parts]
    done = run_parts(spark, parts, replay_part, "replay")
    summary = {
        "topic": plan.topic,
        "to": plan.to,
        "dry_run": dry_run,
        "tasks": len(parts),
        "messages": sum(one.found for one in done),
        "sent": sum(one.sent.messages for one in done),
        "bytes": sum(one.sent.bytes for one in done),
        "left_out": sum(one.sent.left_out for one in done),
    }
    by_day: dict[str, int] = {}
    for part, one in zip(parts, done, strict=True):
        for file in part.files[:1]:
            by_day[day_of(file.path)] = by_day.get(day_of(file.path), 0) + one.found
    rows = [{"day": day, "messages": count} for day, count in sorted(by_day.items())]
    return Report("replay", summary, rows)


def _parts(plan: ReplayPlan, dry_run: bool) -> list[ReplayPart]:
    identity = plan.identity or unique_key(plan.topic, plan.to, plan.start_ms, plan.end_ms)
    target = SendTarget(plan.endpoints, plan.access_key, plan.secret_key, tls=plan.tls)
    root = os.path.abspath(plan.archive) if plan.archive else ""
    chosen = plan.selection
    empty = ReplayPart(root, (), (), chosen, target, plan.to, identity, plan.keep_order, dry_run)
    if root:
        found = tuple(files(root, chosen))
        if not found:
            _check_topic(plan, root, {file.topic for file in files_of(all_manifests(root))})
        if not plan.keep_order:
            return [replace(empty, files=(file,)) for file in found]
        return [
            replace(empty, files=found, selection=replace(chosen, broker=broker, queue_id=queue))
            for broker, queue in queues(root, found, chosen)
        ]
    store = snapshot(plan.store, plan.broker)
    _check_topic(plan, store.root, topics_of(store.root))
    splits = tuple(grid_splits(store, SPLIT_BYTES, live=True))
    chosen = replace(chosen, broker="")
    if not plan.keep_order:
        return [replace(empty, splits=(split,), selection=chosen) for split in splits]
    ids = {queue for queue in _queues_of(splits, chosen) if plan.queue_id in (-1, queue)}
    return [
        replace(empty, splits=splits, selection=replace(chosen, queue_id=queue))
        for queue in sorted(ids)
    ]


def _check_topic(plan: ReplayPlan, place: str, known: set[str]) -> None:
    if known and plan.topic not in known:
        text = f"There is no topic {plan.topic!r} in {place}.{suggestion(plan.topic, known)}"
        raise PipelineError(text)


def _queues_of(splits: Iterable[Split], chosen: Selection) -> set[int]:
    from ..decode import decode

    wanted = TopicFilter(topics=frozenset((chosen.topic,)))
    return {
        queue
        for split in splits
        for batch in decode(split, ("queueId",), topics=wanted)
        for queue in batch["queueId"].unique().to_pylist()
    }


def replay_part(part: ReplayPart) -> ReplayDone:
    """Send the rows of one part; runs in a task. Raises PipelineError, CometError."""
    from ...client.clock import wall_ms

    counter = _Counter()
    messages = _messages(part, counter, wall_ms())
    if part.dry_run:
        size = sum(len(message.body) for message in messages)
        return ReplayDone(counter.found, Sent(0, size, counter.left_out))
    sent = send_all(part.target, messages)
    return ReplayDone(counter.found, replace(sent, left_out=counter.left_out))


@dataclass(slots=True)
class _Counter:
    found: int = 0
    left_out: int = 0


def _batches(part: ReplayPart) -> Iterator[pa.RecordBatch]:
    if part.files:
        yield from rows(part.root, part.files, part.selection, _COLUMNS)
        return
    from ..decode import decode

    wanted = TopicFilter(topics=frozenset((part.selection.topic,)))
    for split in part.splits:
        for batch in decode(split, _COLUMNS, topics=wanted):
            yield matching(batch, part.selection)


def _messages(part: ReplayPart, counter: _Counter, now_ms: int) -> Iterator[Outgoing]:
    from ..sink import message_of

    for batch in _batches(part):
        for row in batch.to_pylist():
            if row["sysFlag"] & _TRANSACTION in _NOT_DELIVERED:
                continue
            counter.found += 1
            if not row["body"]:
                counter.left_out += 1
                continue
            key = unique_key(part.identity, row["brokerName"], row["physicalOffset"])
            row["properties"] = dict(row["properties"] or ()) | origin_of(row)
            if SHARDING_KEY in row["properties"] and not part.keep_order:
                raise PipelineError(
                    f"Messages of {part.selection.topic} have message groups and must keep their "
                    "order. Replay them with keep_order (--keep-order)."
                )
            try:
                yield message_of(row, part.to, key, now_ms)
            except (ValueError, TypeError) as error:
                text = f"The message of {row['brokerName']} at {row['physicalOffset']}"
                raise PipelineError(f"{text} cannot be sent: {error}.") from error


def origin_of(row: dict[str, Any]) -> dict[str, str]:
    """Return the origin of a row as properties."""
    return {
        name: _text(row[column]) for column, name in ORIGIN.items() if row.get(column) is not None
    }


def _text(value: Any) -> str:
    return str(round(value.timestamp() * 1000)) if isinstance(value, datetime) else str(value)
