"""The pages for operators: timers, transactions, store, against a real cluster."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import cometmq
from cometmq.broker.trace.records import Consumed, Delivered
from cometmq.console.archives import Archives
from cometmq.console.forecast import forecast, growth
from cometmq.console.pages.timers import bounds_of, merged, per_second
from cometmq.console.story import of_group, replicated, timeline, trace_id, traced
from cometmq.operations.connection import Connection
from cometmq.operations.links import Links
from cometmq.operations.message_states import PAST
from cometmq.pipeline.archive.manifest import FileEntry, Manifest
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.transacting import half
from cometmq.tests.console.served import Served, serve, told
from cometmq.tests.harness.cluster import Cluster, wait_until

HOUR_MS = 3_600_000


def test_the_curve_has_the_messages_of_each_step_a_second() -> None:
    ends, bounds = bounds_of(1_000, 600_000)
    assert (len(ends), ends[0], ends[-1]) == (120, 6_000, 601_000)
    assert set(ends) < set(bounds)
    assert len(bounds) <= 256
    assert per_second(0, [5_000, 10_000], [10, 15]) == [[5, 10], [2, 1]]


def test_a_page_of_timers_ends_where_a_group_has_listed_everything() -> None:
    def answer(next_ms: int, *due_ms: int) -> v1.ListTimersResponse:
        timers = [v1.WaitingMessage(due_ms=each, slot_ms=each // 1000 * 1000) for each in due_ms]
        return v1.ListTimersResponse(timers=timers, next_slot_ms=next_ms)

    page = merged([("a", answer(4_000, 1_500, 3_500)), ("b", answer(0, 2_500, 9_000))])
    assert [(broker, one.due_ms) for broker, one in page.rows] == [
        ("a", 1_500),
        ("b", 2_500),
        ("a", 3_500),
    ]
    assert page.next_ms == 4_000
    assert len(merged([("b", answer(0, 2_500, 9_000))]).rows) == 2


def hrefs(page: str, path: str) -> list[str]:
    """Return the links of a page to a path."""
    return [unescape(one) for one in re.findall(rf'href="({path}[^"]*)"', page)]


def fields_of(page: str) -> dict[str, str]:
    """Return the hidden fields of the form of a plan."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
    return {name: unescape(value) for name, value in found}


def test_delayed_messages_are_listed_searched_and_recalled(console: Served) -> None:
    fields = {"name": "reminders", "kind": "delay", "queues": "1", "permission": "rw"}
    assert console.act("/topics/new", fields).status == 303
    for n in range(3):
        sent = {"body": "x", "keys": f"remind-{n}", "delay_s": str(3_600 * (n + 1))}
        assert console.act("/topics/reminders/send", sent).status == 200
    asked = "/timers?topic=reminders"
    wait_until("all wait", lambda: "3 messages, the next" in told(console.get(asked)))
    assert "remind-2" in console.get(f"{asked}&q=REMIND-2")
    assert "remind-1" not in console.get(f"{asked}&q=remind-2")
    assert "remind-0" not in console.get(f"{asked}&begin=%2B90m")
    assert "None matches" in told(console.get(f"{asked}&q=nothing"))
    assert console.ask("GET", "/timers?begin=soon").status == 400
    curve = console.get("/timers?window=1+day")
    assert 'data-columns="[[' in curve

    recall = hrefs(console.get(f"{asked}&q=remind-1"), "/timers/recall")
    plan = console.get(recall[0])
    assert "A recall cannot be undone" in told(plan)
    done = console.act("/timers/recall", fields_of(plan))
    assert done.headers["location"] == "/timers?done=recalled"
    wait_until("it is gone", lambda: "remind-1" not in console.get(asked))
    assert console.act("/timers/recall", {"topic": "reminders"}).status == 400


def test_transactions_are_listed_with_checks_and_decided(
    console: Served, shared_cluster: Cluster
) -> None:
    fields = {"name": "payments", "kind": "transaction", "queues": "1", "permission": "rw"}
    assert console.act("/topics/new", fields).status == 303
    messages = [half("payments", f"PAY{n}", immunity_s=3_600) for n in range(2)]
    with Connection(shared_cluster.endpoints, Links()) as connection:
        for message in messages:
            request = v2.SendMessageRequest(messages=[message])
            connection.call(paths.SEND_MESSAGE, request, v2.SendMessageResponse)
    wait_until("both are listed", lambda: "PAY1" in console.get("/timers"))
    page = console.get("/timers")
    assert "PAY0 0 of 15 in 60 min at the earliest" in told(page)
    links = [one for one in hrefs(page, "/timers/decide") if ":PAY" in unquoted(one)]
    commit = next(one for one in links if "PAY0" in one and one.endswith("to=commit"))
    plan = console.get(commit)
    assert "The outcome is final" in told(plan)
    assert "Its message is stored in topic payments" in told(plan)
    done = console.act("/timers/decide", fields_of(plan))
    assert done.headers["location"] == "/timers?done=commit"
    wait_until("it is in its topic", lambda: "Messages 1" in told(console.get("/topics/payments")))
    rollback = next(one for one in links if "PAY1" in one and one.endswith("to=rollback"))
    assert console.act("/timers/decide", fields_of(console.get(rollback))).status == 303
    wait_until("none is open", lambda: "PAY" not in console.get("/timers"))
    assert "Messages 1" in told(console.get("/topics/payments"))
    assert console.ask("GET", "/timers/decide?topic=payments&id=x&to=odd").status == 400


def unquoted(link: str) -> str:
    """Return a link as a person reads it."""
    return link.replace("%3A", ":")


def store_of(*, used: int, rate: float, log: int) -> v1.DescribeStoreResponse:
    """Return a store on a disk of 1,000 GB with a retention of 10 hours."""
    free = (1000 - used) * 10**9
    disk = v1.DiskStatus(path="/d", total=1000 * 10**9, usable=free, use=used // 10)
    return v1.DescribeStoreResponse(
        log_end=log * 10**9,
        disks=[disk],
        put_bytes_per_s=[rate, rate, rate],
        forced_percent=80,
        reserved_ms=10 * HOUR_MS,
    )


def test_the_forecast_is_retention_or_the_time_until_the_disk_is_full() -> None:
    fits = forecast(store_of(used=400, rate=10**7, log=100))
    assert not fits.is_bad
    assert "keeps the disk at about 66 %" in fits.sentence  # 400 + 360 - 100 GB
    full = forecast(store_of(used=400, rate=10**8, log=100))
    assert full.is_bad
    assert "80 % full in 1 h" in full.sentence  # 400 GB at 0.1 GB/s
    idle = forecast(store_of(used=900, rate=0.0, log=100))
    assert "Nothing is written" in idle.sentence
    assert "unknown" in forecast(v1.DescribeStoreResponse()).sentence


def test_without_recent_writes_the_rate_is_that_of_the_whole_log() -> None:
    store = store_of(used=400, rate=0.0, log=100)
    for hour in (1, 2, 3):
        end = hour * 36 * 10**9
        store.segments.add(end=end, modified_ms=hour * HOUR_MS)
    store.log_end = 108 * 10**9
    assert forecast(store).rate == 10**7
    curve = growth(store.segments, store.log_end, 4 * HOUR_MS)
    assert curve == [[3_600, 7_200, 14_400], [36e9, 72e9, 108e9]]


def test_the_store_shows_segments_with_reasons_disk_scrub_and_recovery(console: Served) -> None:
    page = told(console.get("/store"))
    assert "written to it is the last one: messages are written to it" in page
    assert "was stopped properly" in page
    assert "Every message that was read since the start has an intact record." in page
    assert "writes are refused" in page
    assert console.ask("GET", "/store?broker=nothing").status == 404


def test_trace_records_have_the_times_of_deliveries_and_acknowledgements() -> None:
    before = Delivered(2_000, "r", "readers", "q", "M1", 0, "").encode()
    again = Delivered(9_000, "r", "readers", "q", "M1", 1, "").encode()
    after = Consumed(9_500, "readers", "q", "M1", 500).encode()
    other = Delivered(1, "r", "others", "q", "M2", 0, "").encode()
    bodies = [(after + other).encode(), (again + before).encode(), b"\x02SubBefore\x01x\x02\xff"]
    found = traced(bodies, "M1")
    assert [(one.at_ms, one.retries) for one in found] == [(2_000, 0), (9_000, 1), (9_500, None)]
    row = {"group": "readers", "state": PAST, "attempts": None, "at_ms": 0, "consumer_offset": 9}
    events = timeline(of_group(row, [], found))
    assert [one.title for one in events] == [
        "Delivered to readers",
        "Delivered to readers",
        "Acknowledged by readers",
    ]
    assert events[2].detail == "after 500 ms"
    (unknown,) = of_group(row, [], [])
    assert unknown.title == "The offset of readers is past it"
    assert unknown.detail.startswith("it is 9; it is not known whether a consumer acknowledged")


def test_a_record_is_replicated_when_every_in_sync_replica_has_it() -> None:
    def member(broker_id: int, log_end: int, confirm: int = 0) -> v1.MemberStatus:
        one = v1.MemberStatus(log_end=log_end, in_sync=True, confirm=confirm)
        one.role = v1.FOLLOWER if broker_id else v1.LEADER
        one.replica.broker_id = broker_id
        return one

    done = replicated([member(0, 100, 100), member(1, 100)], 90, 7)
    assert (done.level, done.order_ms) == ("ok", 7)
    assert done.detail == "2 of 2 replicas: broker 0 (leader), broker 1 (follower)"
    behind = replicated([member(0, 100, 80), member(1, 80)], 90, 7)
    assert behind.level == "warning"
    assert "not confirmed" in behind.detail


def test_the_trace_id_is_that_of_traceparent() -> None:
    ident = "0af7651916cd43dd8448eb211c80319c"
    assert trace_id([("traceparent", f"00-{ident}-b7ad6b7169203331-01")]) == ident
    for wrong in ("", "00", "00-xyz-1-01", f"00-{ident[:-1]}Z-b7ad6b7169203331-01"):
        assert trace_id([("traceparent", wrong)]) == ""


def test_a_message_has_a_timeline_from_send_to_its_consumers(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("told", queues=1)
    shared_cluster.create_group("tellers")
    ident = "0af7651916cd43dd8448eb211c80319c"
    parent = f"traceparent=00-{ident}-b7ad6b7169203331-01"
    assert console.act("/topics/told/send", {"body": "x", "properties": parent}).status == 200
    page = "/message?topic=told&queue=0&offset=0"
    with cometmq.sync.SimpleConsumer(
        shared_cluster.endpoints, group="tellers", topics="told"
    ) as consumer:
        held = wait_until("it is received", lambda: consumer.receive(invisible_for=600, wait=1))
        wait_until("it is in flight", lambda: "In flight in tellers" in told(console.get(page)))
        text = told(console.get(page))
        first, *others = ("Sent by the producer", "Stored", "Replicated", "In flight in tellers")
        places = [text.index(title) for title in (first, *others)]
        assert places == sorted(places)
        assert "2 of 2 replicas: broker 0 (leader), broker 1 (follower)" in text
        assert "invisible to other consumers until" in text
        assert f"/messages?topic=told&amp;contains={ident}" in console.get(page)
        group = told(console.get("/groups/tellers"))
        assert "told, queue 0, offset 0" in group
        assert "min left" in group
        consumer.ack(held[0])
        wait_until(
            "it is passed", lambda: "The offset of tellers is past it" in told(console.get(page))
        )


def test_archives_show_their_ranges_and_last_jobs(tmp_path: Path) -> None:
    places = ((0, 100), (100, 250), (300, 400))
    (tmp_path / "_manifest").mkdir()
    for number, (start, end) in enumerate(places):
        path = f"topic=orders/dt=d/{number}.parquet"
        file = FileEntry("orders", path, f"s/{number}", 7, 90, 0, 0)
        about = {"kind": "split", "broker": "broker-a", "start": start, "end": end}
        name = f"broker-a-{number}"
        record = Manifest(name, (file,), about=about).encode()
        (tmp_path / "_manifest" / f"{name}.json").write_bytes(record)
    archives = Archives([tmp_path, tmp_path / "absent"])
    found, absent = archives.read()
    assert found.ranges() == [("broker-a", [(0, 250), (300, 400)])]
    assert (found.records, found.rows, found.bytes) == (3, 21, 270)
    assert {job.kind for job in found.last} == {"range of a log"}
    assert "cannot be read as an archive" in absent.problem
    (tmp_path / "_manifest" / "broken.json").write_text("{")
    assert "broken.json" in archives.read()[0].problem


def test_spark_shows_the_watermark_and_how_to_name_archives(
    console: Served, shared_cluster: Cluster, tmp_path: Path
) -> None:
    page = told(console.get("/spark"))
    assert "retention does not wait" in page
    assert "No archive is named" in page
    (tmp_path / "archive" / "_manifest").mkdir(parents=True)
    folder = str(tmp_path / "archive")
    with serve(tmp_path, shared_cluster.endpoints, "--archive", folder) as other:
        assert "Nothing is committed yet." in told(other.get("/spark"))
