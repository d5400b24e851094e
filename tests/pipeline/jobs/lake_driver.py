"""One session that checks tables of a lakehouse format, for `test_lake.py`.

    python -m cometmq.tests.pipeline.jobs.lake_driver FORMAT FOLDER

Prints `held: NAME` for each check.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cometmq.cli.pipeline.lake import table_session
from cometmq.cli.pipeline.session import SessionOptions
from cometmq.client.testing.broker import TestBroker
from cometmq.pipeline.jobs.lake import (
    LakePlan,
    compact,
    expire,
    replay_table,
    verify_table,
)
from cometmq.pipeline.jobs.lake import lake as run_lake
from cometmq.pipeline.jobs.running import Report
from cometmq.pipeline.lake_tables import Table, TableFormat
from cometmq.tests.pipeline.logs import BORN_MS, MadeLog, message
from cometmq.tests.pipeline.reading import whole_topic
from cometmq.tests.pipeline.version_driver import patiently

DAY_MS = 86_400_000


def order(number: int, key: int | None = None) -> Any:
    """Return a message with an order as JSON; every tenth is not JSON."""
    value = {"id": number if key is None else key, "cents": number * 10}
    body = b"not JSON" if number % 10 == 9 else json.dumps(value).encode()
    return message(number, "orders", number % 3, body=body)


class Lake:
    """A log, and tables of one format."""

    def __init__(self, spark: Any, form: TableFormat, folder: Path) -> None:
        self.spark, self.form, self.folder = spark, form, folder
        self.log = MadeLog(folder / "store").append(*(order(n) for n in range(200)))
        self.log.later_ms = DAY_MS
        self.log.append(*(order(n) for n in range(200, 300)))
        (folder / "order.ddl").write_text("id int, cents bigint")
        self.source = {"path": str(self.log.root), "subscribe": "orders"}

    def plan(self, name: str, **more: Any) -> LakePlan:
        table = Table(self.form, str(self.folder / "lake" / "bronze" / name))
        return LakePlan(table, self.source, schema_file=str(self.folder / "order.ddl"), **more)

    def numbers(self, plan: LakePlan) -> list[int]:
        rows = self.spark.table(plan.table.name).select("msgId").collect()
        return sorted(int(row[0], 16) for row in rows)


def lake(spark: Any, plan: LakePlan, *, batch: bool = False) -> Report:
    """Run the job as often as a busy machine needs."""
    return patiently(lambda: run_lake(spark, plan, batch=batch))


def each_message_once(world: Lake) -> None:
    """Streams, restarts, a repeated batch, a lost checkpoint, and batches over the same log."""
    plan = world.plan("orders", body="json")
    assert lake(world.spark, plan).summary["added"] == 300
    assert lake(world.spark, plan).summary["added"] == 0
    world.log.append(*(order(n) for n in range(300, 340)))
    assert lake(world.spark, plan).summary["added"] == 40
    checkpoint = Path(plan.table.place + ".checkpoint")
    newest = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit())
    for one in (checkpoint / "commits").glob(f"*{newest}*"):
        one.unlink()  # as after a kill between the table's commit and Spark's
    assert lake(world.spark, plan).summary["added"] == 0
    shutil.rmtree(checkpoint)
    assert lake(world.spark, plan, batch=True).summary["added"] == 0
    assert lake(world.spark, plan).summary["added"] == 0
    assert world.numbers(plan) == list(range(340))
    table = world.spark.table(plan.table.name)
    assert table.where("value is null or value.id is null").count() == 34
    assert table.where("value.cents = value.id * 10").count() == 306
    assert [
        row.day.isoformat() for row in table.select("day").distinct().sort("day").collect()
    ] == [
        "2023-11-14",
        "2023-11-15",
    ]


def verification(world: Lake) -> None:
    """A table agrees with the log until a row is deleted, changed or written twice."""
    plan = world.plan("orders", body="json")
    report = verify_table(world.spark, plan.table, world.source)
    assert not report.problems, report
    assert report.summary["messages"] == 340
    name = plan.table.name
    world.spark.sql(f"DELETE FROM {name} WHERE msgId = '{5:032X}'")
    world.spark.sql(f"UPDATE {name} SET bodyCRC = bodyCRC + 1 WHERE msgId = '{6:032X}'")
    world.spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE msgId = '{7:032X}'")
    report = verify_table(world.spark, plan.table, world.source)
    found = {key: report.summary[key] for key in ("missing", "changed", "twice", "extra")}
    assert found == {"missing": 1, "changed": 1, "twice": 1, "extra": 0}
    assert report.rows[0]["first"] == 1, report.rows


def latest_of_each_key(world: Lake) -> None:
    """An older message that comes late does not replace a newer one."""
    plan = world.plan("latest", body="json", keys=("value.id",), partition="")
    late = replace(
        plan, source={**world.source, "endingOffsets": '{"orders":{"0":50,"1":50,"2":50}}'}
    )
    lake(world.spark, plan)
    world.log.append(*(order(n, key=n % 7) for n in range(400, 408)))
    lake(world.spark, plan)
    lake(world.spark, late, batch=True)
    rows = world.spark.table(plan.table.name).where("value.id < 7").collect()
    cents = {row.value.id: row.value.cents for row in rows}
    assert cents == {n % 7: n * 10 for n in range(400, 408)}, cents


def versions(world: Lake) -> None:
    """Time travel reads an older version; compaction keeps the rows; expiry ends old versions."""
    plan = world.plan("versions")
    name, spark = plan.table.name, world.spark
    early = replace(
        plan, source={**world.source, "endingOffsets": '{"orders":{"0":10,"1":10,"2":10}}'}
    )
    lake(spark, early, batch=True)
    if world.form == "delta":
        history = f"DESCRIBE HISTORY {name}"
        first = spark.sql(history).selectExpr("max(version)").first()[0]
    else:
        history = f"SELECT * FROM {name}.snapshots"
        first = spark.sql(history).orderBy("committed_at").select("snapshot_id").collect()[-1][0]
    lake(spark, plan, batch=True)
    then = f"SELECT count(*) FROM {name} VERSION AS OF {first}"
    assert spark.sql(then).first()[0] == 30
    count = spark.table(name).count()
    assert compact(spark, plan.table).summary["total_rows"] == count
    assert spark.table(name).count() == count
    in_two_hours = 2 * 3_600_000 + int(spark.sql("SELECT unix_millis(now())").first()[0])
    assert expire(spark, plan.table, 3_600_000, in_two_hours).summary["total_rows"] == count
    if world.form == "iceberg":
        assert spark.sql(history).count() == 1


def replay(world: Lake) -> None:
    """The messages of a table come back as messages of a topic, once."""
    plan = world.plan("replayed")
    lake(world.spark, plan, batch=True)
    count = world.spark.table(plan.table.name).count()
    with TestBroker(settings={"messageDeduplicationEnable": "true"}) as broker:
        broker.create_topic("again", type="normal", queues=2)
        target = {"endpoints": broker.endpoints}
        for _ in range(2):
            replay_table(world.spark, plan.table, "orders", "again", target)
        found = whole_topic(broker.endpoints, "again", count)
    assert len(found) == count
    (first,) = (one for one in found if one.body == order(1).body)
    origin = {"replay-topic": "orders", "replay-queue-id": "1", "replay-queue-offset": "0"}
    origin["replay-message-id"] = f"{1:032X}"
    assert origin.items() <= first.properties.items(), first.properties
    assert int(first.properties["replay-store-ms"]) == BORN_MS + 1_001


def documented(world: Lake) -> None:
    """The bronze, silver and gold tables of docs/pipeline.md."""
    text = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
    (program,) = re.findall(r"^```python lake\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    said: dict[str, Any] = {
        "spark": world.spark,
        "FORMAT": world.form,
        "LAKE": str(world.folder / "lake"),
        "STORE": str(world.log.root),
        "SCHEMA_FILE": str(world.folder / "order.ddl"),
    }
    code = compile(program, "docs/pipeline.md", "exec")
    patiently(lambda: exec(code, said))
    silver = world.spark.table(said["silver"].name).where("value.id is not null")
    (row,) = world.spark.table(said["gold"].name).collect()
    assert row.orders == silver.count() > 0
    assert row.cents == sum(one.value.cents for one in silver.collect())


CHECKS: tuple[Callable[[Lake], None], ...] = (
    each_message_once,
    verification,
    latest_of_each_key,
    versions,
    replay,
    documented,
)


def main(form: str, folder: str) -> None:
    settings = (
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.sql.shuffle.partitions=2",
        "spark.databricks.delta.snapshotPartitions=2",
        f"spark.sql.warehouse.dir={folder}/warehouse",
    )
    options = SessionOptions("local[2]", "1g", settings)
    place = str(Path(folder, "lake", "bronze", "any"))
    with table_session("lake", place, form, options) as (spark, _):
        world = Lake(spark, cast(TableFormat, form), Path(folder))
        for check in CHECKS:
            check(world)
            print(f"held: {check.__name__}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
