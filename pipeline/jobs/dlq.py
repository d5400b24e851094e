"""Job dlq: groups the messages of dead-letter queues, and sends them again.

A dead letter is a copy in `%DLQ%GROUP`; its properties have the original topic. The report groups
by consumer group, original topic, reason and age. Brokers do not write a reason: it is the value of
a property that the application sets (`reason`, `error`, `exception` or the given names), else the
number of deliveries. Messages are sent again to the original topic or to a given one, with the
original body, tags, keys and properties. Their unique key is derived from the position of the dead
letter, so that a repeated task uses the same key. Dead letters are not deleted
(docs/formats/broker-semantics.md, section 4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ...client.identity import unique_key
from ...client.transport.tls import Tls
from ..archive.manifest import FileEntry, all_manifests, files_of, finish
from ..archive.planning import grid_splits, snapshot
from ..archive.reading import NO_TIME, Selection, rows
from ..bulk import SendTarget, Sent, send_all
from ..errors import PipelineError
from ..selection import TopicFilter
from ..splits import SPLIT_BYTES, Split
from .replay import origin_of
from .running import Report, run_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...client.outgoing import Outgoing

PREFIX: Final = "%DLQ%"
_COLUMNS: Final = (
    *("topic", "queueId", "queueOffset", "brokerName", "msgId", "tags", "keys", "body"),
    *(
        "properties",
        "reconsumeTimes",
        "bornTimestamp",
        "storeTimestamp",
        "physicalOffset",
        "sysFlag",
    ),
)
#: Properties that may have the original topic; retry topics do not count.
_ORIGINS: Final = ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "REAL_TOPIC")
REASONS: Final = ("reason", "error", "exception")
_AGES: Final = (
    (3_600_000, "under 1 h"),
    (86_400_000, "under 1 day"),
    (3 * 86_400_000, "under 3 days"),
    (7 * 86_400_000, "under 7 days"),
)
#: Groups of one report; beyond, the reason property is an id rather than a reason.
_GROUPS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class DlqPlan:
    """Selection of dead letters, and where to send them."""

    store: str = ""
    archive: str = ""
    group: str = ""
    origin: str = ""
    reason: str = ""  #: a regular expression for the reason
    start_ms: int = 0
    end_ms: int = NO_TIME
    reasons: tuple[str, ...] = REASONS
    resend: bool = False
    endpoints: str = ""
    to: str = ""  #: destination instead of the original topic
    rate: float = 0.0
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class DlqPart:
    """Work of one task."""

    plan: DlqPlan
    split: Split | None
    root: str
    files: tuple[FileEntry, ...]
    target: SendTarget
    now_ms: int
    dry_run: bool


@dataclass(slots=True)
class DlqDone:
    """Count, bytes, first and last store time per (group, origin, reason, age)."""

    groups: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)
    sent: Sent = field(default_factory=Sent)


def dlq(
    spark: SparkSession | None,
    plan: DlqPlan,
    now_ms: int,
    *,
    dry_run: bool = False,
    tasks: int = 1,
) -> Report:
    """Group dead letters; with `plan.resend` send them again. Raises PipelineError."""
    if bool(plan.archive) == bool(plan.store):
        raise PipelineError("Name either an archive or a store to look for dead letters.")
    if plan.resend and not plan.endpoints:
        raise PipelineError("Sending dead letters again needs the endpoints (HOST:PORT).")
    parts = _parts(plan, now_ms, dry_run)
    rate = plan.rate / max(min(tasks, len(parts)), 1)
    parts = [replace(part, target=replace(part.target, rate=rate)) for part in parts]
    done = run_parts(spark, parts, dlq_part, "dlq")
    merged: dict[tuple[str, str, str, str], list[int]] = {}
    for one in done:
        for key, (count, size, first, last) in one.groups.items():
            known = merged.setdefault(key, [0, 0, first, last])
            known[0] += count
            known[1] += size
            known[2] = min(known[2], first)
            known[3] = max(known[3], last)
    names = ("group", "origin", "reason", "age", "messages", "bytes", "first_ms", "last_ms")
    order = sorted(merged.items(), key=lambda item: (item[0][:2], -item[1][0]))
    found: list[dict[str, Any]] = [
        dict(zip(names, (*key, *values), strict=True)) for key, values in order
    ]
    summary = {
        "messages": sum(values[0] for values in merged.values()),
        "resend": plan.resend,
        "dry_run": dry_run,
        "sent": sum(one.sent.messages for one in done),
        "left_out": sum(one.sent.left_out for one in done),
    }
    return Report("dlq", summary, found)


def _parts(plan: DlqPlan, now_ms: int, dry_run: bool) -> list[DlqPart]:
    target = SendTarget(plan.endpoints, plan.access_key, plan.secret_key, tls=plan.tls)
    if plan.store:
        return [
            DlqPart(plan, split, "", (), target, now_ms, dry_run)
            for split in grid_splits(snapshot(plan.store), SPLIT_BYTES, live=True)
        ]
    finish(plan.archive)
    return [
        DlqPart(plan, None, plan.archive, (file,), target, now_ms, dry_run)
        for file in files_of(all_manifests(plan.archive))
        if file.topic.startswith(PREFIX)
    ]


def dlq_part(part: DlqPart) -> DlqDone:
    """Process one part; runs in a task. Raises PipelineError, CometError."""
    done = DlqDone()
    messages = _messages(part, done)
    if part.plan.resend and not part.dry_run:
        left_out = done.sent
        done.sent = send_all(part.target, messages)
        done.sent = replace(done.sent, left_out=left_out.left_out)
    else:
        for _ in messages:
            pass
    return done


def _batches(part: DlqPart) -> Iterator[Any]:
    if part.split is None:
        for file in part.files:
            yield from rows(part.root, (file,), Selection(file.topic), _COLUMNS)
        return
    from ..decode import decode

    wanted = TopicFilter(pattern=re.escape(PREFIX) + ".*")
    yield from decode(part.split, _COLUMNS, topics=wanted)


def _messages(part: DlqPart, done: DlqDone) -> Iterator[Outgoing]:
    from ..sink import message_of

    plan = part.plan
    for batch in _batches(part):
        for row in batch.to_pylist():
            properties = dict(row["properties"] or ())
            stored_ms = round(row["storeTimestamp"].timestamp() * 1000)
            key = key_of(row, properties, plan.reasons, part.now_ms - stored_ms)
            if not _wanted(plan, key, stored_ms):
                continue
            _count(done, key, len(row["body"] or b""), stored_ms)
            if not plan.resend:
                continue
            target = plan.to or key[1]
            # As of `operations/redrive.py`: command and console see what this job has sent.
            place = (row["brokerName"], row["topic"], row["queueOffset"])
            unique = unique_key("redrive", *place, target)
            row["properties"] = properties | origin_of(row)
            row["properties"].pop("__SHARDINGKEY", None)
            try:
                yield message_of(row, target, unique, part.now_ms)
            except (ValueError, TypeError) as error:
                text = f"The dead letter {row['topic']} at {row['queueOffset']} cannot be sent"
                raise PipelineError(f"{text}: {error}.") from error


def key_of(
    row: dict[str, Any], properties: dict[str, str], reasons: tuple[str, ...], age_ms: int
) -> tuple[str, str, str, str]:
    """Return group, original topic, reason and age of a dead letter."""
    topics = [properties.get(name, "") for name in _ORIGINS]
    origin = next((topic for topic in topics if topic and not topic.startswith("%")), "")
    reason = next((properties[name] for name in reasons if properties.get(name)), "")
    age = next((text for limit, text in _AGES if age_ms < limit), "7 days and more")
    reason = reason or f"given up after {row['reconsumeTimes']} deliveries"
    return row["topic"].removeprefix(PREFIX), origin, reason, age


def _wanted(plan: DlqPlan, key: tuple[str, str, str, str], stored_ms: int) -> bool:
    return (
        plan.group in ("", key[0])
        and plan.origin in ("", key[1])
        and (not plan.reason or re.search(plan.reason, key[2]) is not None)
        and plan.start_ms <= stored_ms < plan.end_ms
    )


def _count(done: DlqDone, key: tuple[str, str, str, str], size: int, stored_ms: int) -> None:
    if key not in done.groups and len(done.groups) >= _GROUPS_MAX:
        key = (key[0], key[1], "other reasons", key[3])
    known = done.groups.setdefault(key, [0, 0, stored_ms, stored_ms])
    known[0] += 1
    known[1] += size
    known[2] = min(known[2], stored_ms)
    known[3] = max(known[3], stored_ms)
