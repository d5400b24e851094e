"""The `rocketmq` and `rocketmq-archive` sinks and sending jobs, with Spark and a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from cometmq.client.testing.broker import TestBroker
from cometmq.pipeline.archive.manifest import all_manifests, strays
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.archive import ArchivePlan, archive
from cometmq.pipeline.jobs.dlq import DlqPlan, dlq
from cometmq.pipeline.jobs.replay import ReplayPlan, replay
from cometmq.pipeline.outbound import RESERVED
from cometmq.store.format.property_names import FORBIDDEN_PROPERTIES
from cometmq.tests.pipeline.reading import face, whole_topic
from cometmq.tests.pipeline.written import BEGIN_MS, sent, write_store

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    """One that stores a message id once."""
    settings = {
        "messageDeduplicationEnable": "true",
        "messageDeduplicationWindowMs": "600000",
        "waitTimeMillsInSendQueue": "10000",
    }
    with TestBroker(settings=settings) as one:
        yield one


def test_properties_reserved_by_brokers_are_left_out() -> None:
    assert RESERVED == FORBIDDEN_PROPERTIES


def rows(spark: Any, count: int) -> Any:
    return spark.range(count).selectExpr(
        "concat('body ', id) as body",
        "concat('k', id, ' all') as keys",
        "if(id % 2 = 0, 'even', 'odd') as tags",
        "map('number', cast(id as string), 'UNIQ_KEY', 'never') as properties",
    )


def test_rows_become_messages(spark: Any, broker: TestBroker) -> None:
    broker.create_topic("written", type="normal", queues=4)
    written = rows(spark, 500).repartition(3).write.format("rocketmq").mode("append")
    written = written.option("endpoints", broker.endpoints).option("topic", "written")
    written.option("dedupId", "one").save()
    written.option("dedupId", "one").save()  # a repeat of the whole job
    messages = whole_topic(broker.endpoints, "written", 500)
    assert len(messages) == 500
    assert {m.body.decode() for m in messages} == {f"body {n}" for n in range(500)}
    for message in messages:
        number = message.body.decode().split()[1]
        assert message.keys == (f"k{number}", "all")
        assert message.tag == ("even" if int(number) % 2 == 0 else "odd")
        assert message.properties["number"] == number


def test_a_stream_is_written_to_a_topic(spark: Any, broker: TestBroker, tmp_path: Path) -> None:
    broker.create_topic("streamed", type="normal", queues=4)
    source = tmp_path / "in"
    rows(spark, 300).coalesce(1).write.json(str(source))
    for _ in range(2):
        # The second query has lost its checkpoint's last step: it repeats the batch under its ids.
        query = (
            spark.readStream.schema(rows(spark, 1).schema)
            .json(str(source))
            .selectExpr("'streamed' as topic", "*")
            .writeStream.format("rocketmq")
            .option("endpoints", broker.endpoints)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        (tmp_path / "checkpoint" / "commits" / "0").unlink()
        (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    assert len(whole_topic(broker.endpoints, "streamed", 300)) == 300


@pytest.mark.parametrize(
    ("options", "columns", "sentence"),
    [
        ({}, "'x' as body", "needs the option endpoints"),
        ({"endpoint": "x:1"}, "'x' as body", "Did you mean endpoints"),
        ({"endpoints": "x:1"}, "'x' as body", "needs the option topic"),
        ({"endpoints": "x:1", "topic": "t"}, "'x' as text", "needs a column body"),
        ({"endpoints": "x:1", "topic": "t"}, "'x' as body, 1 as tagz", "Did you mean tags"),
    ],
)
def test_options_and_columns_are_validated_on_the_driver(
    spark: Any, options: dict[str, str], columns: str, sentence: str
) -> None:
    written = spark.range(1).selectExpr(*columns.split(", ")).write.format("rocketmq")
    with pytest.raises(Exception, match=sentence):
        written.mode("append").options(**options).save()


def test_the_queue_id_of_a_row_is_ignored(spark: Any, broker: TestBroker) -> None:
    """It belongs to another topic; message groups keep the order."""
    broker.create_topic("chosen", type="normal", queues=4)
    frame = rows(spark, 40).selectExpr("*", "99 as queueId").coalesce(1)
    written = frame.write.format("rocketmq").mode("append").option("topic", "chosen")
    written.option("endpoints", broker.endpoints).save()
    found = whole_topic(broker.endpoints, "chosen", 40)
    assert len(found) == 40
    assert {one.queue_id for one in found} <= set(range(4))


def test_an_empty_body_is_refused_with_its_row_number(spark: Any, broker: TestBroker) -> None:
    broker.create_topic("empty", type="normal", queues=1)
    frame = spark.createDataFrame([("a",), ("",)], "body string").coalesce(1)
    written = frame.write.format("rocketmq").mode("append").option("topic", "empty")
    with pytest.raises(Exception, match="Row 1 of partition 0: its body is empty"):
        written.option("endpoints", broker.endpoints).save()


def test_a_batch_is_written_to_an_archive(spark: Any, tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", [sent(f"t{n % 2}", n) for n in range(1000)])
    frame = spark.read.format("rocketmq").option("path", str(store)).load()
    out = tmp_path / "out"
    for _ in range(2):
        frame.where("queueId < 2").write.format("rocketmq-archive").mode("append").save(str(out))
    found = all_manifests(str(out))
    assert [one.rows for one in found] == [500, 500]
    assert strays(str(out), found) == []
    table = ds.dataset(out, partitioning="hive").to_table()
    assert table.num_rows == 1000
    assert set(table["topic"].to_pylist()) == {"t0", "t1"}
    assert spark.read.parquet(str(out)).count() == 1000
    with pytest.raises(Exception, match="mode append"):
        frame.write.format("rocketmq-archive").mode("overwrite").save(str(out))
    with pytest.raises(Exception, match="needs a column storeTimestamp"):
        frame.select("topic").write.format("rocketmq-archive").mode("append").save(str(out))


def test_a_store_is_replayed_to_a_topic(spark: Any, broker: TestBroker, tmp_path: Path) -> None:
    broker.create_topic("again", type="normal", queues=2)
    messages = [sent("orders", n, region="eu") for n in range(400)]
    store = write_store(tmp_path / "broker-a", [*messages, sent("other", 1)])
    plan = ReplayPlan("orders", "again", broker.endpoints, store=str(store), rate=2000)
    assert replay(spark, plan, dry_run=True).summary["messages"] == 400
    for _ in range(2):
        assert replay(spark, plan).summary["sent"] == 400
    with pytest.raises(PipelineError, match=r"no topic 'odrers' in .* Did you mean 'orders'"):
        replay(spark, ReplayPlan("odrers", "again", broker.endpoints, store=str(store)))
    found = whole_topic(broker.endpoints, "again", 400)
    assert sorted(one.body for one in found) == sorted(one.body for one in messages)
    one = found[0]
    assert one.properties["region"] == "eu"
    assert one.properties["replay-topic"] == "orders"
    assert one.properties["replay-broker"] == "broker-a"
    assert BEGIN_MS <= int(one.properties["replay-store-ms"]) < BEGIN_MS + 1000


def test_an_archive_is_replayed_by_time_and_queue(
    spark: Any, broker: TestBroker, tmp_path: Path
) -> None:
    broker.create_topic("part", type="normal", queues=2)
    messages = [sent("orders", n) for n in range(640)]
    store = write_store(tmp_path / "broker-a", messages, step_ms=1000)
    out = str(tmp_path / "archive")
    archive(spark, ArchivePlan(str(store), out, live=True))
    plan = ReplayPlan(
        *("orders", "part", broker.endpoints),
        archive=out,
        queue_id=1,
        start_ms=BEGIN_MS + 2000,
        end_ms=BEGIN_MS + 5000,
    )
    with pytest.raises(PipelineError, match=r"no topic 'order' in .* Did you mean 'orders'"):
        replay(spark, ReplayPlan("order", "part", broker.endpoints, archive=out))
    report = replay(spark, plan)
    assert report.summary["sent"] == 48
    found = whole_topic(broker.endpoints, "part", 48)
    numbers = sorted(int(one.properties["replay-queue-offset"]) for one in found)
    assert numbers == list(range(32, 80))


def test_messages_with_message_groups_need_keep_order(
    spark: Any, broker: TestBroker, tmp_path: Path
) -> None:
    broker.create_topic("ordered", type="fifo", queues=4)
    messages = [sent("orders", n, queues=2, __SHARDINGKEY=f"customer{n % 2}") for n in range(300)]
    store = write_store(tmp_path / "broker-a", messages)
    out = str(tmp_path / "archive")
    archive(spark, ArchivePlan(str(store), out, live=True, split_bytes=8192))
    plan = ReplayPlan("orders", "ordered", broker.endpoints, archive=out)
    with pytest.raises(Exception, match="have message groups and must keep their order"):
        replay(spark, plan)
    plan = ReplayPlan("orders", "ordered", broker.endpoints, archive=out, keep_order=True)
    assert replay(spark, plan).summary["sent"] == 300
    by_group: dict[str, list[int]] = {}
    for one in whole_topic(broker.endpoints, "ordered", 300):
        by_group.setdefault(one.group, []).append(int(one.properties["replay-queue-offset"]))
    assert {group: len(found) for group, found in by_group.items()} == {
        "customer0": 150,
        "customer1": 150,
    }
    assert all(found == sorted(found) for found in by_group.values())


def test_dead_letters_are_grouped_and_sent_again(
    spark: Any, broker: TestBroker, tmp_path: Path
) -> None:
    broker.create_topic("first", type="normal", queues=1)
    dead = [
        sent(
            "%DLQ%billing", n, queues=1, RETRY_TOPIC="first", reason="no stock" if n % 2 else "slow"
        )
        for n in range(40)
    ]
    dead += [sent("%DLQ%audit", n, queues=1, DLQ_ORIGIN_TOPIC="second") for n in range(5)]
    store = write_store(tmp_path / "broker-a", [*dead, sent("first", 1)])
    now_ms = BEGIN_MS + 7_200_000
    report = dlq(spark, DlqPlan(str(store)), now_ms)
    assert report.summary["messages"] == 45
    assert [(r["group"], r["origin"], r["reason"], r["messages"]) for r in report.rows] == [
        ("audit", "second", "given up after 0 deliveries", 5),
        ("billing", "first", "slow", 20),
        ("billing", "first", "no stock", 20),
    ]
    assert {row["age"] for row in report.rows} == {"under 1 day"}
    plan = DlqPlan(
        str(store), group="billing", reason="stock", resend=True, endpoints=broker.endpoints
    )
    assert dlq(spark, plan, now_ms, dry_run=True).summary["sent"] == 0
    assert dlq(spark, plan, now_ms).summary["sent"] == 20
    found = whole_topic(broker.endpoints, "first", 20)
    assert sorted(face(one)[0] for one in found) == sorted(one.body for one in dead[1:40:2])
    out = str(tmp_path / "archive")
    archive(spark, ArchivePlan(str(store), out, live=True))
    assert dlq(spark, DlqPlan(archive=out), now_ms).rows == report.rows
    with pytest.raises(PipelineError, match="either an archive or a store"):
        dlq(spark, DlqPlan(), now_ms)
    json.dumps(report.document())
