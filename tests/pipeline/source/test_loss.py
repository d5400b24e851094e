"""No message is lost without a word: each way to lose one, on the reader of both sources."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from cometmq.pipeline.errors import DataLossError, OptionError
from cometmq.pipeline.source.options import parse
from cometmq.pipeline.source.reader import plan
from cometmq.pipeline.source.stream import LogStreamReader
from cometmq.pipeline.source.tasks import LogPartition, read
from cometmq.proto import paths
from cometmq.store.format.layout import REPLICA_FILE, REPLICA_FOLDER
from cometmq.store.format.slot_file import encode_slot
from cometmq.tests.pipeline.logs import MadeLog, message
from cometmq.tests.pipeline.source.lossy import HandlerChannel, LossyStore, Query, stored

ON_LOSS = {"failOnDataLoss": "false"}
SOURCES = ("path", "endpoints")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyStore]:
    made = LossyStore(tmp_path / "store")
    monkeypatch.setattr(HandlerChannel, "world", made, raising=False)
    monkeypatch.setattr("cometmq.pipeline.source.wire.Channel", HandlerChannel)
    yield made
    made.close()


def replaced(world: LossyStore, source: str, **options: str) -> Query:
    """A query that has read 64 messages of a log that was restored to 32; 50 were sent since."""
    world.send(count=32)
    world.back_up()
    world.send(count=32)
    query = Query(world, source, options)
    assert query.drain() == list(range(64))
    query.kill()
    world.restore()
    world.send(count=50)
    return query


@pytest.mark.parametrize("source", SOURCES)
def test_a_log_behind_the_checkpoint_is_an_error_with_queue_checkpoint_and_range(
    world: LossyStore, source: str
) -> None:
    query = replaced(world, source)
    with pytest.raises(DataLossError) as caught:
        query.drain()
    text = str(caught.value)
    assert "The log of broker-a is not the one of the checkpoint" in text
    assert "Queue 0 of t (broker-a) has messages 0 to 41, and the checkpoint is at 32" in text
    assert "messages 16 to 32 are not those of the checkpoint" in text
    assert "Set failOnDataLoss=false to continue" in text


@pytest.mark.parametrize("source", SOURCES)
def test_reading_goes_on_at_the_end_of_the_common_history(
    world: LossyStore, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = replaced(world, source, **ON_LOSS)
    assert query.batch(ReadMaxRows(20))
    assert "messages 16 to 32 are not those of the checkpoint" in caplog.text
    assert "failOnDataLoss" in caplog.text
    caplog.clear()
    query.drain()
    assert sorted(query.rows) == list(range(64 + 50))
    assert "data_loss" not in caplog.text


@pytest.mark.parametrize("source", SOURCES)
def test_a_log_that_lost_its_end_is_reported_before_it_grows_again(
    world: LossyStore, source: str
) -> None:
    world.send(count=10)
    world.back_up()
    world.send(count=10)
    query = Query(world, source)
    query.drain()
    world.restore()
    with pytest.raises(DataLossError, match="has messages 0 to 5, and the checkpoint is at 10"):
        query.drain()
    query.restart(**ON_LOSS)
    assert query.drain() == []
    world.send(count=4)
    assert query.drain() == [20, 21, 22, 23]


def test_a_cluster_has_time_to_come_back_after_a_failover(
    world: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader may confirm its last records a moment later."""
    world.send(count=10)
    world.back_up()
    world.send(count=10)
    query = Query(world, "endpoints", {"wireTimeoutMs": "60000"})
    query.drain()
    world.back_up("whole")
    world.restore()
    paused: list[str] = []

    def comes_back() -> None:
        paused.append("whole")
        world.restore("whole")

    monkeypatch.setattr("cometmq.pipeline.source.stream.pause", comes_back)
    assert query.drain() == []
    assert paused == ["whole"]
    world.send(count=2)
    assert query.drain() == [20, 21]


@pytest.mark.parametrize("source", SOURCES)
def test_a_batch_that_is_planned_again_is_not_read_from_another_log(
    world: LossyStore, source: str
) -> None:
    """The driver is killed in a batch, and the log is replaced before the next start."""
    world.send(count=10)
    world.back_up()
    query = Query(world, source, ON_LOSS)
    query.batch(ReadMaxRows(4))
    world.send(count=10)
    assert query.plan()
    query.kill()
    world.restore()
    world.send(count=30)
    query.drain()
    assert sorted(query.rows) == [*range(10), *range(20, 50)]
    again = Query(world, source, checkpoint=stored({"broker-a": {"t": {"0": 5, "1": 5}}}))
    assert again.drain() == list(range(20, 50)), "a checkpoint of an older version"


@pytest.mark.parametrize("source", SOURCES)
def test_a_checkpoint_without_marks_still_finds_a_log_that_ends_below_it(
    world: LossyStore, source: str
) -> None:
    world.send(count=10)
    old = stored({"broker-a": {"t": {"0": 9, "1": 5}}, "$plan": {"splitBytes": 5}})
    with pytest.raises(DataLossError, match=r"Queue 0 of t .* the checkpoint is at 9"):
        Query(world, source, checkpoint=old).drain()
    query = Query(world, source, ON_LOSS, checkpoint=old)
    query.drain()
    world.send(count=2)
    assert query.drain() == [10, 11]


@pytest.mark.parametrize("source", SOURCES)
def test_a_batch_read_that_starts_beyond_the_end_is_data_loss(
    world: LossyStore, source: str
) -> None:
    world.send(count=10)
    query = Query(world, source, {"startingOffsets": '{"t":{"0":7}}'})
    with pytest.raises(DataLossError, match=r"Queue 0 of t .* the checkpoint is at 7"):
        query.drain()
    where = {"path": str(world.root)} if source == "path" else {"endpoints": "127.0.0.1:1"}
    given = {**where, "subscribe": "t", "startingOffsets": '{"t":{"0":7}}'}
    with pytest.raises(DataLossError, match=r"Messages 7 to 5 of queue 0 of t .* were requested"):
        plan(parse(given))
    chosen = parse({**given, **ON_LOSS})
    rows = [row for one in plan(chosen) for row in read(chosen, LogPartition(one))]
    assert sum(row.num_rows for row in rows) == 5, "the other queue"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("topic", ["u", "t"])
def test_segments_that_expire_before_the_first_batch_are_data_loss(
    world: LossyStore, source: str, topic: str
) -> None:
    """Of a topic that is empty when the query starts, alone or beside another one."""
    if topic == "u":
        world.send("t", 4)
    query = Query(world, source)
    query.start()
    world.send(topic, 40)
    query.kill()
    world.expire(2)
    query.start()
    with pytest.raises(DataLossError, match=rf"queue 0 of {topic} .*|Queue 0 of {topic} "):
        query.drain()
    query.restart(**ON_LOSS)
    rows = query.drain()
    kept = [one for one in world.there if one.position >= world.first_position()]
    assert rows == [one.number for one in kept]
    assert query.checkpoint is not None
    assert query.checkpoint["$lost"] == len(world.there) - len(kept)


@pytest.mark.parametrize("source", SOURCES)
def test_a_new_topic_that_began_before_the_query_is_no_loss(world: LossyStore, source: str) -> None:
    world.send("u", 40)
    world.expire(2)
    query = Query(world, source, {"subscribe": "t"})
    query.start()
    world.send("t", 1)
    query.restart(subscribe="t,u")
    assert len(query.drain()) == 1 + sum(
        one.topic == "u" and one.position >= world.first_position() for one in world.there
    )


@pytest.mark.parametrize("source", SOURCES)
def test_what_exists_is_read_when_a_segment_expires_between_plan_and_read(
    world: LossyStore, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.send(count=60)
    query = Query(world, source, ON_LOSS)
    reader = query.start()
    assert query.plan()
    assert query.checkpoint is not None
    assert query.pending is not None
    parts = reader.partitions(query.checkpoint, query.pending)
    world.expire(1)
    found = [
        int(row["msgId"], 16)
        for part in parts
        for rows in reader.read(part)
        for row in rows.to_pylist()
    ]
    start = world.first_position()
    assert found == [one.number for one in world.there if one.position >= start]
    assert "data_loss" in caplog.text
    strict = Query(world, source, checkpoint=query.checkpoint, pending=query.pending)
    with pytest.raises(DataLossError, match="Set failOnDataLoss=false"):
        strict.batch()


@pytest.mark.parametrize("source", SOURCES)
def test_messages_below_a_checkpoint_that_retention_deleted_are_counted(
    world: LossyStore, source: str
) -> None:
    world.send(count=2)
    query = Query(world, source, ON_LOSS)
    query.drain()
    world.send(count=40)
    world.expire(2)
    read_later = query.drain()
    assert query.checkpoint is not None
    assert query.checkpoint["$lost"] == 40 - len(read_later) > 0
    assert query.start().reportLatestOffset() == {
        "broker-a": {"t": {"0": 21, "1": 21}},
        "$lost": query.checkpoint["$lost"],
    }


def test_a_topic_created_again_is_read_from_its_first_message(tmp_path: Path) -> None:
    """Apache's broker begins at offset 0 again: the checkpoint may lie inside of the new queue."""
    log = MadeLog(tmp_path).append(*(message(n) for n in range(5)))
    given = {"path": str(tmp_path), "startingOffsets": "earliest", "subscribe": "t"}
    source = LogStreamReader(parse(given))
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    del log.queues["t", 0]
    shutil.rmtree(tmp_path / "consumequeue" / "t")
    with pytest.raises(DataLossError, match="is gone: the topic was deleted"):
        source.latestOffset(end, ReadAllAvailable())
    log.append(*(message(n) for n in range(5, 15)))
    with pytest.raises(DataLossError, match="messages 0 to 5 are not those of the checkpoint"):
        source.latestOffset(end, ReadAllAvailable())
    calm = LogStreamReader(parse({**given, **ON_LOSS}))
    after = calm.latestOffset(end, ReadAllAvailable())
    parts = calm.partitions(end, after)
    rows = [row for part in parts for batch in calm.read(part) for row in batch.to_pylist()]
    assert [int(row["msgId"], 16) for row in rows] == list(range(5, 15))


def test_a_deleted_topic_that_only_a_pattern_matched_does_not_end_a_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    MadeLog(tmp_path).append(*(message(n, "ab"[n % 2]) for n in range(6)))
    source = LogStreamReader(parse({"path": str(tmp_path), "startingOffsets": "earliest"}))
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    shutil.rmtree(tmp_path / "consumequeue" / "b")
    after = source.latestOffset(end, ReadAllAvailable())
    assert "b" not in after[tmp_path.name]
    assert "Queue 0 of b" in caplog.text


def test_a_checkpoint_of_another_broker_is_refused(world: LossyStore) -> None:
    world.send(count=10)
    query = Query(world, "path", {"brokerName": "other"})
    query.drain()
    query.restart()
    with pytest.raises(OptionError, match=r"checkpoint is of broker 'other'.* brokerName=other"):
        query.drain()
    query.kill()
    query.source = "endpoints"
    with pytest.raises(DataLossError, match="Broker 'other' is in the checkpoint and not in"):
        query.drain()


def test_a_store_has_the_name_of_its_broker_under_every_path(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "store").append(*(message(n) for n in range(10)))
    old = {"store": {"t": {"0": 4}}, "$plan": {"splitBytes": 1 << 20}}
    (log.root / REPLICA_FOLDER).mkdir()
    (log.root / REPLICA_FOLDER / REPLICA_FILE).write_bytes(encode_slot(1, {"group": "b7"}))
    (tmp_path / "link").symlink_to(log.root)
    ends = []
    for name in ("store", "link"):
        source = LogStreamReader(parse({"path": str(tmp_path / name)}))
        assert list(source.initialOffset()) == ["b7", "$plan", "$log"]
        if name == "store":
            ends.append(source.latestOffset(old, ReadAllAvailable()))
            assert ends[0]["b7"] == {"t": {"0": 10}}, "a checkpoint of an older version"
        assert source.latestOffset(ends[0], ReadAllAvailable()) == ends[0]
    chosen = parse({"path": str(log.root)})
    rows: list[Any] = [row for one in plan(chosen) for row in read(chosen, LogPartition(one))]
    assert {name for row in rows for name in row.column("brokerName").to_pylist()} == {"b7"}


def test_a_group_that_does_not_exist_is_refused_before_the_first_batch(
    world: LossyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(count=4)
    query = Query(world, "endpoints", {"consumerGroup": "absent"})
    with pytest.raises(
        OptionError, match=r"group absent cannot be committed.* group create absent"
    ):
        query.plan()
    asked: list[int] = []

    def commits(self: HandlerChannel, path: str, request: Any, answer: type[Any]) -> Any:
        if path != paths.UPDATE_OFFSET:
            return call(self, path, request, answer)
        asked.append(request.offset)
        if request.offset > 2:
            raise DataLossError("the offset is outside of the queue")
        return answer()

    call = HandlerChannel.call
    monkeypatch.setattr(HandlerChannel, "call", commits)
    query.drain()
    assert asked == [0, 0], "where the query starts"
    with pytest.raises(DataLossError, match=r"The progress of queue 0 of t .* cannot be 3"):
        query.start().commit({"broker-a": {"t": {"0": 3}}})
    query.restart(consumerGroup="absent", **ON_LOSS)
    query.start().commit({"broker-a": {"t": {"0": 3}}})


def test_a_queue_that_was_removed_and_used_again_keeps_its_messages_after_a_kill(
    tmp_path: Path,
) -> None:
    """Its noted end is that of its earlier use, and the start reads none of the new records."""
    with closing(LossyStore(tmp_path / "store")) as world:
        world.send("u", 12)
        world.send("t", 30)
        world.expire(9)
        queues = [("u", 0), ("u", 1)]
        assert [world.store.min_offset(*queue) for queue in queues] == [6, 6]
        assert world.store.removal.remove_expired(queues) == queues
        world.send("u", 5)
        world.crash()
        assert [world.store.min_offset(*queue) for queue in queues] == [0, 0]
        assert sum(world.store.max_offset(*queue) for queue in queues) == 5
