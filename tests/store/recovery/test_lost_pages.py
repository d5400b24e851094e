"""Power loss in ASYNC_FLUSH: pages that never reached the disk, in front of others that did."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.format.errors import CorruptLogError
from cometmq.store.recovery import (
    salvage as recovery_lost,
)
from cometmq.store.recovery.rules import SECTOR_BYTES, bytes_missing
from cometmq.tests.store.kit import START_MS, Kit, message

LARGE = 64 << 10
PAGE = 4096


def unflushed(tmp_path: Path, count: int = 200, flushed: int = 0) -> tuple[Kit, list[int]]:
    """A killed store of which only the first `flushed` records are known to be on the disk."""
    kit = Kit(tmp_path / "store", mapped_file_size_commit_log=LARGE)
    kit.open()
    ends = []
    for index in range(count):
        if index == flushed:
            kit.dispatch()
            kit.reopen()
        kit.now_ms += 1
        ends.append(kit.write(f"{index:04d}".encode().ljust(200), queue_id=index % 3, tags="T").end)
    kit.dispatch()
    kit.store.queue_table.write_out()
    kit.kill()
    return kit, ends


def clear(kit: Kit, begin: int, end: int) -> None:
    kit.change(begin, bytes(end - begin))


def assert_cut(kit: Kit, ends: list[int], keep: int) -> None:
    """The store holds the first `keep` records, says what it cut, and goes on."""
    whole = kit.log_bytes()
    report = kit.open()
    cut_at = ends[keep - 1] if keep else 0
    assert report.log_end == cut_at
    assert report.verdict == "lost pages"
    assert report.torn_bytes == 0
    assert report.lost_bytes == ends[-1] - cut_at
    assert report.lost_records > 0
    kept = Path(report.lost_kept_at)
    assert kept == kit.root / "lost" / f"{cut_at:020d}"
    assert kept.read_bytes() == whole[cut_at : ends[-1]]
    (line,) = [line for line in report.lines() if "did not reach the disk" in line]
    assert str(kept) in line
    kit.dispatch()
    bodies = [f"{index:04d}".encode().ljust(200) for index in range(keep)]
    assert kit.bodies() == bodies
    for queue_id in range(3):
        assert kit.queue_bodies(queue_id=queue_id) == bodies[queue_id::3]
        assert kit.store.writer.next_offset("TopicTest", queue_id) == len(bodies[queue_id::3])
    assert not kit.log_bytes()[cut_at:].strip(b"\0")
    assert kit.write(b"more").physical_offset == cut_at
    kit.dispatch()
    assert kit.reopen().clean
    assert kept.exists()
    kit.close()


def first_hurt(ends: list[int], begin: int) -> int:
    """How many records end at or before `begin`."""
    return sum(end <= begin for end in ends)


@pytest.mark.parametrize("page", [0, 1, 2, 7])
@pytest.mark.parametrize("pages", [1, 3])
def test_a_lost_page_in_front_of_others_is_cut_there(tmp_path: Path, page: int, pages: int) -> None:
    kit, ends = unflushed(tmp_path)
    clear(kit, page * PAGE, (page + pages) * PAGE)
    assert_cut(kit, ends, first_hurt(ends, page * PAGE))


@pytest.mark.parametrize("half", [0, 1])
def test_half_a_page_may_be_there(tmp_path: Path, half: int) -> None:
    kit, ends = unflushed(tmp_path)
    begin = 3 * PAGE + half * PAGE // 2
    clear(kit, begin, begin + PAGE // 2)
    assert_cut(kit, ends, first_hurt(ends, begin))


def test_the_rest_of_a_page_that_was_flushed_in_part(tmp_path: Path) -> None:
    """The page came to the disk with the flush, and not again with what was added to it."""
    kit, ends = unflushed(tmp_path, flushed=30)
    page_end = -(-ends[29] // PAGE) * PAGE
    clear(kit, ends[29], page_end)
    assert_cut(kit, ends, 30)


def test_a_record_that_begins_in_a_lost_page_and_ends_in_the_next_segment(tmp_path: Path) -> None:
    """The last page of a segment, with its blank; whole records follow in the next one."""
    kit, ends = unflushed(tmp_path, count=300)
    clear(kit, LARGE - PAGE, LARGE)
    kept = first_hurt(ends, LARGE - PAGE)
    report = kit.open()
    assert report.log_end == ends[kept - 1]
    assert report.segments_removed > 0
    assert report.lost_records > 70
    assert len(kit.bodies()) == kept
    kit.close()


@pytest.mark.parametrize("seed", range(12))
def test_any_pages_of_the_unflushed_part_may_be_lost(tmp_path: Path, seed: int) -> None:
    """A prefix is left, with everything that was flushed."""
    rng = random.Random(seed)
    flushed = rng.randrange(100)
    kit, ends = unflushed(tmp_path, flushed=flushed)
    safe = ends[flushed - 1] if flushed else 0
    for page in range(safe // PAGE, ends[-1] // PAGE + 1):
        if rng.random() < 0.4:
            begin = page * PAGE + rng.choice([0, 0, 2048, 512])
            clear(kit, max(begin, safe), max(page * PAGE + rng.choice([PAGE, 2048]), safe))
    report = kit.open()
    assert safe <= report.log_end <= ends[-1]
    kit.dispatch()
    count = first_hurt(ends, report.log_end)
    assert kit.bodies() == [f"{index:04d}".encode().ljust(200) for index in range(count)]
    kit.close()


# -- what is refused all the same -----------------------------------------------------------------


def refused(kit: Kit, offset: int) -> str:
    before = kit.all_files()
    with pytest.raises(CorruptLogError) as caught:
        kit.open()
    assert caught.value.offset == offset
    assert kit.all_files() == before
    return str(caught.value)


def test_a_lost_page_that_had_been_flushed_is_corruption(tmp_path: Path) -> None:
    kit, ends = unflushed(tmp_path, flushed=100)
    clear(kit, PAGE, 2 * PAGE)
    assert "A valid record follows" in refused(kit, ends[first_hurt(ends, PAGE) - 1])


def test_the_time_of_the_last_flush_proves_a_flush(tmp_path: Path) -> None:
    """Apache's checkpoint has the time only; a store time before it means flushed."""
    kit, ends = unflushed(tmp_path)
    clear(kit, PAGE, 2 * PAGE)
    path = kit.root / "checkpoint"
    kept = first_hurt(ends, PAGE)
    behind = first_hurt(ends, 2 * PAGE) + 1  # the first whole record behind the page
    path.write_bytes(Checkpoint(START_MS + behind + 1).encode().ljust(PAGE, b"\0"))
    refused(kit, ends[kept - 1])
    path.write_bytes(Checkpoint(START_MS + kept).encode().ljust(PAGE, b"\0"))
    assert_cut(kit, ends, kept)


@pytest.mark.parametrize("known", [b"", Checkpoint().encode().ljust(PAGE, b"\0")])
def test_without_a_checkpoint_nothing_is_cut_in_front_of_records(
    tmp_path: Path, known: bytes
) -> None:
    """A young store of Apache's has a physicMsgTimestamp of 0: that says nothing."""
    kit, ends = unflushed(tmp_path)
    clear(kit, PAGE, 2 * PAGE)
    path = kit.root / "checkpoint"
    path.write_bytes(known) if known else path.unlink()
    refused(kit, ends[first_hurt(ends, PAGE) - 1])


def test_after_a_clean_stop_no_page_can_be_lost(tmp_path: Path) -> None:
    kit, ends = unflushed(tmp_path)
    kit.open()
    kit.dispatch()
    kit.close()
    clear(kit, PAGE, 2 * PAGE)
    refused(kit, ends[first_hurt(ends, PAGE) - 1])


@pytest.mark.parametrize("at", [0, 4, 8, 31, 84, 100, -9])
def test_other_damage_in_the_unflushed_part_is_refused(tmp_path: Path, at: int) -> None:
    """A power loss leaves zeros, not flipped bytes, and at least a sector of them."""
    kit, ends = unflushed(tmp_path)
    for number in range(20, 60, 7):
        begin = ends[number - 1]
        position = begin + at if at >= 0 else ends[number] + at
        kit.flip_byte(position)
        refused(kit, begin)
        kit.flip_byte(position)
    clear(kit, ends[50] + 100, ends[50] + 250)
    refused(kit, ends[50])


def test_missing_flushed_records_are_detected(tmp_path: Path) -> None:
    """Nothing stands behind: it looks like the log's end, but more had been promised."""
    kit, ends = unflushed(tmp_path, flushed=100)
    clear(kit, ends[80], LARGE)
    assert f"had been flushed up to offset {ends[99]}" in refused(kit, ends[80])


# -- details --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before_the_border", [1, 2, 3, 4, 5, 9])
def test_a_record_that_begins_just_in_front_of_a_border(
    tmp_path: Path, before_the_border: int
) -> None:
    """The lost sector has only the first bytes of its size field, most of which are zero anyway."""
    kit = Kit(tmp_path / "store", mapped_file_size_commit_log=LARGE)
    kit.open()
    empty = kit.write(b"").size
    kit.write(b"x" * (PAGE - before_the_border - 2 * empty))
    begin = kit.store.log_end
    assert begin == PAGE - before_the_border
    size = 70_000 if before_the_border == 2 else 1000
    large = kit.write(b"y" * min(size, LARGE - PAGE - 2000)).size
    end = kit.write(b"z" * 100).end
    kit.kill()
    data = bytearray(kit.log_bytes())
    missing = bytes(data[begin:PAGE])
    clear(kit, begin, PAGE)
    report = kit.open()
    if not any(missing):
        assert report.log_end == end, "nothing was lost"
    else:
        assert (report.log_end, report.verdict) == (begin, "lost pages")
    assert large
    kit.close()


def test_sector_checks_at_segment_ends() -> None:
    data = bytearray(b"\xff" * 4 * SECTOR_BYTES)
    assert not bytes_missing(memoryview(data), 10, 0, len(data))
    data[SECTOR_BYTES : 2 * SECTOR_BYTES] = bytes(SECTOR_BYTES)
    assert bytes_missing(memoryview(data), 10, 0, len(data))
    assert not bytes_missing(memoryview(data), 10, 0, 2 * SECTOR_BYTES - 1), "a record is there"
    assert not bytes_missing(memoryview(data), 2 * SECTOR_BYTES + 1, 0, len(data))
    assert bytes_missing(memoryview(bytes(100)), 20, 0, 100)


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_lost, "KEPT_BYTES_MAX", 1000)
    monkeypatch.setattr(recovery_lost, "FILES_MAX", 2)
    kit, _ = unflushed(tmp_path)
    for name in ("1", "2", "3"):
        (kit.root / "lost").mkdir(exist_ok=True)
        (kit.root / "lost" / name).write_bytes(b"older")
    clear(kit, PAGE, 2 * PAGE)
    report = kit.open()
    assert Path(report.lost_kept_at).stat().st_size == 1000
    assert len(list((kit.root / "lost").iterdir())) == 2
    kit.close()


def test_a_message_may_hold_zeros(tmp_path: Path) -> None:
    """Zeros in a body are not missing bytes as long as the record is whole."""
    kit = Kit(tmp_path / "store", mapped_file_size_commit_log=LARGE)
    kit.open()
    kit.store.writer.append_many([message(bytes(2000)) for _ in range(20)])
    kit.kill()
    assert kit.open().records_scanned == 20
    kit.close()
