"""The source from brokers: ranges of the log as raw frames, or PullMessage without ReadLog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import sync
from cometmq.pipeline.errors import (
    DataLossError,
    OptionError,
    PipelineError,
    UnreachableError,
)
from cometmq.pipeline.source.channel import Channel, NotServedError
from cometmq.pipeline.source.log import WireSplit
from cometmq.pipeline.source.options import parse
from cometmq.pipeline.source.reader import plan
from cometmq.pipeline.source.stream import LogStreamReader
from cometmq.pipeline.source.tasks import LogPartition, read
from cometmq.pipeline.source.wire import frames, open_wire, report_progress
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.live import Live
from cometmq.tests.pipeline.logs import live_broker

COUNT = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A broker with messages in small segments."""
    with live_broker(tmp_path_factory.mktemp("wire"), segment=1 << 17) as live:
        access = parse({"endpoints": live.bound.client}).access
        assert access is not None
        with Channel(access) as wire:
            for topic in ("orders", "payments", "stream"):
                made = v1.CreateTopicRequest(name=topic, queues=4)
                wire.call(paths.CREATE_TOPIC, made, v1.CreateTopicResponse)
        with sync.Producer(live.bound.client) as producer:
            for number in range(COUNT):
                topic = "orders" if number % 3 else "payments"
                body = b"%04d-" % number + b"x" * (number * 7 % 2000)
                producer.send(topic, body, tag=f"T{number % 2}", keys=(f"k{number}",))
        yield live


def options(live: Live, **more: str) -> Any:
    return parse({"endpoints": live.bound.client, **more})


def rows(chosen: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in plan(chosen):
        for batch in read(chosen, LogPartition(one)):
            found += batch.to_pylist()
    return found


def key(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queueId"], row["queueOffset"]


def test_every_message_is_read_once_for_any_split_size(broker: Live) -> None:
    for split_bytes in ("1000000", "5000"):
        found = rows(options(broker, splitBytes=split_bytes))
        bodies = sorted(row["body"][:4] for row in found)
        assert bodies == [b"%04d" % number for number in range(COUNT)]
        assert {row["topic"] for row in found} == {"orders", "payments"}


def test_brokers_and_files_give_the_same_rows(broker: Live) -> None:
    name = broker.node.runtime.config.broker_name
    root = broker.node.store.config.store_path_root_dir
    wire = rows(options(broker, subscribe="orders"))
    files = rows(parse({"path": root, "brokerName": name, "subscribe": "orders"}))
    assert len(wire) == 200
    by_key = {key(row): row for row in files}
    assert all(by_key[key(row)] == row for row in wire)


def test_offsets_times_and_tags_limit_a_read(broker: Live) -> None:
    everything = sorted(rows(options(broker, subscribe="payments")), key=key)
    first = everything[0]
    name, queue = first["brokerName"], str(first["queueId"])
    some = rows(
        options(
            broker,
            subscribe="payments",
            startingOffsets=f'{{"{name}":{{"payments":{{"{queue}":2}}}}}}',
            endingOffsets=f'{{"payments":{{"{queue}":5}}}}',
        )
    )
    assert sorted(r["queueOffset"] for r in some if str(r["queueId"]) == queue) == [2, 3, 4]
    middle = sorted(row["storeTimestamp"] for row in everything)[50]
    late = rows(
        options(
            broker, subscribe="payments", startingTimestamp=str(round(middle.timestamp() * 1e3))
        )
    )
    assert {key(r) for r in late} == {key(r) for r in everything if r["storeTimestamp"] >= middle}
    tagged = rows(options(broker, subscribe="payments", subExpression="T1 || T9"))
    assert {key(r) for r in tagged} == {key(r) for r in everything if r["tags"] == "T1"}
    assert tagged


def test_a_misspelt_topic_is_refused_with_a_suggestion(
    broker: Live, caplog: pytest.LogCaptureFixture
) -> None:
    for more in ({}, {"readLog": "never"}):
        with pytest.raises(OptionError, match=r"no topic 'paymets' in .* Did you mean 'payments'"):
            rows(options(broker, subscribe="orders,paymets", **more))
        source = LogStreamReader(options(broker, subscribe="paymets", **more))
        source.initialOffset()
        assert "no topic 'paymets'" in caplog.text
        assert "The query waits for it." in caplog.text
        source.stop()
        caplog.clear()
    with Channel(options(broker).access) as wire:
        made = v1.CreateTopicRequest(name="young", queues=4)
        wire.call(paths.CREATE_TOPIC, made, v1.CreateTopicResponse)
    assert rows(options(broker, subscribe="young")) == []
    assert rows(options(broker, subscribePattern="nothing.*")) == []
    assert "No topic fully matches subscribePattern 'nothing.*'" in caplog.text


def test_pulled_queues_give_the_same_messages(broker: Live) -> None:
    pulled = rows(options(broker, subscribe="orders", readLog="never"))
    raw = rows(options(broker, subscribe="orders"))
    shown = ("topic", "queueId", "queueOffset", "msgId", "tags", "keys", "body", "bornTimestamp")
    strip = [tuple(row[name] for name in shown) for row in sorted(raw, key=key)]
    assert [tuple(row[name] for name in shown) for row in sorted(pulled, key=key)] == strip
    with pytest.raises(OptionError, match="name the topics"):
        rows(options(broker, readLog="never"))


def test_reading_stops_at_the_confirm_offset(broker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """ReadLog returns no byte above the confirm offset, even inside a record."""
    whole = frames_of(broker, 0)
    limit = whole[-1][1] + len(whole[-1][0]) - 1  # one byte of the last record is not confirmed
    monkeypatch.setattr(type(broker.node.pump), "readable_limit", lambda self: limit)
    with Channel(options(broker).access) as wire:
        for end in (0, 1 << 40):
            answers = list(wire.stream(paths.READ_LOG, v1.ReadLogRequest(end=end), v1.LogFrames))
            assert answers[-1].next_offset < limit
            assert answers[-1].confirm == limit
            assert all(one.offset + len(one.frames) <= limit for one in answers)
        with pytest.raises(DataLossError, match="beyond the confirmed end"):
            list(wire.stream(paths.READ_LOG, v1.ReadLogRequest(offset=limit + 1), v1.LogFrames))


def frames_of(broker: Live, start: int) -> list[tuple[bytes, int, int]]:
    end = broker.node.pump.readable_limit()
    chosen = options(broker)
    name = broker.node.runtime.config.broker_name
    return list(frames(chosen.access, WireSplit(name, start, end)))


def test_a_range_may_begin_inside_a_record(broker: Live) -> None:
    whole = frames_of(broker, 0)
    inside = frames_of(broker, 1)
    assert inside[0][1] > 0
    assert b"".join(one[0] for one in whole).endswith(b"".join(one[0] for one in inside))


def test_a_deleted_offset_is_an_error_without_at_least(
    broker: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = frames_of(broker, 0)[0][0]
    assert start
    first = (1 << 17) * 1
    store = type(broker.node.store)
    monkeypatch.setattr(store, "log_start", property(lambda self: first))
    with Channel(options(broker).access) as wire:
        with pytest.raises(DataLossError, match="deleted by retention"):
            list(wire.stream(paths.READ_LOG, v1.ReadLogRequest(offset=5), v1.LogFrames))
        request = v1.ReadLogRequest(offset=5, at_least=True)
        answers = list(wire.stream(paths.READ_LOG, request, v1.LogFrames))
        assert answers[0].offset == first


def test_damaged_frames_raise_a_checksum_mismatch(
    broker: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.admin.read_log.crc32", lambda data: 7)
    with pytest.raises(PipelineError, match="Checksum mismatch"):
        frames_of(broker, 0)


def test_an_unknown_broker_name_is_refused(broker: Live) -> None:
    with (
        Channel(options(broker).access) as wire,
        pytest.raises(PipelineError, match="unknown broker nope"),
    ):
        wire.call(paths.LOCATE_LOG, v1.LocateLogRequest(broker="nope"), v1.LocateLogResponse)


def test_an_unreachable_endpoint_raises_unreachable_error() -> None:
    chosen = parse({"endpoints": "127.0.0.1:1", "wireTimeoutMs": "500"})
    with pytest.raises(UnreachableError, match="does not answer"):
        open_wire(chosen)


def test_progress_is_committed_as_the_offset_of_the_group(broker: Live) -> None:
    chosen = replace(options(broker), consumer_group="spark-progress")
    first = rows(options(broker, subscribe="orders"))[0]
    queue = (first["brokerName"], "orders", first["queueId"])
    with pytest.raises(OptionError, match="spark-progress"):
        report_progress(chosen, {queue: 3})
    with Channel(chosen.access) as wire:
        made = wire.call(
            paths.CREATE_GROUP, v1.CreateGroupRequest(name="spark-progress"), v1.CreateGroupResponse
        )
        assert made.code == v2.OK
    report_progress(chosen, {queue: 3})
    assert broker.node.offsets.get("orders", "spark-progress", first["queueId"]) == 3


def test_spark_reads_a_running_broker(spark: Any, broker: Live) -> None:
    reader = spark.read.format("rocketmq").option("endpoints", broker.bound.client)
    frame = reader.option("subscribe", "orders").option("columns", "topic,queueId,body").load()
    assert frame.count() == 200


def test_a_stream_from_a_broker_continues_after_a_restart(
    spark: Any, broker: Live, tmp_path: Path
) -> None:
    def drain(limit: str) -> list[int]:
        stream = (
            spark.readStream.format("rocketmq")
            .option("endpoints", broker.bound.client)
            .option("subscribe", "stream")
            .option("startingOffsets", "earliest")
            .option("consumerGroup", "streamers")
            .option("maxOffsetsPerTrigger", limit)
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    with sync.Producer(broker.bound.client) as producer:
        for number in range(40):
            producer.send("stream", b"%d" % number)
        with pytest.raises(Exception, match="cometmq group create streamers"):
            drain("15")
        assert not [*tmp_path.glob("out/*.parquet")], "before the first output"
        with Channel(options(broker).access) as wire:
            group = v1.CreateGroupRequest(name="streamers")
            wire.call(paths.CREATE_GROUP, group, v1.CreateGroupResponse)
        sizes = drain("15")
        assert sum(sizes) == 40
        assert max(sizes) <= 15
        for number in range(40, 50):
            producer.send("stream", b"%d" % number)
    assert sum(drain("1000")) == 10
    table = spark.read.parquet(str(tmp_path / "out"))
    bodies = sorted(int(row["body"]) for row in table.select("body").collect())
    assert bodies == list(range(50))
    offsets = broker.node.offsets
    ends = {
        queue: broker.node.store.max_offset("stream", queue)
        for topic, queue in broker.node.store.queues()
        if topic == "stream"
    }
    committed = {queue: offsets.get("stream", "streamers", queue) or 0 for queue in ends}
    # Spark calls `commit` for a batch when the next one begins: one batch late, never too much.
    assert sum(committed.values()) == 40
    assert sum(ends.values()) == 50


def test_a_broken_frame_stream_continues_at_its_last_offset(
    broker: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = b"".join(one[0] for one in frames_of(broker, 0))
    stream = Channel.stream
    broken: list[int] = []

    def breaks(self: Channel, *arguments: Any) -> Iterator[Any]:
        for number, answer in enumerate(stream(self, *arguments)):
            if number and len(broken) < 3:
                broken.append(answer.offset)
                raise UnreachableError("gone")
            yield answer

    monkeypatch.setattr("cometmq.pipeline.source.wire._FRAME_BYTES", 20_000)
    monkeypatch.setattr(Channel, "stream", breaks)
    assert b"".join(one[0] for one in frames_of(broker, 0)) == whole
    assert len(broken) == 3


def test_brokers_without_read_log_are_pulled(broker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Channel.call

    def foreign(self: Channel, path: str, *arguments: Any) -> Any:
        if path == paths.LOCATE_LOG:
            raise NotServedError("unknown")
        return call(self, path, *arguments)

    monkeypatch.setattr(Channel, "call", foreign)
    assert len(rows(options(broker, subscribe="payments"))) == 100
    with pytest.raises(NotServedError):
        rows(options(broker, subscribe="payments", readLog="always"))


def test_access_keys_sign_every_call() -> None:
    with Channel(options_of_keys()) as wire:
        sent = dict(wire._caller.metadata())
    assert "Credential=key, " in sent["authorization"]
    assert sent["x-mq-session-token"] == "token"


def options_of_keys() -> Any:
    keys = {"accessKey": "key", "secretKey": "secret", "securityToken": "token"}
    return parse({"endpoints": "127.0.0.1:1", **keys}).access
