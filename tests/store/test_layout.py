"""Files that do not belong into a store directory, and leftovers of a killed process."""

from __future__ import annotations

import os

import pytest

from cometmq.store.format.errors import UnsupportedLayoutError
from cometmq.tests.store.kit import QUEUE_FILE, SEGMENT, Kit, assert_whole, filled


@pytest.mark.parametrize(
    ("path", "size", "says"),
    [
        ("commitlog/00000000000000000000", SEGMENT - 1, "was cut: it has 4095 of 4096 bytes"),
        ("commitlog/00000000000000004096", SEGMENT + 1, "mappedFileSizeCommitLog is 4096"),
        ("commitlog/00000000000000008192", 100, "was cut: it has 100 of 4096 bytes"),
        ("commitlog/notes.txt", 10, "its name is not an offset"),
        ("commitlog/00000000000001048576", SEGMENT, "a file is missing"),
        ("consumequeue/TopicTest/0/00000000000000000000", 399, "mappedFileSizeConsumeQueue is 400"),
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_foreign_files_are_refused_and_nothing_is_changed(
    kit: Kit, path: str, size: int, says: str, clean: bool
) -> None:
    filled(kit, 20)
    if clean:
        kit.close()
    else:
        kit.store.queue_table.write_out()
        kit.kill()
    (kit.root / path).write_bytes(b"x" * size)
    before = kit.all_files()
    with pytest.raises(UnsupportedLayoutError, match=says):
        kit.open()
    assert kit.all_files() == before


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("file", ["commitlog/" + 20 * "0", "consumequeue/TopicTest/0/" + 20 * "0"])
def test_a_directory_in_the_place_of_a_file_is_refused(kit: Kit, file: str, clean: bool) -> None:
    filled(kit, 80)
    if clean:
        kit.close()
    else:
        kit.store.queue_table.write_out()
        kit.kill()
    (kit.root / file).unlink()
    (kit.root / file).mkdir()
    before = kit.all_files()
    with pytest.raises(UnsupportedLayoutError, match="is a directory in the place of a store file"):
        kit.open()
    assert kit.all_files() == before


def test_another_segment_size_is_refused(kit: Kit) -> None:
    filled(kit, 20)
    kit.close()
    before = kit.all_files()
    kit.options["mapped_file_size_commit_log"] = 2 * SEGMENT
    with pytest.raises(
        UnsupportedLayoutError, match="Start with the size that this store was made"
    ):
        kit.open()
    assert kit.all_files() == before


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("commitlog/00000000000000004096", "Take the segment from another replica"),
        ("consumequeue/TopicTest/0/00000000000000000000", "Run `cometmq store repair`"),
    ],
)
def test_a_cut_file_is_refused_with_what_to_do(kit: Kit, path: str, remedy: str) -> None:
    filled(kit, 90)
    kit.close()
    os.truncate(kit.root / path, 133)
    before = kit.all_files()
    with pytest.raises(UnsupportedLayoutError, match=f"was cut: it has 133 of .*{remedy}"):
        kit.open()
    assert kit.all_files() == before


@pytest.mark.parametrize("size", [0, 1000])
def test_a_file_whose_creation_was_killed_is_removed(kit: Kit, size: int) -> None:
    filled(kit, 20)
    kit.close()
    kit.open()
    kit.kill()
    segments = len(kit.segment_paths())
    half_made = kit.root / "commitlog" / f"{segments * SEGMENT:020d}"
    half_made.write_bytes(bytes(size))
    queue_file = kit.root / "consumequeue" / "TopicTest" / "0" / f"{QUEUE_FILE:020d}"
    queue_file.write_bytes(b"")
    kit.open()
    assert not half_made.exists()
    assert not queue_file.exists()
    assert_whole(kit, 20)


def test_unknown_files_are_left_unchanged(kit: Kit) -> None:
    filled(kit, 20)
    others = ["index/readme.txt", "timerwheel", "config/topics.json", "abort.bak"]
    for name in others:
        (kit.root / name).parent.mkdir(exist_ok=True)
        (kit.root / name).write_bytes(b"theirs")
    kit.kill()
    kit.open()
    kit.close()
    for name in others:
        assert (kit.root / name).read_bytes() == b"theirs"
