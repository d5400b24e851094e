"""The doctor on stores of our own: stopped, running, killed, after a power loss; and on the queues
that only Apache's broker writes. What it calls no problem, recovery accepts."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.doctor.diff import diff
from cometmq.store.doctor.dump import Selection, units
from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.listing import config_files
from cometmq.store.doctor.repair_plan import Action, plan_repair
from cometmq.store.doctor.verify import Report, verify
from cometmq.store.format.batch_queue import BatchUnit, encode_unit
from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.format.errors import CorruptLogError
from cometmq.store.format.json_file import persist
from cometmq.store.format.record import encode_properties
from cometmq.tests.store.kit import Kit

# -- ours -----------------------------------------------------------------------------------------


def keyed(kit: Kit, count: int, **fields: Any) -> None:
    rng = random.Random(count)
    for index in range(count):
        properties = {"UNIQ_KEY": f"{index:032X}", "KEYS": f"a-{index} b", "TAGS": f"T{index % 3}"}
        kit.now_ms += rng.randrange(700)
        kit.write(
            rng.randbytes(rng.randrange(200)),
            queue_id=index % 3,
            properties=encode_properties(properties),
            **fields,
        )


def judged(kit: Kit) -> Report:
    return verify(discover(kit.root))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"enabled_append_prop_crc": True},
    {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 32_800},
    {"max_hash_slot_num": 50, "max_index_num": 100},
    {"message_index_enable": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options), "plain"))
def test_our_own_store_has_no_problem(tmp_path: Path, options: dict[str, Any]) -> None:
    kit = Kit(tmp_path / "store", **options)
    kit.open()
    keyed(kit, 150)
    kit.dispatch()
    running = judged(kit)
    kit.close()
    closed = judged(kit)
    assert closed.findings.problems == []
    assert closed.findings.notes == []
    assert closed.messages == running.messages == 150
    # Looked at while it ran: what is not written out yet is a note.
    assert running.findings.problems == []


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options), "plain"))
def test_a_killed_store_has_notes_and_no_problem(tmp_path: Path, options: dict[str, Any]) -> None:
    kit = Kit(tmp_path / "store", **options)
    kit.open()
    keyed(kit, 150)
    kit.dispatch()
    kit.reopen()
    keyed(kit, 40)
    kit.dispatch()
    kit.kill()
    report = judged(kit)
    assert report.findings.problems == []
    assert "not_stopped" in {one.kind for one in report.findings.notes}
    kit.open()
    kit.dispatch()
    kit.close()
    again = judged(kit)
    assert again.findings.problems == []
    assert again.messages == 190


def test_a_torn_tail_is_a_note_only_where_the_store_was_killed(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "store")
    kit.open()
    keyed(kit, 20)
    kit.dispatch()
    end = kit.store.log_end
    kit.close()
    kit.change(end, bytes.fromhex("00000090daa320a7") + b"x" * 50)
    (problem,) = judged(kit).findings.problems
    assert problem.kind == "torn_tail"
    (kit.root / "abort").write_text("1")
    report = judged(kit)
    assert report.findings.problems == []
    (note,) = [one for one in report.findings.notes if one.kind == "torn_tail"]
    assert (note.begin, note.end) == (end % 4096, end % 4096 + 58)


def test_two_stores_differ_at_their_first_different_record(tmp_path: Path) -> None:
    kits = [Kit(tmp_path / name) for name in ("a", "b")]
    for kit in kits:
        kit.open()
        kit.write_many(30)
    end = kits[0].store.log_end
    kits[0].write(b"one")
    kits[1].write(b"two", queue_id=1)
    for kit in kits:
        kit.dispatch()
        kit.close()
    found = list(diff(*(discover(kit.root) for kit in kits)))
    assert [one.where for one in found] == ["log", "TopicTest/0", "TopicTest/1"]
    assert end + 8 <= found[0].at < end + 12, "the checksums of the bodies differ"
    assert [one.at for one in found[1:]] == [30, 0]
    assert found[0].a.startswith(f"record TopicTest/0/30 at {end}")
    assert found[0].b.startswith(f"record TopicTest/1/0 at {end}")


def test_a_store_that_is_behind_differs_at_its_end(tmp_path: Path) -> None:
    kits = [Kit(tmp_path / name) for name in ("a", "b")]
    for kit, count in zip(kits, (30, 33), strict=True):
        kit.open()
        kit.write_many(count)
        kit.close()
    log, queue = diff(*(discover(kit.root) for kit in kits))
    assert (log.where, queue.where, queue.at) == ("log", "TopicTest/0", 30)
    assert log.what == "One log ends, the other continues."


# -- what a kill and a power loss leave
# -------------------------------------------------------------


def killed(tmp_path: Path, count: int = 20) -> tuple[Kit, list[int]]:
    """A store that was killed; and where its records begin."""
    kit = Kit(tmp_path / "store", mapped_file_size_commit_log=1 << 16, message_index_enable=False)
    kit.open()
    starts = [kit.write(bytes([65 + i]) * 700, tags="T").physical_offset for i in range(count)]
    kit.dispatch()
    kit.kill()
    return kit, starts


def agrees_with_recovery(kit: Kit, report: Report) -> None:
    """What the doctor calls no problem, a start accepts, and keeps as much of the log."""
    assert kit.open_only().log_end == report.verdict.end
    kit.store.close()


@pytest.mark.parametrize("part", ["body", "properties"])
def test_a_torn_last_record_of_a_killed_store_is_a_note(tmp_path: Path, part: str) -> None:
    kit, starts = killed(tmp_path)
    end = starts[-1] + starts[1] - starts[0]
    begin, count = (end - 300, 200) if part == "body" else (end - 3, 3)
    kit.change(begin, bytes(count))
    report = judged(kit)
    assert report.findings.problems == []
    assert report.verdict.end == starts[-1]
    (note,) = [one for one in report.findings.notes if one.kind == "torn_tail"]
    assert (note.begin, note.end) == (starts[-1], end)
    agrees_with_recovery(kit, report)


def test_damage_in_front_of_records_of_a_killed_store_is_a_problem(tmp_path: Path) -> None:
    kit, starts = killed(tmp_path)
    kit.flip_byte(starts[5] + 30)
    report = judged(kit)
    assert [(one.begin, one.end) for one in report.findings.problems] == [(starts[5], starts[6])]
    with pytest.raises(CorruptLogError):
        kit.open_only()


def test_a_page_that_never_reached_the_disk_is_a_note(tmp_path: Path) -> None:
    """The checkpoint promised the first ten records; behind them a page is missing."""
    kit, starts = killed(tmp_path, 40)
    kit.now_ms += 1000
    checkpoint = Checkpoint(kit.now_ms - 1000, flushed_end=starts[10])
    (kit.root / "checkpoint").write_bytes(checkpoint.encode().ljust(4096, b"\0"))
    page = -(-starts[11] // 4096) * 4096
    kit.change(page, bytes(4096))
    report = judged(kit)
    assert report.findings.problems == []
    (note,) = [one for one in report.findings.notes if one.kind == "record"]
    assert note.begin <= page < page + 4096 <= note.end
    assert kit.open_only().log_end == note.begin
    kit.store.close()
    assert judged(kit).findings.problems == []


def test_a_lost_tail_that_was_flushed_is_a_problem(tmp_path: Path) -> None:
    kit, starts = killed(tmp_path)
    end = starts[-1] + starts[1] - starts[0]
    checkpoint = Checkpoint(kit.now_ms, flushed_end=end)
    (kit.root / "checkpoint").write_bytes(checkpoint.encode().ljust(4096, b"\0"))
    kit.flip_byte(starts[-1] + 30)
    report = judged(kit)
    assert "flushed_tail" in {one.kind for one in report.findings.problems}
    plan = plan_repair(discover(kit.root), report)
    assert Action.CUT_TAIL not in {step.action for step in plan.steps}
    with pytest.raises(CorruptLogError):
        kit.open_only()


# -- queues that only Apache writes ---------------------------------------------------------------


def with_batches(tmp_path: Path) -> Path:
    """A store whose topic is moved to a batch queue, as Apache keeps BatchCQ topics."""
    kit = Kit(tmp_path / "store", message_index_enable=False)
    kit.open()
    base = 0
    units = []
    for count in (3, 1, 5):
        properties = encode_properties({"INNER_NUM": str(count), "INNER_BASE": str(base)})
        result = kit.write(b"batch", properties=properties, sys_flag=0x80)
        size = result.end - result.physical_offset
        offset = result.physical_offset
        units.append(BatchUnit(offset, size, 0, kit.now_ms, base, count))
        base += count
    kit.dispatch()
    kit.close()
    folder = kit.root / "batchconsumequeue/TopicTest/0"
    folder.mkdir(parents=True)
    data = b"".join(map(encode_unit, units)).ljust(46 * 20, b"\0")
    (folder / f"{0:020d}").write_bytes(data)
    shutil.rmtree(kit.root / "consumequeue/TopicTest")
    return kit.root


def test_a_batch_queue_is_compared_with_the_log(tmp_path: Path) -> None:
    root = with_batches(tmp_path)
    assert verify(discover(root)).findings.problems == []
    rows = list(units(discover(root), Selection()))
    assert [(row["queue_offset"], row["messages"]) for row in rows] == [(0, 3), (3, 1), (4, 5)]
    path = root / f"batchconsumequeue/TopicTest/0/{0:020d}"
    data = path.read_bytes()
    for at, kind, begin in ((35, "batch_unit", 0), (46 + 7, "batch_unit", 46)):
        path.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        found = verify(discover(root)).findings.problems
        assert (kind, begin, begin + 46) in {(one.kind, one.begin, one.end) for one in found}
    path.write_bytes(data[:92] + bytes(len(data) - 92))
    (problem,) = verify(discover(root)).findings.problems
    assert (problem.kind, problem.begin) == ("batch_behind", 92)


def test_a_light_queue_is_compared_with_the_log(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "store", message_index_enable=False)
    kit.open()
    data = b""
    for number in range(3):
        properties = {
            "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b",
            "INNER_MULTI_QUEUE_OFFSET": f"{number},{number}",
        }
        result = kit.write(b"x", properties=encode_properties(properties))
        size = result.end - result.physical_offset
        data += struct.pack(">qiq", result.physical_offset, size, 0)
    kit.dispatch()
    kit.close()
    for name in ("a", "b"):
        folder = kit.root / f"consumequeue/%LMQ%{name}/0"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(data.ljust(400, b"\0"))
    assert judged(kit).findings.problems == []
    (folder / f"{0:020d}").write_bytes((data[:20] + b"\1" + data[21:]).ljust(400, b"\0"))
    (problem,) = judged(kit).findings.problems
    assert (problem.begin, problem.end) == (20, 40)


def test_a_new_index_file_of_a_running_store_is_a_note(tmp_path: Path) -> None:
    """Its slots and its header are in memory: the sizes of such a file are unknown."""
    kit = Kit(tmp_path / "store", max_hash_slot_num=1000, max_index_num=4000)
    kit.open()
    keyed(kit, 5)
    kit.dispatch()
    kit.store.queries.query("TopicTest", "b", count_max=1)  # makes the file
    assert list((kit.root / "index").iterdir())
    for _ in ("running", "killed"):
        report = judged(kit)
        assert not report.findings.problems
        assert "index_file" in {one.kind for one in report.findings.notes}
        kit.kill()


@pytest.mark.parametrize("name", ["consumerOffset.json", "storeDigests.json"])
def test_a_file_that_a_running_store_replaces_is_no_finding(tmp_path: Path, name: str) -> None:
    kit = Kit(tmp_path / "store")
    kit.open()
    keyed(kit, 20)
    kit.dispatch()
    path = kit.root / "config" / name
    for text in ('{"offsetTable": {}}', '{"offsetTable": {"t@g": {0: 1}}}'):
        persist(path, text)
    layout = discover(kit.root)
    path.unlink()  # as between the two renames of `persist`
    assert not verify(layout).findings.problems
    assert f"config/{name}.bak" in [row["file"] for row in config_files(layout)]
    kit.close()


@pytest.mark.parametrize("end", ["clean", "killed"])
def test_a_log_that_lost_its_end_is_not_repaired_without_consent(tmp_path: Path, end: str) -> None:
    """With an empty checkpoint the store would start, and use the lost offsets again."""
    kit = Kit(tmp_path / "store")
    kit.open()
    keyed(kit, 10)
    kit.dispatch()
    last = kit.store.get("TopicTest", 0, 0, 32).records[-1].physical_offset
    log_end = kit.store.log_end
    kit.close()
    if end == "killed":
        (kit.root / "abort").write_text("1")
    kit.change(last, bytes(log_end - last))
    with pytest.raises(CorruptLogError):
        kit.open()
    report = judged(kit)
    plan = plan_repair(discover(kit.root), report)
    assert plan.log_is_short
    assert not plan.steps
    assert plan.refused == report.findings.problems
    accepted = plan_repair(discover(kit.root), report, accept_loss=True)
    assert Action.RESET_CHECKPOINT in [step.action for step in accepted.steps]
    assert not accepted.refused
