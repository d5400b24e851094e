"""Job lake: writes topics to a Delta or Iceberg table, from a stream or a batch.

    lake(spark, LakePlan(Table("delta", "/lake/orders"), source={"path": "/data/store"}))

Rows have the columns of the source, the partition (`day` or `hour`) and, with a body format, the
decoded body in `value`; a body that cannot be decoded has null there and stays in `body`. Each row
is written by MERGE on (brokerName, topic, queueId, queueOffset), so a batch that Spark repeats, a
lost checkpoint and a batch over the same range write each message once. With `keys` the table has
the latest message of each key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import OptionError, PipelineError
from ..lake_tables import (
    IDENTITY,
    VALUE,
    BodyFormat,
    Partition,
    Table,
    compact_statement,
    create_statement,
    expire_statement,
    merge_statement,
    partition_column,
)
from ..outbound import ORIGIN
from .running import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEW: Final = "cometmq_lake_batch"
#: Partitions named in a MERGE; more of them are searched by the join alone.
_NAMED_PARTITIONS: Final = 100
#: Delta refuses to remove versions younger than this unless told that no query reads them.
_DELTA_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"


@dataclass(frozen=True, slots=True)
class LakePlan:
    """Source, table and form of the rows. `source`: options of the format `rocketmq`."""

    table: Table
    source: Mapping[str, str]
    partition: Partition = "day"
    body: BodyFormat = ""
    schema_file: str = ""
    message: str = ""  # of a Protobuf descriptor file
    keys: tuple[str, ...] = ()
    checkpoint: str = ""  # empty: beside the table's path


def lake(spark: SparkSession, plan: LakePlan, *, batch: bool = False, every: str = "") -> Report:
    """Write what the table lacks. `every`: follow the topics at this interval, without an end.

    Raises PipelineError.
    """
    reader = spark.read if batch else spark.readStream.option("startingOffsets", "earliest")
    rows = _shaped(reader.format("rocketmq").options(**dict(plan.source)).load(), plan)
    columns = [(one.name, one.dataType.simpleString()) for one in rows.schema]
    _run(spark, create_statement(plan.table, columns, plan.partition), plan.table)
    before = _rows(spark, plan.table)
    if batch:
        write_rows(rows, plan)
    else:
        writer = rows.writeStream.option("checkpointLocation", _checkpoint(plan))
        writer = writer.foreachBatch(lambda part, _: write_rows(part, plan))
        trigger: Any = {"processingTime": every} if every else {"availableNow": True}
        writer.trigger(**trigger).start().awaitTermination()
    after = _rows(spark, plan.table)
    summary = {"table": plan.table.place, "format": plan.table.format, "total_rows": after}
    return Report("lake", {**summary, "added": after - before})


def write_rows(rows: DataFrame, plan: LakePlan) -> None:
    """Merge rows into the table. Raises PipelineError."""
    spark, table = rows.sparkSession, plan.table
    rows = rows.persist()
    try:
        newest = _newest(rows, plan.keys) if plan.keys else rows
        newest.createOrReplaceTempView(_VIEW)
        values = [] if plan.keys else _partitions(rows, plan.partition)
        merge = merge_statement(table, _VIEW, plan.partition, values, plan.keys)
        _run(spark, merge, table)
    finally:
        rows.unpersist()


def compact(spark: SparkSession, table: Table) -> Report:
    """Merge the small files of a table."""
    before = _rows(spark, table)
    _run(spark, compact_statement(table), table)
    return Report("lake", {"table": table.place, "compacted": True, "total_rows": before})


def expire(spark: SparkSession, table: Table, age_ms: int, now_ms: int) -> Report:
    """Remove versions of a table that are older than an age, in whole hours for Delta."""
    if table.format == "delta":
        spark.conf.set(_DELTA_CHECK, "false")
    _run(spark, expire_statement(table, age_ms, now_ms), table)
    return Report(
        "lake", {"table": table.place, "expired": True, "total_rows": _rows(spark, table)}
    )


def verify_table(spark: SparkSession, table: Table, source: Mapping[str, str]) -> Report:
    """Compare a table with the log, by identity and checksum of the stored body.

    Rows of the table below the first offset of their queue in the log are not compared: retention
    has deleted them there.
    """
    from pyspark.sql import functions as f

    columns = ",".join((*IDENTITY, "bodyCRC"))
    log = spark.read.format("rocketmq").options(**{**source, "columns": columns}).load().persist()
    rows = spark.table(table.name).select(*IDENTITY, "bodyCRC").persist()
    try:
        twice = rows.groupBy(*IDENTITY).count().where("count > 1").count()
        missing = log.join(rows, list(IDENTITY), "left_anti")
        other = rows.withColumnRenamed("bodyCRC", "crc").join(log, list(IDENTITY))
        changed = other.where("not crc <=> bodyCRC").count()
        queue = list(IDENTITY[:-1])
        firsts = log.groupBy(*queue).agg(f.min("queueOffset").alias("first"))
        extra = rows.join(log, list(IDENTITY), "left_anti").join(firsts, queue)
        report = Report("verify", {"table": table.place, "total_rows": rows.count()})
        report.summary["messages"] = log.count()
        found = {"missing": missing.count(), "twice": twice, "changed": changed}
        found["extra"] = extra.where("queueOffset >= first").count()
        report.summary |= found
        report.rows = [
            row.asDict()
            for row in missing.groupBy(*queue)
            .agg(
                f.count("*").alias("missing"),
                f.min("queueOffset").alias("first"),
                f.max("queueOffset").alias("last"),
            )
            .orderBy(*queue)
            .limit(100)
            .collect()
        ]
        texts = {
            "missing": "messages of the log are not in the table",
            "twice": "messages are in the table more than once",
            "changed": "rows differ from their message in the checksum of the body",
            "extra": "rows are not in the log",
        }
        report.problems = [f"{found[name]} {text}." for name, text in texts.items() if found[name]]
        return report
    finally:
        log.unpersist()
        rows.unpersist()


def replay_table(
    spark: SparkSession, table: Table, topic: str, to: str, target: Mapping[str, str]
) -> Report:
    """Send the messages of one topic of a table to a topic, each queue in order.

    A repeat of the whole replay has the same message ids. Properties name the origin. `target`:
    options of the sink.
    """
    from pyspark.sql import functions as f

    rows = spark.table(table.name).where((f.col("topic") == topic) & (f.length("body") > 0))
    key = f.upper(f.md5(f.concat_ws("/", f.lit(to), "brokerName", "physicalOffset")))
    ordered = rows.repartition("brokerName", "queueId").sortWithinPartitions("queueOffset")
    sent = ordered.select("body", "keys", "tags", _with_origin(), key.alias("uniqKey"))
    writer = sent.write.format("rocketmq").mode("append").option("topic", to)
    writer.options(**dict(target)).save()
    return Report("replay", {"table": table.place, "topic": topic, "to": to, "sent": rows.count()})


def _with_origin() -> Any:
    """Return the properties of a row of a table with those that name its origin."""
    from pyspark.sql import functions as f

    names = list(ORIGIN.values())
    texts = [
        (f.unix_millis(column) if column.endswith("Timestamp") else f.col(column)).cast("string")
        for column in ORIGIN
    ]
    origin = f.map_from_arrays(f.array(*map(f.lit, names)), f.array(*texts))
    given = f.coalesce("properties", f.expr("cast(map() AS map<string, string>)"))
    own = f.map_filter(given, lambda name, _: ~name.isin(names))
    return f.map_concat(own, origin).alias("properties")


def _shaped(frame: DataFrame, plan: LakePlan) -> DataFrame:
    """Return the rows of the table: decoded body and partition are added."""
    from pyspark.sql import functions as f

    if plan.body:
        frame = frame.withColumn(VALUE, _decoded(plan))
    column = partition_column(plan.partition)
    if column is not None:
        frame = frame.withColumn(plan.partition, f.expr(column[1]).cast(column[0]))
    unknown = [name for name in plan.keys if name.partition(".")[0] not in frame.columns]
    if unknown:
        raise OptionError(f"There is no column {unknown[0]!r} for the key.")
    return frame


def _decoded(plan: LakePlan) -> Any:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    try:
        text = Path(plan.schema_file).read_bytes()
    except OSError as error:
        raise OptionError(f"The schema file cannot be read: {error}.") from None
    options = {"mode": "PERMISSIVE"}
    if plan.body == "json":
        schema = text.decode().strip()
        kind = StructType.fromJson(json.loads(schema)) if schema.startswith("{") else schema
        return f.from_json(f.col("body").cast("string"), kind, options)
    if plan.body == "avro":
        from pyspark.sql.avro.functions import from_avro

        return from_avro("body", text.decode(), options)
    from pyspark.sql.protobuf.functions import from_protobuf

    if not plan.message:
        raise OptionError("A Protobuf body needs the name of its message (--message).")
    return from_protobuf("body", plan.message, options=options, binaryDescriptorSet=text)


def _newest(rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return the last row of each key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = [f.col("storeTimestamp").desc(), f.col("queueOffset").desc()]
    place = f.row_number().over(Window.partitionBy(*keys).orderBy(*order))
    return rows.withColumn("_place", place).where("_place = 1").drop("_place")


def _partitions(rows: DataFrame, partition: Partition) -> list[str]:
    if not partition:
        return []
    kind = (partition_column(partition) or ("",))[0]
    found = rows.select(f"`{partition}`").distinct().limit(_NAMED_PARTITIONS + 1).collect()
    texts = sorted(str(row[0]) for row in found)
    return [] if len(texts) > _NAMED_PARTITIONS else [f"{kind} '{text}'" for text in texts]


def _checkpoint(plan: LakePlan) -> str:
    if plan.checkpoint:
        return os.path.abspath(plan.checkpoint)
    if not plan.table.is_path:
        raise OptionError("A table with a name needs a folder for its checkpoint (--checkpoint).")
    return os.path.abspath(plan.table.place) + ".checkpoint"


def _rows(spark: SparkSession, table: Table) -> int:
    if table.format == "iceberg":  # a batch has another session, with another cache
        spark.catalog.refreshTable(table.name)
    return spark.table(table.name).count()


def _run(spark: SparkSession, statement: str, table: Table) -> None:
    try:
        spark.sql(statement).collect()
    except Exception as error:
        text = str(error).split("\n\nJVM stacktrace")[0].strip()
        raise PipelineError(f"{table.place} ({table.format}): {text}") from error
