"""What the job `lake` decides: packages, settings and statements, without Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark
import pytest

from cometmq.operations.errors import Exit
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.lake_tables import (
    Table,
    TableFormat,
    compact_statement,
    create_statement,
    expire_statement,
    merge_statement,
    packages,
    session_settings,
)
from cometmq.tests.harness.cluster import cometmq_command

DELTA = Table("delta", "/lake/bronze/orders")
ICEBERG = Table("iceberg", "/lake/bronze/orders")


def test_a_message_is_inserted_once_and_only_its_partitions_are_searched() -> None:
    assert merge_statement(DELTA, "v", "day", ["date '2026-11-22'"], ()) == (
        "MERGE INTO delta.`/lake/bronze/orders` t USING v s ON t.`brokerName` <=> s.`brokerName` "
        "AND t.`topic` <=> s.`topic` AND t.`queueId` <=> s.`queueId` AND t.`queueOffset` <=> "
        "s.`queueOffset` AND t.`day` IN (date '2026-11-22') AND t.`day` = s.`day` "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def test_of_each_key_only_a_newer_message_replaces_the_row() -> None:
    """In whichever partition it is: no partition is excluded."""
    merge = merge_statement(ICEBERG, "v", "day", [], ("value.id",))
    assert merge.startswith(
        "MERGE INTO cometmq.`bronze`.`orders` t USING v s ON t.`value`.`id` <=> s.`value`.`id` WHEN"
    )
    assert "WHEN MATCHED AND (s.storeTimestamp > t.storeTimestamp OR" in merge


@pytest.mark.parametrize(
    ("form", "version", "found"),
    [
        ("delta", "4.1.4", "io.delta:delta-spark_4.1_2.13:4.3.1"),
        ("delta", "4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("iceberg", "4.1.1", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
    ],
)
def test_each_spark_gets_its_release(form: TableFormat, version: str, found: str) -> None:
    assert packages(form, "", version) == (found,)
    avro = f"org.apache.spark:spark-avro_2.13:{version}"
    assert packages(form, "avro", version) == (found, avro)


def test_a_spark_without_a_release_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(OptionError, match=r"no release of Iceberg for PySpark 4.3.0: use 4.1, or"):
        session_settings(ICEBERG, "", "4.3.0", ())
    own = ("spark.jars=/jars/iceberg.jar",)
    assert own[0] in session_settings(ICEBERG, "", "4.3.0", own), "with other jars it is not"


def test_settings_of_the_user_win() -> None:
    own = ("spark.sql.catalog.spark_catalog=my.Catalog",)
    found = session_settings(DELTA, "", "4.2.1", own)
    assert [text for text in found if "spark_catalog" in text] == list(own)


def test_a_path_is_a_table_of_an_iceberg_catalog_and_a_name_is_left_alone() -> None:
    assert ICEBERG.name == "cometmq.`bronze`.`orders`"
    assert "spark.sql.catalog.cometmq.warehouse=/lake" in session_settings(ICEBERG, "", "4.1.4", ())
    named = Table("iceberg", "prod.sales.orders")
    assert named.name == "prod.sales.orders"
    assert not any("warehouse" in text for text in session_settings(named, "", "4.1.4", ()))
    with pytest.raises(OptionError, match="WAREHOUSE/NAMESPACE/NAME"):
        session_settings(Table("iceberg", "/orders"), "", "4.1.4", ())


def test_statements_of_maintenance_name_the_table_in_its_catalog() -> None:
    assert compact_statement(DELTA) == "OPTIMIZE delta.`/lake/bronze/orders`"
    assert expire_statement(DELTA, 7_200_000, 0).endswith("RETAIN 2 HOURS")
    assert compact_statement(ICEBERG) == (
        "CALL cometmq.system.rewrite_data_files(table => '`bronze`.`orders`')"
    )
    named = Table("iceberg", "prod.sales.orders")
    assert expire_statement(named, 1_000, 5_000) == (
        "CALL prod.system.expire_snapshots(table => 'sales.orders', "
        "older_than => timestamp_millis(4000))"
    )


def test_a_table_is_created_with_its_partition() -> None:
    columns = [("topic", "string"), ("day", "date")]
    assert create_statement(DELTA, columns, "day") == (
        "CREATE TABLE IF NOT EXISTS delta.`/lake/bronze/orders` (`topic` string, `day` date) "
        "USING delta PARTITIONED BY (`day`)"
    )
    assert "PARTITIONED" not in create_statement(DELTA, columns[:1], "")


def test_the_command_refuses_what_cannot_work_before_it_starts_spark(tmp_path: Path) -> None:
    """Here: a format without a release for this PySpark, or a body without its schema."""
    (tmp_path / "commitlog").mkdir()
    command = [*cometmq_command(), "pipeline", "lake", str(tmp_path), "--format", "iceberg"]
    command += ["--table", str(tmp_path / "lake" / "orders")]
    for more, text in (
        (["--body", "json"], "--body and --schema together"),
        ([], f"no release of Iceberg for PySpark {pyspark.__version__}"),
    ):
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode in (Exit.USAGE, Exit.FAILED), done
        assert text in done.stderr
