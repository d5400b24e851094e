"""Archive, archive gate and replay on a live cluster whose retention deletes at once.

No record is deleted before it is archived and checked; a full disk overrides that and logs it; a
replay sends the archived messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import cometmq
from cometmq.client.errors import CometError
from cometmq.pipeline.archive.gate import get_watermark, set_watermark
from cometmq.pipeline.archive.planning import snapshot
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.archive import ArchivePlan, archive, check_archive
from cometmq.pipeline.jobs.replay import ReplayPlan, replay
from cometmq.pipeline.source.options import Access
from cometmq.store.format.disk import Disk, Space
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.live import settings, until
from cometmq.tests.broker.maintenance.test_retention_broker import fill, tiny
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.pipeline.reading import face, whole_topic

pytestmark = pytest.mark.timeout(600)
pytest.importorskip("pyspark", reason="pyspark is not installed")

SEGMENT = 256 << 10
HOURS = ";".join(f"{hour:02d}" for hour in range(24))
#: A segment expires at once, a round of retention comes five times a second.
RETENTION = {
    "COMETMQ_ARCHIVE_GATE": "true",
    "COMETMQ_FILE_RESERVED_TIME": "0",
    "COMETMQ_DELETE_WHEN": HOURS,
    "COMETMQ_CLEAN_RESOURCE_INTERVAL": "200",
    "COMETMQ_DELETE_COMMIT_LOG_FILES_INTERVAL": "1",
    "COMETMQ_MESSAGE_DEDUPLICATION_ENABLE": "true",
    "COMETMQ_MESSAGE_DEDUPLICATION_WINDOW_MS": "600000",
}


class Watcher(threading.Thread):
    """Looks again and again whether the log begins above the watermark."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.endpoint = endpoint
        self.ended = threading.Event()
        self.wrong: list[str] = []
        self.looks = 0

    def run(self) -> None:
        while not self.ended.wait(0.05):
            try:
                mark = get_watermark(Access(self.endpoint))
            except PipelineError:
                continue  # the machine is busy
            self.looks += 1
            if mark.log_start > mark.watermark:
                self.wrong.append(str(mark))


def send(endpoints: str, begin: int, end: int) -> None:
    """Send messages with all optional fields, and messages of message groups."""
    with cometmq.sync.Producer(endpoints, timeout=60.0) as producer:
        for number in range(begin, end):
            producer.send(
                "orders",
                f"order {number} ".encode() * 60,
                tag=f"t{number % 3}",
                keys=[f"o-{number}", "all"],
                properties={"number": str(number)},
            )
            if number % 5 == 0:
                producer.send(
                    "customers", f"{number}".encode() * 100, group=f"customer-{number % 4}"
                )


def make_topics(cluster: Cluster) -> None:
    for name in ("orders", "orders-again", "probe"):
        cluster.create_topic(name, queues=4)
    for name in ("customers", "customers-again"):
        cluster.create_topic(name, kind="fifo", queues=4)


@pytest.mark.slow  # the next one does the same with two brokers and a failover
def test_no_record_is_deleted_before_it_is_archived(
    spark: Any, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster("--single", env=RETENTION, segment_size=SEGMENT)
    make_topics(cluster)
    endpoint = cluster.endpoints.split(";")[0]
    store = next(iter(sorted(cluster.data.rglob("commitlog")))).parent
    out = tmp_path / "archive"
    plan = ArchivePlan(str(store), str(out), broker="broker-a", gate=endpoint, split_bytes=64 << 10)
    watcher = Watcher(endpoint)
    watcher.start()
    send(endpoint, 0, 700)
    segments = {path.name for path in (store / "commitlog").iterdir()}
    assert "0" * 20 in segments, "a segment went although nothing was archived"
    for begin in (700, 1000):
        report = archive(spark, plan)
        assert report.problems == []
        mark = report.summary["watermark"]
        assert mark > 0
        assert mark % SEGMENT == 0
        wait_until(
            "what is archived goes",
            lambda mark=mark: get_watermark(Access(endpoint)).log_start >= mark,
        )
        send(endpoint, begin, begin + 300)
    end = get_watermark(Access(endpoint)).log_end
    # What is confirmed stands in the store a moment later.
    wait_until("the files say that all is confirmed", lambda: snapshot(str(store)).end >= end)
    archive(spark, ArchivePlan(str(store), str(out), broker="broker-a", live=True))
    watcher.ended.set()
    watcher.join()
    assert watcher.looks > 5
    assert watcher.wrong == []
    assert check_archive(spark, str(out), str(store), "broker-a").problems == []
    offsets = ds.dataset(out, partitioning="hive").to_table()["physicalOffset"].to_pylist()
    assert len(offsets) == len(set(offsets))
    replayed(spark, endpoint, str(out), 1300)


def replayed(spark: Any, endpoint: str, out: str, orders: int) -> None:
    """What was sent, read from the topics that it is replayed into."""
    for topic, count in (("orders", orders), ("customers", orders // 5)):
        plan = ReplayPlan(
            topic, f"{topic}-again", endpoint, archive=out, keep_order=topic == "customers"
        )
        for _ in range(2):  # a repeated job: the broker has these messages already
            assert replay(spark, plan).summary["sent"] == count
    found = whole_topic(endpoint, "orders-again", orders)
    expected = [
        (
            f"order {number} ".encode() * 60,
            f"t{number % 3}",
            (f"o-{number}", "all"),
            "",
            (("number", str(number)),),
        )
        for number in range(orders)
    ]
    assert Counter(map(face, found)) == Counter(expected)
    by_group: dict[str, list[int]] = {}
    for one in whole_topic(endpoint, "customers-again", orders // 5):
        by_group.setdefault(one.group, []).append(int(one.body[: len(one.body) // 100]))
    assert by_group == {
        f"customer-{group}": [n for n in range(0, orders, 5) if n % 4 == group]
        for group in range(4)
    }


class Stores(threading.Thread):
    """Looks into the directories of all replicas: whether a log begins above its own watermark."""

    def __init__(self, stores: list[Path]) -> None:
        super().__init__(daemon=True)
        self.stores = stores
        self.ended = threading.Event()
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.ended.wait(0.05):
            for store in self.stores:
                # The directory first: the watermark only grows. A reseeded replica starts at the
                # leader's log start before it receives the watermark.
                start = log_start(store)
                if start > max(mark_of(one) for one in self.stores):
                    self.wrong.append(f"{store} begins at {start}")


def log_start(store: Path) -> int:
    """Return the log start; -1 while a replica is reseeded."""
    try:
        names = [path.name for path in (store / "commitlog").iterdir()]
    except FileNotFoundError:
        return -1
    return min((int(name) for name in names if name.isdecimal()), default=-1)


def mark_of(store: Path) -> int:
    try:
        said = json.loads((store / "config" / "archiveWatermark.json").read_text())
    except FileNotFoundError:
        return 0
    return int(said["archiveWatermark"])


def test_leader_and_follower_keep_unarchived_records_after_a_failover(
    spark: Any, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """A default cluster: the controller elects, both brokers run retention."""
    cluster = new_cluster(env=RETENTION, segment_size=SEGMENT, controller=True).wait_in_sync()
    make_topics(cluster)
    leader, follower = cluster.node("master"), cluster.node("slave")
    stores = [next(one.data.rglob("commitlog")).parent for one in (leader, follower)]
    out = str(tmp_path / "archive")
    plan = ArchivePlan(
        *(str(stores[0]), out, "broker-a"), gate=cluster.address("master"), split_bytes=64 << 10
    )
    watcher = Stores(stores)
    watcher.start()
    send(cluster.endpoints, 0, 700)
    assert [log_start(store) for store in stores] == [0, 0]
    report = archive(spark, plan)
    assert report.problems == []
    mark = report.summary["watermark"]
    assert mark >= SEGMENT
    both(stores, mark)
    # The leader dies: who leads now knows what is archived, and takes the next word of it.
    cluster.kill9(leader.name)
    heir = cluster.address(follower.name)
    wait_until("the follower leads", lambda: leads(heir))
    assert get_watermark(Access(heir)).watermark == mark
    send(cluster.endpoints, 700, 1400)
    wait_until(
        "it is confirmed",
        lambda: snapshot(str(stores[1])).end >= get_watermark(Access(heir)).log_end,
    )
    report = archive(spark, replace(plan, store=str(stores[1]), gate=heir))
    assert report.problems == []
    assert report.summary["watermark"] > mark
    mark = report.summary["watermark"]
    wait_until("the new leader deletes", lambda: log_start(stores[1]) >= mark)
    cluster.restart(leader.name)
    both(stores, mark)
    archive(spark, replace(plan, store=str(stores[1]), gate="", live=True))
    watcher.ended.set()
    watcher.join()
    assert watcher.wrong == []
    replayed(spark, cluster.endpoints, out, 1400)


def both(stores: list[Path], mark: int) -> None:
    """The watermark is with both replicas, and stays; both have let go of what lies below."""
    wait_until("both know the watermark", lambda: [mark_of(one) for one in stores] == [mark] * 2)
    wait_until("both delete", lambda: all(log_start(one) >= mark for one in stores))
    time.sleep(1.5)  # a round of the broker's timer, and some
    assert [mark_of(one) for one in stores] == [mark] * 2


def leads(endpoint: str) -> bool:
    """Whether it takes messages; in an election it waits, or says that it does not."""
    try:
        with cometmq.sync.Producer(endpoint, timeout=5.0) as producer:
            producer.send("probe", b"probe")
    except CometError:
        return False
    return True


async def test_an_incorrect_archive_does_not_move_the_watermark(tmp_path: Path) -> None:
    chosen = tiny(settings(tmp_path / "store"), archive_gate=True)
    async with desk(tmp_path / "store", chosen) as one:
        one.topic("t")
        await fill(one, 200)
        await until(lambda: snapshot(str(tmp_path / "store")).end >= one.node.store.log_end)
        endpoint = one.live.bound.client
        plan = ArchivePlan(
            str(tmp_path / "store"), str(tmp_path / "out"), gate=endpoint, split_bytes=8 << 10
        )
        first = await asyncio.to_thread(
            archive, None, ArchivePlan(plan.store, plan.out, split_bytes=8 << 10)
        )
        assert first.problems == []
        files = sorted((tmp_path / "out").glob("topic=t/dt=*/*-0000000000.parquet"))
        data = bytearray(files[2].read_bytes())
        data[len(data) // 2] ^= 0xFF
        files[2].write_bytes(data)
        report = await asyncio.to_thread(archive, None, plan)
        assert len(report.problems) == 1
        assert files[2].name in report.problems[0]
        assert 0 < report.summary["watermark"] < 200 * 900
        assert one.node.store.log_start <= report.summary["watermark"]
        await asyncio.sleep(0.3)
        assert one.node.store.log_start <= report.summary["watermark"]
        with pytest.raises(PipelineError, match="above the log end"):
            await asyncio.to_thread(set_watermark, Access(endpoint), 1 << 40)


async def test_the_watermark_is_lowered_to_the_end_of_a_truncated_log(
    tmp_path: Path,
) -> None:
    """A new leader with a shorter log: records that it appends are not archived yet."""
    async with desk(tmp_path / "store", tiny(settings(tmp_path / "store"))) as one:
        one.topic("t")
        await fill(one, 50)
        store = one.node.store
        store.retention.watermark.set(store.log_end + 5000)
        one.node.maintenance.lead()
        assert store.retention.watermark.value == store.log_end
        await until(lambda: mark_of(tmp_path / "store") == store.log_end)
        store.retention.watermark.set(7)
        one.node.maintenance.lead()
        assert store.retention.watermark.value == 7


async def test_a_watermark_written_during_a_promotion_is_limited_to_the_log_end(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path / "store", tiny(settings(tmp_path / "store"))) as one:
        one.topic("t")
        await fill(one, 50)
        maintenance, end = one.node.maintenance, one.node.store.log_end
        maintenance._leader_watermark = end + 5000  # received from the leader, being adopted
        maintenance._adopting = asyncio.create_task(maintenance._adopt(end + 5000))
        maintenance.lead()
        await until(lambda: maintenance._adopting is None)
        await until(lambda: one.node.store.retention.watermark.value == end)
        assert mark_of(tmp_path / "store") == end


async def test_a_new_leader_keeps_the_watermark_that_is_set_on_it(
    tmp_path: Path,
) -> None:
    """The watermark of its earlier leader must not replace a new one."""
    async with desk(tmp_path / "store", tiny(settings(tmp_path / "store"))) as one:
        one.topic("t")
        await fill(one, 50)
        one.node.maintenance._leader_watermark = 7  # from its time as follower
        await asyncio.to_thread(set_watermark, Access(one.live.bound.client), 900)
        one.node.maintenance.tick()
        await asyncio.sleep(0.2)
        assert mark_of(tmp_path / "store") == 900
        assert one.node.store.retention.watermark.value == 900


async def test_a_full_disk_deletes_unarchived_records_and_the_job_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    percent = [10]
    monkeypatch.setattr(Disk, "space", lambda _disk, _path: Space(100, *[100 - percent[0]] * 2))
    monkeypatch.setattr(Disk, "free_bytes", lambda _disk, _path: 1 << 40)
    with caplog.at_level(logging.WARNING):
        chosen = tiny(settings(tmp_path / "store"), archive_gate=True)
        async with desk(tmp_path / "store", chosen) as one:
            one.topic("t")
            await fill(one, 100)
            # The confirm offset is written to the store some time after it is reached.
            await until(lambda: snapshot(str(tmp_path / "store")).end >= one.node.store.log_end)
            endpoint = one.live.bound.client
            plan = ArchivePlan(str(tmp_path / "store"), str(tmp_path / "out"), gate=endpoint)
            done = await asyncio.to_thread(archive, None, plan)
            assert done.problems == []
            assert done.summary["watermark"] > 0
            await fill(one, 100)
            percent[0] = 88
            await until(lambda: one.node.store.log_start > done.summary["watermark"])
            assert "archive.overridden" in caplog.text
            percent[0] = 10
            # A thread deletes the files that are no longer part of the log.
            log = tmp_path / "store" / "commitlog"
            await until(
                lambda: min(int(file.name) for file in log.iterdir()) >= one.node.store.log_start
            )
            await fill(one, 60)
            report = await asyncio.to_thread(archive, None, plan)
            assert any("before it was archived" in text for text in report.problems)
