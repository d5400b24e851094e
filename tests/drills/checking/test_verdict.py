"""The checker reports violations and allows what at-least-once delivery allows."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cometmq.drills import logwalk, report, timeline, verdict
from cometmq.drills.history import Counter, History, read
from cometmq.ha.core.epochs import EpochHistory, EpochStart
from cometmq.ha.state import epochs_file

SEGMENT = 4096


def log_record(offset: int, queue_offset: int, identity: str, extra: str = "") -> bytes:
    properties = f"UNIQ_KEY\x01{identity}\x02{extra}".encode()
    body = f"{identity}|x".encode()
    tail = struct.pack(">i", len(body)) + body + b"\x05drill"
    tail += struct.pack(">h", len(properties)) + properties
    head = struct.pack(">iiqqi", 0, 0, queue_offset, offset, 0)
    size = 12 + len(head) + 8 + 8 + 8 + 8 + 12 + len(tail)
    return struct.pack(">iII", size, logwalk.MAGIC_V1, 0) + head + bytes(44) + tail


def write_store(store: Path, identities: list[str], extra: str = "") -> Path:
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    data, queue = b"", b""
    for number, identity in enumerate(identities):
        one = log_record(len(data), number, identity, extra)
        queue += logwalk.UNIT.pack(len(data), len(one), 0)
        data += one
    (folder / f"{0:020}").write_bytes(data.ljust(SEGMENT, b"\0"))
    queues = store / "consumequeue" / "drill" / "0"
    queues.mkdir(parents=True)
    (queues / f"{0:020}").write_bytes(queue)
    return store


def write_history(path: Path, events: list[tuple[str, str, Any]], client: str = "raw-a") -> Path:
    history = History(path, client)
    for event, identity, offset in events:
        group, _, seq = identity.partition("-")
        facts = {"group": group, "seq": int(seq)} if event in ("invoke", "ok") else {}
        if offset is not None:
            facts["offset"] = offset
        history.write(event, identity, **facts)
    history.close()
    return path


def sent(identity: str, offset: int) -> list[tuple[str, str, Any]]:
    return [("invoke", identity, None), ("ok", identity, offset)]


def judged(tmp_path: Path, events: list[tuple[str, str, Any]], log: list[str]) -> verdict.Verdict:
    store = write_store(tmp_path / "store", log)
    result = verdict.Verdict("test")
    promises = verdict.Promises.read([write_history(tmp_path / "h.jsonl", events)])
    found = verdict.records(store, "drill")
    verdict.check_log(result, promises, found, verdict.archived([store], "drill"))
    verdict.check_stores(result, {"b0": store})
    return result


def test_a_clean_run_has_no_findings(tmp_path: Path) -> None:
    result = judged(tmp_path, sent("s-1", 0) + sent("s-2", 1), ["s-1", "s-2"])
    assert result.broken() == []
    assert result.acknowledged == 2


def test_a_lost_message_is_reported(tmp_path: Path) -> None:
    result = judged(tmp_path, sent("s-1", 0) + sent("s-2", 1), ["s-1"])
    assert result.lost == ["s-2"]
    assert not result.passed


def test_a_repeat_needs_an_unknown_outcome(tmp_path: Path) -> None:
    again = [("invoke", "s-2", None), ("unknown", "s-2", None), *sent("s-2", 2)]
    result = judged(tmp_path, sent("s-1", 0) + again, ["s-1", "s-2", "s-2"])
    assert (result.resent, result.duplicated) == (1, [])
    other = judged(tmp_path / "other", sent("s-1", 0), ["s-1", "s-1"])
    assert other.duplicated == ["s-1"]


def test_a_change_of_the_leader_allows_repeats() -> None:
    events: list[dict[str, Any]] = [
        {"t": 5.0, "e": "kill"},
        {"t": 6.0, "e": "role", "role": "follower"},
        {"t": 8.0, "e": "role", "role": "fenced"},
        {"t": 9.0, "e": "heal"},
    ]
    assert verdict.repeat_times(events) == [5.0, 8.0, 7.0]
    one = verdict.Promised(attempts=1, first_s=7.5, ok_s=7.99, by="raw")
    assert one.may_repeat(verdict.repeat_times(events)), "the role was sampled after the answer"
    one.first_s, one.ok_s = 10.0, 11.0
    assert not one.may_repeat(verdict.repeat_times(events))


def test_disorder_phantoms_and_moves_are_reported(tmp_path: Path) -> None:
    refused = [("invoke", "r-1", None), ("fail", "r-1", None)]
    events = sent("s-1", 1) + sent("s-2", 0) + refused
    result = judged(tmp_path, events, ["s-2", "s-1", "x-9", "r-1"])
    assert result.reordered == ["s-1 after s-2"]
    assert result.phantom == ["r-1 (refused)", "x-9"]
    moved = judged(tmp_path / "moved", sent("s-1", 7), ["s-1"])
    assert moved.moved == ["s-1"]


def test_an_archived_message_is_not_lost(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", ["s-1"])
    tails = store / "ha" / "diverged"
    tails.mkdir(parents=True)
    (tails / "2-100-200.log").write_bytes(log_record(100, 1, "s-2"))
    promises = verdict.Promises.read(
        [write_history(tmp_path / "h", sent("s-1", 0) + sent("s-2", 1))]
    )
    result = verdict.Verdict("test")
    found = verdict.records(store, "drill")
    verdict.check_log(result, promises, found, verdict.archived([store], "drill"))
    assert (result.lost, result.archived) == ([], ["s-2"])
    assert not result.passed  # a synchronous group guarantees more
    result.mode = "async"
    assert result.passed


def test_a_replayed_message_may_move_and_change_order(tmp_path: Path) -> None:
    extra = "__COMETMQ_REPLAYED_FROM\x01b0\x02"
    store = write_store(tmp_path / "store", ["s-2"], extra)
    events = sent("s-2", 5)
    promises = verdict.Promises.read([write_history(tmp_path / "h", events)])
    result = verdict.Verdict("test")
    verdict.check_log(result, promises, verdict.records(store, "drill"), {"s-2"})
    assert (result.archived, result.replayed, result.moved) == (["s-2"], 1, [])


def test_differing_bytes_are_counted(tmp_path: Path) -> None:
    stores = {name: write_store(tmp_path / name, ["s-1", "s-2"]) for name in ("b0", "b1")}
    path = stores["b1"] / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    data[10] ^= 1
    path.write_bytes(data)
    result = verdict.Verdict("test")
    verdict.check_stores(result, stores)
    assert result.divergent_bytes == 2
    assert "byte 9" in result.divergence


def test_an_epoch_that_begins_with_a_message_is_a_wrong_label(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", ["s-1", "s-2"])
    (store / "ha").mkdir()
    _, second = logwalk.walk(store / "commitlog")
    epochs_file.save(store / "ha", EpochHistory([EpochStart(1, 0), EpochStart(2, second.offset)]))
    result = verdict.Verdict("test")
    verdict.check_stores(result, {"b0": store}, queues=False)
    (sentence,) = result.wrong_labels
    assert sentence.startswith(f"b0: 2@{second.offset} of ")
    assert not result.passed


def test_recovery_time_starts_at_the_fault(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    lines = [
        {"t": 1.0, "c": "raw", "e": "invoke", "id": "s-1", "group": "s", "seq": 1},
        {"t": 1.1, "c": "raw", "e": "ok", "id": "s-1", "offset": 0},
        {"t": 1.9, "c": "raw", "e": "invoke", "id": "s-2", "group": "s", "seq": 2},
        {"t": 2.1, "c": "raw", "e": "unknown", "id": "s-2"},
        {"t": 2.2, "c": "raw", "e": "invoke", "id": "s-2", "group": "s", "seq": 2},
        {"t": 2.75, "c": "raw", "e": "ok", "id": "s-2", "offset": 1},
    ]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')
    promises = verdict.Promises.read([history])
    result = verdict.Verdict("test")
    events = [{"t": 0.5, "e": "load", "id": ""}, {"t": 2.0, "e": "kill", "id": "b0"},
              {"t": 3.0, "e": "unload", "id": ""}]  # fmt: skip
    verdict.measure(result, promises, events)
    assert result.rto_ms == [750.0]
    assert result.max_gap_ms == pytest.approx(1650.0)


def test_the_counter_reads_what_is_added(tmp_path: Path) -> None:
    history, counter = History(tmp_path / "h", "c"), Counter("ok")
    history.write("invoke", "a")
    assert counter.poll([tmp_path / "h"]) == 0
    history.write("ok", "a", offset=3)
    assert counter.poll([tmp_path / "h"]) == 1
    assert counter.last_event()["offset"] == 3


def test_reports_and_the_picture(tmp_path: Path) -> None:
    history = write_history(tmp_path / "h", sent("s-1", 0))
    notes = History(tmp_path / "events", "drill")
    notes.write("role", "b0", role="leader", epoch=2)
    notes.write("kill", "b0")
    good, bad = verdict.Verdict("1", "kill", "sync"), verdict.Verdict("2", "cut", "async")
    bad.lost.append("s-9")
    assert json.loads(report.as_json([good, bad]))["passed"] is False
    assert report.from_json(report.as_json([good, bad])) == [good, bad]
    suite = ElementTree.fromstring(report.as_junit([good, bad]))
    assert suite.get("failures") == "1"
    assert "| 2 | async | FAILED |" in report.as_page([good, bad], [("1", "kill", "well")], "")
    picture = timeline.draw(read(tmp_path / "events"), [history], "a < b")
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert "leader" in picture
