"""Recovery: what is cut, what is refused, what is built again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store.format.disk import data_ranges
from cometmq.store.format.errors import CorruptLogError
from cometmq.store.format.record import encode
from cometmq.tests.store.kit import SEGMENT, START_MS, Kit, assert_whole, filled, message

# -- nothing wrong ------------------------------------------------------------------------------


def test_a_clean_stop_changes_nothing_at_the_next_open(kit: Kit) -> None:
    filled(kit)
    kit.close()
    before = kit.all_files()
    report = kit.open_only()
    assert report.clean
    assert report.dispatched_offset == report.log_end
    kit.store.close()
    assert kit.all_files() == before
    kit.open()
    assert_whole(kit, 60)


def test_an_empty_store(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    for _ in range(2):
        report = kit.open()
        assert (report.log_start, report.log_end, report.queues) == (0, 0, 0)
        kit.close()
    report = kit.open()
    kit.kill()
    assert not kit.open().clean
    kit.write()
    kit.close()


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_killed_store_loses_nothing(kit: Kit, dispatched: bool) -> None:
    filled(kit)
    if not dispatched:
        kit.write(b"0060".ljust(200), queue_id=0, tags="T")
    kit.kill()
    report = kit.open()
    assert not report.clean
    assert report.torn_bytes == 0
    assert_whole(kit, 60 if dispatched else 61)
    kit.close()
    assert kit.open().clean
    assert_whole(kit, 60 if dispatched else 61)


def test_recovery_restores_visibility_up_to_the_queues_end(kit: Kit) -> None:
    """What may be seen beyond it (confirmed, flushed) is the owner's decision."""
    ends = filled(kit, 30)
    for index in range(30, 60):
        kit.write(f"{index:04d}".encode().ljust(200), queue_id=index % 3, tags="T")
    kit.store.queue_table.write_out()
    kit.kill()
    report = kit.open()
    assert report.dispatched_offset == ends[-1]
    assert kit.store.max_offset("TopicTest", 0) == 10
    assert kit.store.writer.next_offset("TopicTest", 0) == 20
    assert_whole(kit, 60)


def test_killing_recovery_itself_is_harmless(kit: Kit) -> None:
    filled(kit)
    kit.kill()
    for _ in range(3):
        kit.open_only()
        kit.kill()
    kit.open()
    assert_whole(kit, 60)


def test_starts_after_kills_do_not_read_the_unwritten_part_of_a_segment(tmp_path: Path) -> None:
    """What a start reads of a hole is data for the next one: each would take longer."""
    kit = Kit(tmp_path, mapped_file_size_commit_log=256 << 20)
    kit.open()
    for _ in range(4):
        kit.write_many(20)
        kit.kill()
        kit.open()
    assert len(kit.bodies()) == 80
    (path,) = kit.segment_paths()
    with path.open("rb") as file:
        end = max(end for _, end in data_ranges(file.fileno(), 0, 256 << 20))
    assert end <= 1 << 20
    kit.close()


# -- a torn tail --------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 3, 4, 8, 40, 87, 100, 290, -20, -1])
def test_a_torn_tail_is_cut_and_zeroed(kit: Kit, keep: int) -> None:
    """The process died while it wrote the last record: only its first bytes are there."""
    ends = filled(kit, 38)
    begin, end = ends[-2], ends[-1]
    kit.kill()
    kit.cut_tail(begin + keep if keep >= 0 else end + keep, end)
    report = kit.open()
    assert report.log_end == begin
    assert bool(report.torn_bytes) == (keep != 0)
    assert_whole(kit, 37)
    assert kit.write(b"0037".ljust(200), queue_id=1, tags="T").physical_offset == begin
    kit.reopen()
    assert_whole(kit, 38)


def test_the_missing_end_of_properties_is_a_torn_tail(kit: Kit) -> None:
    """Properties have no checksum: lengths and body are right, yet the record is not whole."""
    ends = filled(kit, 38)
    kit.kill()
    kit.cut_tail(ends[-1] - 3, ends[-1])
    assert kit.open().log_end == ends[-2]
    assert_whole(kit, 37)


def test_damage_in_the_last_record_is_cut_after_a_kill(kit: Kit) -> None:
    ends = filled(kit, 38)
    kit.kill()
    kit.flip_byte(ends[-1] - 100)
    report = kit.open()
    assert report.log_end == ends[-2]
    assert report.torn_bytes == ends[-1] - ends[-2]
    assert_whole(kit, 37)


def test_garbage_behind_the_end_is_zeroed_in_all_segments(kit: Kit) -> None:
    ends = filled(kit, 38)
    kit.kill()
    kit.change(ends[-1], b"garbage \xda\xa3\x20\xa7 garbage")
    path = kit.root / "commitlog" / f"{(ends[-1] // SEGMENT + 1) * SEGMENT:020d}"
    path.write_bytes(b"more".ljust(SEGMENT, b"\0"))
    behind = [later for later in path.parent.iterdir() if later.name >= path.name]
    report = kit.open()
    # The allocator may have prepared a second segment before the kill.
    assert (report.segments_removed, report.torn_bytes) == (len(behind), 20 + 4)
    assert not any(later.exists() for later in behind)
    assert_whole(kit, 38)


def test_a_trailing_blank_is_removed(kit: Kit) -> None:
    """The blank was written, the record behind it was not, and the next file is not there."""
    results = kit.write_many(13, 200)
    begin = results[-1].end
    kit.kill()
    rest = SEGMENT - begin
    kit.change(begin, rest.to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    for path in kit.segment_paths()[1:]:
        path.unlink()
    report = kit.open()
    assert (report.log_end, report.torn_bytes) == (begin, 8)
    assert kit.write().physical_offset == begin


def test_a_blank_and_an_empty_segment_are_the_end(kit: Kit) -> None:
    """The same with the next file there: the log ends at its start, as Apache has it."""
    results = kit.write_many(13, 200)
    begin = results[-1].end
    kit.kill()
    rest = SEGMENT - begin
    kit.change(begin, rest.to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    following = kit.root / "commitlog" / f"{SEGMENT:020d}"
    following.write_bytes(bytes(SEGMENT))
    report = kit.open()
    assert (report.log_end, report.torn_bytes, report.segments_removed) == (SEGMENT, 0, 0)
    assert kit.write().physical_offset == SEGMENT
    kit.dispatch()
    assert kit.reopen().clean
    assert len(kit.queue_bodies()) == 14


def test_a_prepared_segment_is_removed(kit: Kit) -> None:
    filled(kit, 38)
    kit.kill()
    start = (kit.segment_paths()[-1].name, len(kit.segment_paths()))
    extra = kit.root / "commitlog" / f"{len(kit.segment_paths()) * SEGMENT:020d}"
    extra.write_bytes(bytes(SEGMENT))
    kit.open()
    assert not extra.exists(), start
    assert_whole(kit, 38)


# -- corruption ---------------------------------------------------------------------------------


def assert_refused(kit: Kit, offset: int, says: str) -> None:
    before = kit.all_files()
    for _ in range(2):
        with pytest.raises(CorruptLogError, match=says) as caught:
            kit.open()
        assert caught.value.offset == offset
        assert "Nothing was changed. Restore this directory" in str(caught.value)
    assert kit.all_files() == before


@pytest.mark.parametrize("at", [0, 4, 8, 31, 84, 88, 150, -9])
@pytest.mark.parametrize("clean", [False, True])
def test_damage_in_the_middle_is_refused_and_nothing_is_cut(kit: Kit, at: int, clean: bool) -> None:
    """Size, magic, checksum, physical offset, body, lengths: valid records follow."""
    ends = filled(kit, 24)
    number = 18
    begin, end = ends[number - 1], ends[number]
    if clean:
        kit.close()
    else:
        kit.kill()
    position = begin + at if at >= 0 else end + at  # the last: the length of the properties
    kit.flip_byte(position)
    assert_refused(kit, begin, "A valid record follows at offset")
    kit.flip_byte(position)
    kit.open()
    assert_whole(kit, 24)


def test_a_hole_in_the_middle_is_refused(kit: Kit) -> None:
    """What had been flushed; the rest stands in `test_lost_pages.py`."""
    ends = filled(kit, 38)
    kit.reopen()
    kit.kill()
    kit.cut_tail(ends[30], ends[32])
    assert_refused(kit, ends[30], "nothing is written here. A valid record follows")


def test_damage_in_an_early_segment_is_refused_though_only_segments_follow(kit: Kit) -> None:
    ends = filled(kit, 60)
    kit.kill()
    last_of_first = max(end for end in ends if end < SEGMENT)
    kit.flip_byte(last_of_first - 100)
    begin = ends[ends.index(last_of_first) - 1]
    assert_refused(kit, begin, f"A valid record follows at offset {SEGMENT}")


def test_a_last_record_with_queue_units_is_not_cut_after_a_clean_stop(kit: Kit) -> None:
    ends = filled(kit, 38)
    kit.close()
    kit.flip_byte(ends[-1] - 100)
    assert_refused(kit, ends[-2], "The consume queues hold records up to")


def test_records_inside_of_a_body_are_not_recovered(kit: Kit) -> None:
    """A body may hold a whole record (of another log): it does not lie where it says."""
    inner = encode(message(b"inner"), 0, 0, START_MS)
    kit.write(b"first")
    kit.write(inner * 3)
    kit.dispatch()
    end = kit.store.log_end
    kit.kill()
    kit.cut_tail(end - 20, end)
    report = kit.open()
    assert report.torn_bytes > 0
    assert kit.bodies() == [b"first"]


# -- what the report says -------------------------------------------------------------------------


def test_the_report_of_a_clean_start(kit: Kit) -> None:
    filled(kit, 38)
    kit.close()
    report = kit.open()
    assert report.lines() == [
        f"The store was stopped properly. Kept: the log from 0 to {report.log_end} (3 segments), "
        "3 queues.",
        f"Checked: 12 records from offset {2 * SEGMENT}.",
    ]


def test_the_report_of_repairs(kit: Kit) -> None:
    ends = filled(kit, 38)
    kit.store.queue_table.write_out()
    kit.kill()
    kit.flip_byte(ends[-1] - 100)
    extra = kit.root / "commitlog" / f"{4 * SEGMENT:020d}"
    for number in (3, 4):
        (kit.root / "commitlog" / f"{number * SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    extra.write_bytes(bytes(100))  # it died while it made this one
    report = kit.open()
    assert (report.segments, report.files_unfinished) == (3, 1)
    assert report.lines() == [
        f"The store was not stopped properly. Kept: the log from 0 to {ends[-2]} (3 segments), "
        "3 queues.",
        "Checked: 37 records from offset 0.",
        f"Cut at {ends[-2]}: {ends[-1] - ends[-2]} bytes that are no whole record (the checksum of "
        "the body does not match).",
        "Removed: 1 segment behind the end, 1 unfinished file.",
        f"Rebuilt: 37 queue units from offset 0 on. Readers see the log up to {ends[-2]}.",
    ]


# -- the checksum of the whole record
# ---------------------------------------------------------------


@pytest.mark.parametrize("forced", [False, True])
def test_the_record_checksum_covers_what_the_body_checksum_does_not(
    tmp_path: Path, forced: bool
) -> None:
    kit = Kit(tmp_path / "store", enabled_append_prop_crc=True, force_verify_prop_crc=forced)
    kit.open()
    ends = filled(kit, 20)
    kit.kill()
    kit.flip_byte(ends[-2] + 45)  # the born timestamp
    report = kit.open()
    assert report.log_end == ends[-2]
    assert report.reason == "the checksum of the record is missing or does not match."
    kit.close()


def test_a_record_without_its_checksum_is_refused_where_all_must_have_one(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "store")
    kit.open()
    filled(kit, 20)
    kit.kill()
    with pytest.raises(CorruptLogError, match="the checksum of the record is missing"):
        Kit(tmp_path / "store", force_verify_prop_crc=True).open()


def test_bodies_are_not_checked_when_configured(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "store", check_crc_on_recover=False)
    kit.open()
    ends = filled(kit, 20)
    kit.kill()
    kit.flip_byte(ends[4] - 100)
    assert kit.open().log_end == ends[-1]
    kit.close()
