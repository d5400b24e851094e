"""Batch source with a real Spark session, from store directories."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cometmq.pipeline.errors import DataLossError, OptionError
from cometmq.pipeline.schema import COLUMNS
from cometmq.pipeline.source.options import parse
from cometmq.pipeline.source.reader import plan
from cometmq.pipeline.source.stream import LogStreamReader
from cometmq.pipeline.source.tasks import LogPartition, read
from cometmq.tests.pipeline.logs import MadeLog, message
from cometmq.tests.pipeline.version_driver import pushed_filters


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MadeLog:
    log = MadeLog(tmp_path_factory.mktemp("source") / "broker-a")
    log.append(*(message(n, ("orders", "payments", "%RETRY%g")[n % 3], n % 2) for n in range(900)))
    assert log.base
    return log


def load(spark: Any, store: MadeLog, **options: str) -> Any:
    reader = spark.read.format("rocketmq").option("path", str(store.root))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_columns_are_pruned_by_option_and_by_schema(spark: Any, store: MadeLog) -> None:
    frame = load(spark, store, columns="topic,queueOffset")
    assert frame.columns == ["topic", "queueOffset"]
    assert frame.count() == 900
    reader = spark.read.format("rocketmq").option("path", str(store.root))
    chosen = reader.schema("topic string, bornTimestamp timestamp").load()
    assert chosen.filter("topic = 'orders'").count() == 300
    with pytest.raises(Exception, match="must match the source's schema"):
        reader.schema("topic binary").load().count()
    assert tuple(load(spark, store, properties="none").columns) == tuple(
        name for name in COLUMNS if name != "properties"
    )
    assert load(spark, store, properties="string").dtypes[8] == ("properties", "string")


def test_offsets_and_times_bound_a_read(spark: Any, store: MadeLog) -> None:
    frame = load(
        spark,
        store,
        subscribe="orders",
        columns="queueId,queueOffset",
        minPartitions="3",
        startingOffsets='{"broker-a":{"orders":{"0":10,"1":-1}}}',
        endingOffsets='{"orders":{"0":20}}',
    )
    assert sorted((r[0], r[1]) for r in frame.collect()) == [(0, n) for n in range(10, 20)]
    everything = load(spark, store, columns="storeTimestamp,physicalOffset").collect()
    times = sorted(row[0] for row in everything)
    begin, end = (str(round(times[at].timestamp() * 1000)) for at in (300, 600))
    some = load(spark, store, startingTimestamp=begin, endingTimestamp=end)
    assert some.count() == 300
    late = {"path": str(store.root), "startingTimestamp": "4000000000000"}
    with pytest.raises(OptionError, match=r"at or after 4000000000000\. With \w+Strategy=latest"):
        plan(parse(late))  # by default, as Kafka's source does
    assert not plan(parse({**late, "startingOffsetsByTimestampStrategy": "latest"}))
    everywhen = {"startingTimestamp": "0", "endingTimestamp": "4000000000000"}
    assert load(spark, store, **everywhen).count() == 900
    assigned = load(spark, store, assign='{"orders":{"broker-a":[1]}}', columns="queueId")
    assert [row[0] for row in assigned.distinct().collect()] == [1]


def test_filters_are_pushed_down_with_filter_pushdown(spark: Any, store: MadeLog) -> None:
    frame = load(spark, store, filterPushdown="true").filter("topic = 'orders' and queueId = 1")
    assert frame.count() == 150
    assert "queueId" in pushed_filters(frame)
    assert "topic" in pushed_filters(frame)
    assert (
        load(spark, store, filterPushdown="true").filter("topic in ('x', 'payments')").count()
        == 300
    )
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert load(spark, store).filter("topic = 'orders'").count() == 300
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_sql_reads_a_store(spark: Any, store: MadeLog) -> None:
    spark.sql(
        f"create or replace temporary view log using rocketmq options (path '{store.root}', "
        "subscribe 'orders')"
    )
    assert spark.sql("select count(*) from log").collect()[0][0] == 300
    spark.sql("drop view log")


def test_several_stores_are_read_as_several_brokers(
    spark: Any, store: MadeLog, tmp_path: Path
) -> None:
    other = MadeLog(tmp_path / "broker-b").append(*(message(n, "orders") for n in range(7)))
    reader = spark.read.format("rocketmq").option("columns", "brokerName,topic")
    both = reader.option("path", f"{store.root},{other.root}").option("subscribe", "orders").load()
    counts = {row[0]: row[1] for row in both.groupBy("brokerName").count().collect()}
    assert counts == {"broker-a": 300, "broker-b": 7}
    reader = reader.option("startingOffsets", '{"orders":{"0":1}}')
    with pytest.raises(Exception, match="need the broker's level"):
        reader.option("path", f"{store.root},{other.root}").load().count()


def test_replicas_of_one_log_in_path_are_refused(
    spark: Any, store: MadeLog, tmp_path: Path
) -> None:
    follower = tmp_path / "follower"
    shutil.copytree(store.root, follower)
    first, *_, last = sorted((follower / "commitlog").iterdir())
    first.unlink()  # its retention was a moment earlier
    with last.open("r+b") as file:  # and it is behind
        file.seek(300)
        file.write(bytes(last.stat().st_size - 300))
    paths = f"{store.root},{follower}"
    reader = spark.read.format("rocketmq").option("columns", "topic").option("path", paths)
    with pytest.raises(Exception, match="contain the same log"):
        reader.load().count()
    source = LogStreamReader(parse({"path": paths}))
    with pytest.raises(OptionError, match="contain the same log"):
        source.initialOffset()
    assert reader.option("allowReplicas", "true").load().count() > 900


def test_an_empty_store_gives_no_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    frame = spark.read.format("rocketmq").option("path", str(tmp_path)).load()
    assert frame.count() == 0


def test_a_misspelt_topic_is_refused_with_a_suggestion(spark: Any, store: MadeLog) -> None:
    with pytest.raises(Exception, match=r"There is no topic 'ordres' in .* Did you mean 'orders'"):
        load(spark, store, subscribe="orders,ordres").count()
    with pytest.raises(
        OptionError, match=r"There is no topic 'xyz' in .* There are: orders, payments"
    ):
        plan(parse({"path": str(store.root), "subscribe": "xyz", "startingOffsets": "earliest"}))
    with pytest.raises(OptionError, match="There is no topic 'order'"):
        plan(parse({"path": str(store.root), "assign": '{"order":[0]}'}))
    with pytest.raises(OptionError, match="assign names broker 'broker-b', which does not exist"):
        plan(parse({"path": str(store.root), "assign": '{"orders":{"broker-b":[0]}}'}))
    assert load(spark, store, subscribe="%RETRY%g").count() == 300


def test_a_pattern_without_a_match_logs_a_warning(
    store: MadeLog, caplog: pytest.LogCaptureFixture
) -> None:
    plan(parse({"path": str(store.root), "subscribePattern": "ord.*"}))
    assert caplog.text == ""
    plan(parse({"path": str(store.root), "subscribePattern": "ordesr"}))
    assert "No topic fully matches subscribePattern 'ordesr'. Did you mean 'orders'?" in caplog.text


def test_a_topic_without_messages_gives_no_rows(tmp_path: Path) -> None:
    """It is in the configuration; a log without configuration and queues accepts any name."""
    log = MadeLog(tmp_path).append(*(message(n, "orders") for n in range(9)))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"young":{}}}')
    chosen = parse({"path": str(tmp_path), "subscribe": "young"})
    assert [list(read(chosen, LogPartition(one))) for one in plan(chosen)] == [[]]
    shutil.rmtree(tmp_path / "config")
    shutil.rmtree(tmp_path / "consumequeue")
    for topic, count in (("orders", 9), ("unused", 0)):
        chosen = parse({"path": str(tmp_path), "subscribe": topic})
        batches = [batch for one in plan(chosen) for batch in read(chosen, LogPartition(one))]
        assert sum(batch.num_rows for batch in batches) == count
    assert log.end


def test_invalid_input_raises_a_sentence(spark: Any, store: MadeLog, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Did you mean subscribe"):
        load(spark, store, subscrbe="x")
    missing = spark.read.format("rocketmq").option("path", str(tmp_path / "nowhere"))
    with pytest.raises(Exception, match="is not a directory on this machine"):
        missing.load().count()
    with pytest.raises(Exception, match="the queue has 0 to 150"):
        load(spark, store, endingOffsets='{"orders":{"0":151}}').count()
    frame = load(spark, store, endingOffsets='{"orders":{"0":151}}', failOnDataLoss="false")
    assert frame.count() == 900


def test_a_missing_segment_is_data_loss(tmp_path: Path) -> None:
    MadeLog(tmp_path).append(*(message(n) for n in range(1300)))
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) > 2
    files[1].unlink()
    with pytest.raises(DataLossError, match="has no file for offsets"):
        plan(parse({"path": str(tmp_path)}))
    assert len(plan(parse({"path": str(tmp_path), "failOnDataLoss": "false"}))) == len(files) - 1


def test_a_segment_deleted_between_plan_and_read_is_data_loss(spark: Any, tmp_path: Path) -> None:
    log = MadeLog(tmp_path).append(*(message(n) for n in range(900)))
    chosen = parse({"path": str(tmp_path)})
    planned = plan(chosen)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(Exception, match="deleted before"):
        [list(read(chosen, LogPartition(one))) for one in planned]
    calm = parse({"path": str(tmp_path), "failOnDataLoss": "false"})
    rest = [batch for one in planned for batch in read(calm, LogPartition(one))]
    assert 0 < sum(batch.num_rows for batch in rest) < 900
    # A new plan begins where the log does now; offsets that were asked for are missed.
    assert spark.read.format("rocketmq").option("path", str(tmp_path)).load().count() > 0
    reader = spark.read.format("rocketmq").option("path", str(tmp_path))
    with pytest.raises(Exception, match="Retention deleted them"):
        reader.option("startingOffsets", '{"t":{"0":0}}').load().count()
    assert log.end
