"""Spark's classes that this PySpark may lack: limits (4.2), Arrow stream writers, filters (4.1).

A stand-in has the attributes that the sources use. `HAS_LIMITS`: streams get their start and a
limit from Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

    HAS_LIMITS: bool
    HAS_ARROW_STREAMS: bool
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_LIMITS = True
    except ImportError:
        HAS_LIMITS = False

        class SupportsTriggerAvailableNow:
            """Stand-in: Spark ends such a query after one batch."""

        @dataclass
        class ReadLimit:
            """Stand-in of the base class."""

        @dataclass
        class ReadAllAvailable(ReadLimit):
            """Stand-in: no limit."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Stand-in: at most these messages."""

            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            """Stand-in: at most these bytes."""

            max_bytes: int

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter

        HAS_ARROW_STREAMS = True
    except ImportError:
        DataSourceStreamArrowWriter = DataSourceStreamWriter
        HAS_ARROW_STREAMS = False

__all__ = [
    "HAS_LIMITS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "stream_writer",
]
#: Rows of one Arrow batch made of Spark's rows.
_ROWS: Final = 1_000


class _RowWriter(DataSourceStreamWriter):
    """Passes rows to a writer of Arrow batches; stays equal to it otherwise."""

    def __init__(self, inner: DataSourceStreamArrowWriter, schema: StructType) -> None:
        self._inner = inner
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Called by Spark in a task, with rows."""
        return self._inner.write(self._batches(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Called by Spark on the driver."""
        self._inner.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Called by Spark on the driver."""
        self._inner.abort(messages, batchId)

    def _batches(self, rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas import types

        arrow_schema: Any = types.to_arrow_schema  # newer ones need more arguments
        schema = arrow_schema(self._schema)
        while part := [_utc(row.asDict()) for row in islice(rows, _ROWS)]:
            yield pa.RecordBatch.from_pylist(part, schema)


def _utc(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with times in UTC; Spark gives local ones without a zone."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def stream_writer(
    writer: DataSourceStreamArrowWriter, schema: StructType
) -> DataSourceStreamArrowWriter:
    """Return a writer that this Spark can use: Spark 4.0 passes rows."""
    return writer if HAS_ARROW_STREAMS else _RowWriter(writer, schema)  # type: ignore[return-value]
