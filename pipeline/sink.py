"""The `rocketmq` sink: rows become messages of a topic, from a batch or a stream.

    df.write.format("rocketmq").option("endpoints", "HOST:8081").option("topic", "orders")
      .mode("append").save()

Columns: `body` (needed), `topic` (or the option of that name, which wins), `keys`, `tags`, `properties`,
`messageGroup`, `deliverTimestamp`, `uniqKey`. Other columns of the source's schema are passed over,
so that rows can be copied from topic to topic; a name that nobody knows is an error. The broker
chooses queues (by the message group, where there is one), so `queueId` says nothing here: rows that were
read carry the queue of another topic. An empty body ends the write with its row: brokers take none.

Promises: at least once. A message's unique key is made of query, batch, partition and row, or is
`uniqKey`: a broker with `messageDeduplicationEnable` then keeps one of each, as long as a repeated task
sees its rows in the same order and comes within the broker's window. (pipeline note, section 3)
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from .errors import OptionError, PipelineError
from .outbound import SHARDING_KEY, unique_key, user_properties
from .schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..client.outgoing import Outgoing
    from .bulk import SendTarget

OPTIONS: Final = {
    "endpoints": "HOST:PORT of the cluster; several are separated by ';'",
    "topic": "where every row goes, whatever its column says",
    "accessKey": "access key, with secretKey",
    "secretKey": "secret of the access key",
    "securityToken": "token of temporary keys",
    "tls": "true: dial with TLS",
    "sendTimeoutMs": "for one message with all tries (60000)",
    "dedupId": "identity of a batch write, kept when it is repeated; else every write has its own",
}
_OWN: Final = ("messageGroup", "deliverTimestamp", "uniqKey", "messageId")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a task needs to know."""

    target: SendTarget
    topic: str
    identity: str


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    messages: int = 0
    bytes: int = 0


def sink_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Check options and columns on the driver. Raises OptionError."""
    from .bulk import SendTarget

    said = {key.lower(): value for key, value in options.items()}
    known = {name.lower() for name in OPTIONS} | {"path", "checkpointlocation"}
    for key in said:
        if key not in known:
            raise OptionError(
                f"Unknown option {key} of the rocketmq sink.{suggestion(key, OPTIONS)}"
            )
    if not said.get("endpoints"):
        raise OptionError("The rocketmq sink needs the option endpoints (HOST:PORT).")
    columns = schema.names
    if "body" not in columns:
        raise OptionError("The rocketmq sink needs a column body (string or binary).")
    if "topic" not in columns and not said.get("topic"):
        raise OptionError("The rocketmq sink needs the option topic or a column topic.")
    for name in columns:
        if name not in COLUMNS and name not in _OWN:
            names = (*COLUMNS, *_OWN)
            raise OptionError(f"The rocketmq sink has no column {name}.{suggestion(name, names)}")
    text = said.get("sendtimeoutms", "60000")
    if not text.isdigit() or not int(text):
        raise OptionError(f"sendTimeoutMs must be a number above 0, but is {text}.")
    target = SendTarget(
        said["endpoints"],
        said.get("accesskey", ""),
        said.get("secretkey", ""),
        said.get("securitytoken", ""),
        said.get("tls", "false").lower() == "true",
        int(text) / 1000,
    )
    return SinkOptions(target, said.get("topic", ""), said.get("dedupid", "") or uuid.uuid4().hex)


def suggestion(name: str, known: Any) -> str:
    """ " Did you mean ...?" for the suggestion known name, or nothing."""
    names = {str(each).lower(): str(each) for each in known}
    found = difflib.get_close_matches(name.lower(), names, 1)
    return f" Did you mean {names[found[0]]}?" if found else ""


def messages_of(
    batches: Iterator[pa.RecordBatch], topic: str, identity: tuple[object, ...], now_ms: int
) -> Iterator[Outgoing]:
    """The messages of these rows; `identity` and the row's number make the unique key. Raises
    PipelineError for a row that no broker would take."""
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            key = row.get("uniqKey") or row.get("messageId") or unique_key(*identity, number)
            try:
                yield message_of(row, topic or row.get("topic") or "", key, now_ms)
            except (ValueError, TypeError) as error:
                raise PipelineError(
                    f"Row {number} of partition {identity[-1]}: {error}."
                ) from error
            number += 1


def message_of(row: Mapping[str, Any], topic: str, key: str, now_ms: int) -> Outgoing:
    """One row. Raises ValueError, TypeError."""
    from ..client.outgoing import outgoing

    body = row.get("body")
    if isinstance(body, str):
        body = body.encode()
    if not topic:
        raise ValueError("it has no topic")
    if not body:
        raise ValueError("its body is empty, and brokers take no empty messages")
    properties = dict(row.get("properties") or ())
    keys = row.get("keys")
    if keys is None:
        keys = properties.get("KEYS") or ""
    return outgoing(
        topic,
        body,
        key,
        now_ms,
        tag=_first(row.get("tags"), properties.get("TAGS")),
        keys=keys.split() if isinstance(keys, str) else keys,
        properties=user_properties(properties),
        group=_first(row.get("messageGroup"), properties.get(SHARDING_KEY)),
        deliver_at=_time(row.get("deliverTimestamp")),
    )


def _first(*values: str | None) -> str:
    return next((value for value in values if value), "")


def _time(value: datetime | int | None) -> datetime | None:
    from datetime import UTC

    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else value


def _write(options: SinkOptions, scope: str, batches: Iterator[pa.RecordBatch]) -> Written:
    from pyspark import TaskContext

    from ..client.clock import wall_ms
    from .bulk import send_all

    context = TaskContext.get()
    assert context is not None
    identity = (options.identity, scope, context.partitionId())
    sent = send_all(options.target, messages_of(batches, options.topic, identity, wall_ms()))
    return Written(sent.messages, sent.bytes)


class RocketMQWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            text = "The rocketmq sink cannot overwrite a topic: use mode append."
            raise PipelineError(text)
        self._options = sink_options(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: send its rows."""
        return _write(self._options, "", iterator)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's micro-batches."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        found = sink_options(options, schema)
        self._options = replace(found, identity="stream")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: send its rows, under ids that a repeated micro-batch has again."""
        query, batch = running_batch()
        return _write(self._options, f"{query}/{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is stored already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was stored stays: at least once."""


def running_batch() -> tuple[str, int]:
    """Query id and batch id of the micro-batch that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if not query or batch is None:
        raise PipelineError("Spark does not say which micro-batch this is; pyspark 4.2 or newer?")
    return query, int(batch)
