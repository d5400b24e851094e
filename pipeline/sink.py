"""The `rocketmq` sink: writes rows as messages of a topic, from a batch or a stream.

    df.write.format("rocketmq").option("endpoints", "HOST:8081").option("topic", "orders")
      .mode("append").save()

Columns: `body` (required), `topic` (the option `topic` overrides it), `keys`, `tags`, `properties`,
`messageGroup`, `deliverTimestamp`, `uniqKey`. Other columns of the source's schema are ignored, so
that rows can be copied between topics; an unknown column is an error. The broker chooses the queue
(by the message group if there is one); `queueId` is ignored. An empty body fails the write with the
number of its row: brokers refuse empty messages.

Delivery is at least once. A message's unique key is derived from query, batch, partition and row,
or is `uniqKey`. A broker with `messageDeduplicationEnable` then stores each message once, if a
repeated task has its rows in the same order and runs within the broker's deduplication window.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ..client.identity import unique_key
from .errors import OptionError, PipelineError
from .outbound import SHARDING_KEY, user_properties
from .schema import COLUMNS
from .spark_api import DataSourceStreamArrowWriter
from .tls_options import TLS_OPTIONS, read_tls

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..client.outgoing import Outgoing
    from .bulk import SendTarget

OPTIONS: Final = {
    "endpoints": "HOST:PORT of the cluster; several are separated by ';'",
    "topic": "topic of every row; overrides the column",
    "accessKey": "access key, with secretKey",
    "secretKey": "secret of the access key",
    "securityToken": "token of temporary keys",
    **TLS_OPTIONS,
    "sendTimeoutMs": "timeout of one message with all attempts (60000)",
    "dedupId": "identity of a batch write; reuse it to repeat the write (default: random)",
}
_OWN: Final = ("messageGroup", "deliverTimestamp", "uniqKey", "messageId")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options for a task."""

    target: SendTarget
    topic: str
    identity: str


@dataclass
class Written(WriterCommitMessage):
    """Counts of one task."""

    messages: int = 0
    bytes: int = 0


def sink_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Validate options and columns on the driver. Raises OptionError."""
    from .bulk import SendTarget

    given = {key.lower(): value for key, value in options.items()}
    known = {name.lower() for name in OPTIONS} | {"path", "checkpointlocation"}
    for key in given:
        if key not in known:
            hint = suggestion(key, OPTIONS)
            raise OptionError(f"The rocketmq sink has no option {key}.{hint}")
    if not given.get("endpoints"):
        raise OptionError("The rocketmq sink needs the option endpoints (HOST:PORT).")
    columns = schema.names
    if "body" not in columns:
        raise OptionError("The rocketmq sink needs a column body (string or binary).")
    if "topic" not in columns and not given.get("topic"):
        raise OptionError("The rocketmq sink needs the option topic or a column topic.")
    for name in columns:
        if name not in COLUMNS and name not in _OWN:
            names = (*COLUMNS, *_OWN)
            raise OptionError(f"The rocketmq sink has no column {name}.{suggestion(name, names)}")
    text = given.get("sendtimeoutms", "60000")
    if not text.isdigit() or not int(text):
        raise OptionError(f"sendTimeoutMs must be a positive number, not {text!r}.")
    target = SendTarget(
        given["endpoints"],
        given.get("accesskey", ""),
        given.get("secretkey", ""),
        given.get("securitytoken", ""),
        read_tls(lambda name: given.get(name.lower(), "")),
        int(text) / 1000,
    )
    return SinkOptions(target, given.get("topic", ""), given.get("dedupid", "") or uuid.uuid4().hex)


def suggestion(name: str, known: Any) -> str:
    """Return " Did you mean ...?" with the nearest known name, or an empty text."""
    names = {str(each).lower(): str(each) for each in known}
    found = difflib.get_close_matches(name.lower(), names, 1)
    return f" Did you mean {names[found[0]]}?" if found else ""


def messages_of(
    batches: Iterator[pa.RecordBatch], topic: str, identity: tuple[object, ...], now_ms: int
) -> Iterator[Outgoing]:
    """Yield the messages of rows; `identity` and the row's number form the unique key.

    Raises PipelineError for an invalid row.
    """
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
    """Return the message of a row. Raises ValueError, TypeError."""
    from ..client.outgoing import outgoing

    body = row.get("body")
    if isinstance(body, str):
        body = body.encode()
    if not topic:
        raise ValueError("it has no topic")
    if not body:
        raise ValueError("its body is empty, and brokers refuse empty messages")
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
    """Writer of one batch write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            text = "The rocketmq sink cannot overwrite a topic. Use mode append."
            raise PipelineError(text)
        self._options = sink_options(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return _write(self._options, "", iterator)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query's micro-batches."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        found = sink_options(options, schema)
        self._options = replace(found, identity="stream")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task with message ids that a repeated micro-batch reuses."""
        query, batch = running_batch()
        return _write(self._options, f"{query}/{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the messages are already stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: stored messages stay (at least once)."""


def running_batch() -> tuple[str, int]:
    """Return query id and batch id of the micro-batch of this task. Raises PipelineError."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if not query or batch is None:
        raise PipelineError(
            "Spark did not pass the query id and batch id to the task. Use pyspark 4.0 or newer."
        )
    return query, int(batch)
