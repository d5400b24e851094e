"""Tables of Delta Lake and Iceberg: packages, Spark settings, statements. Pure.

A table is a path with a slash (Delta: its folder; Iceberg: WAREHOUSE/NAMESPACE/NAME of a Hadoop
catalog) or a name of a catalog that `--conf` sets up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from .errors import OptionError

TableFormat = Literal["delta", "iceberg"]
BodyFormat = Literal["", "json", "avro", "protobuf"]
Partition = Literal["", "day", "hour"]

#: What identifies a message in a table.
IDENTITY: Final = ("brokerName", "topic", "queueId", "queueOffset")
#: Column of the decoded body.
VALUE: Final = "value"
#: Latest release for each Spark; a format has none for a Spark that is not listed.
_RELEASES: Final[Mapping[TableFormat, Mapping[str, str]]] = {
    "delta": {
        "4.1": "io.delta:delta-spark_4.1_2.13:4.3.1",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
    "iceberg": {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
}
_EXTENSIONS: Final[Mapping[TableFormat, str]] = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_CATALOG: Final = "cometmq"  # Iceberg's catalog of tables that a path names
_PARTITIONS: Final[Mapping[str, tuple[str, str]]] = {
    "day": ("date", "to_date(storeTimestamp)"),
    "hour": ("timestamp", "date_trunc('HOUR', storeTimestamp)"),
}
_NEWER: Final = (
    "(s.storeTimestamp > t.storeTimestamp OR (s.storeTimestamp = t.storeTimestamp "
    "AND s.queueOffset > t.queueOffset))"
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table and how statements name it."""

    format: TableFormat
    place: str

    @property
    def is_path(self) -> bool:
        """Whether the table is a path."""
        return "/" in self.place

    @property
    def warehouse(self) -> str:
        """The folder of Iceberg's catalog. Raises OptionError."""
        parts = os.path.abspath(self.place).split("/")
        if len(parts) < 4:
            raise OptionError(
                f"The path of an Iceberg table is WAREHOUSE/NAMESPACE/NAME, not {self.place}."
            )
        return "/".join(parts[:-2])

    @property
    def name(self) -> str:
        """The name in statements."""
        if not self.is_path:
            return self.place
        if self.format == "delta":
            return f"delta.`{os.path.abspath(self.place)}`"
        namespace, name = os.path.abspath(self.place).split("/")[-2:]
        return f"{_CATALOG}.`{namespace}`.`{name}`"

    @property
    def catalog(self) -> str:
        """The catalog of Iceberg's procedures."""
        return _CATALOG if self.is_path else self.place.partition(".")[0]


def packages(form: TableFormat, body: BodyFormat, spark_version: str) -> tuple[str, ...]:
    """Return the Maven packages that a Spark needs. Raises OptionError."""
    minor = ".".join(spark_version.split(".")[:2])
    release = _RELEASES[form].get(minor)
    if release is None:
        known = " or ".join(_RELEASES[form])
        raise OptionError(
            f"There is no release of {form.title()} for PySpark {spark_version}: use {known}, or "
            "name your own with --conf spark.jars=FILE,... or spark.jars.packages=..."
        )
    more = f"org.apache.spark:spark-{body}_2.13:{spark_version}"
    return (release, more) if body in ("avro", "protobuf") else (release,)


def session_settings(
    table: Table, body: BodyFormat, spark_version: str, given: Sequence[str]
) -> tuple[str, ...]:
    """Return Spark's settings for a table as KEY=VALUE; those `given` come last and win."""
    names = {text.partition("=")[0] for text in given}
    found = [f"spark.sql.extensions={_EXTENSIONS[table.format]}"]
    if not names & {"spark.jars", "spark.jars.packages"}:
        found.append(f"spark.jars.packages={','.join(packages(table.format, body, spark_version))}")
    if table.format == "delta":
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        found.append(f"spark.sql.catalog.spark_catalog={catalog}")
    elif table.is_path:
        key = f"spark.sql.catalog.{_CATALOG}"
        found += [
            f"{key}=org.apache.iceberg.spark.SparkCatalog",
            f"{key}.type=hadoop",
            f"{key}.warehouse={table.warehouse}",
            f"{key}.cache-enabled=false",  # a batch's session would not see what others wrote
        ]
    return (*(text for text in found if text.partition("=")[0] not in names), *given)


def partition_column(partition: Partition) -> tuple[str, str] | None:
    """Return type and expression of the column `partition`; None without one."""
    return _PARTITIONS[partition] if partition else None


def create_statement(table: Table, columns: Sequence[tuple[str, str]], partition: Partition) -> str:
    """Return the statement that creates a table unless it exists; columns are name and type."""
    listed = ", ".join(f"`{name}` {kind}" for name, kind in columns)
    by = f" PARTITIONED BY (`{partition}`)" if partition else ""
    return f"CREATE TABLE IF NOT EXISTS {table.name} ({listed}) USING {table.format}{by}"


def merge_statement(
    table: Table, view: str, partition: Partition, values: Sequence[str], keys: Sequence[str]
) -> str:
    """Return the statement that writes rows of a view.

    Without `keys` a row is inserted unless its message is there. With `keys` the table has the
    latest message of each key: an older one that comes late changes nothing. `values`: SQL literals
    of the view's partitions, so that only those are searched.
    """
    names = ["`" + name.replace(".", "`.`") + "`" for name in keys or IDENTITY]
    same = [f"t.{name} <=> s.{name}" for name in names]
    if partition and not keys:
        same += [f"t.`{partition}` IN ({', '.join(values)})"] if values else []
        same.append(f"t.`{partition}` = s.`{partition}`")
    update = f" WHEN MATCHED AND {_NEWER} THEN UPDATE SET *" if keys else ""
    return (
        f"MERGE INTO {table.name} t USING {view} s ON {' AND '.join(same)}{update} "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def compact_statement(table: Table) -> str:
    """Return the statement that merges small files."""
    if table.format == "delta":
        return f"OPTIMIZE {table.name}"
    return f"CALL {table.catalog}.system.rewrite_data_files(table => '{_inner(table)}')"


def expire_statement(table: Table, age_ms: int, now_ms: int) -> str:
    """Return the statement that removes versions older than an age, and their files."""
    if table.format == "delta":
        return f"VACUUM {table.name} RETAIN {age_ms // 3_600_000} HOURS"
    return (
        f"CALL {table.catalog}.system.expire_snapshots(table => '{_inner(table)}', "
        f"older_than => timestamp_millis({now_ms - age_ms}))"
    )


def _inner(table: Table) -> str:
    """Return the name inside its catalog."""
    return table.name.partition(".")[2]
