"""The index of a running store: its bytes, restarts, kills, full disks, retention."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.format.errors import StoreError, UnsupportedLayoutError
from cometmq.store.format.index_file import ENTRY, IndexFile, IndexLayout, index_files
from cometmq.store.format.record import Record, encode_properties
from cometmq.store.index.index import BATCH_RECORDS
from cometmq.store.query import StoreQuery
from cometmq.tests.store.kit import SEGMENT, Kit
from cometmq.tests.store.plain_index import PlainIndex, key_hash, keys_of

SLOTS, ENTRIES = 5, 8  # a file takes 7 entries


def new_kit(root: Path, **options: Any) -> Kit:
    return Kit(root, **{"max_hash_slot_num": SLOTS, "max_index_num": ENTRIES} | options)


@pytest.fixture
def kit(tmp_path: Path) -> Any:
    kit = new_kit(tmp_path / "store")
    kit.open()
    yield kit
    kit.store.close()


def put(kit: Kit, first: int, count: int) -> None:
    """Messages with a unique key, one or two keys and a tag: three or four entries each."""
    for number in range(first, first + count):
        kit.now_ms += 700
        properties = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number} all" if number % 2 else "all"}
        kit.write(
            f"{number:04d}".encode().ljust(150),
            properties=encode_properties(properties | {"TAGS": f"t{number % 3}"}),
        )
    kit.dispatch()


def found(kit: Kit, key: str, **options: Any) -> list[int]:
    records = kit.store.queries.query("TopicTest", key, **options)
    assert all(record.physical_offset >= kit.store.log_start for record in records)
    return [int(record.body) for record in records]


def index_paths(kit: Kit) -> list[Path]:
    folder = kit.root / "index"
    return sorted(folder.iterdir()) if folder.exists() else []


def index_bytes(kit: Kit) -> list[bytes]:
    return [path.read_bytes() for path in index_paths(kit)]


def plain_bytes(kit: Kit) -> list[bytes]:
    """What the index must be, from the records of the log."""
    plain = PlainIndex(SLOTS, ENTRIES)
    for record in kit.records():
        plain.add(record)
    return [file.bytes() for file in plain.files]


def assert_rebuilt(kit: Kit, count: int) -> None:
    for number in range(count):
        assert found(kit, f"u{number}") == [number]
    assert found(kit, "all", count_max=64) == list(range(count))[-64:]


def test_files_equal_those_of_single_puts(kit: Kit) -> None:
    put(kit, 0, 30)
    expected = plain_bytes(kit)
    assert len(expected) > 10
    kit.close()
    assert index_bytes(kit) == expected
    names = [path.name for path in index_paths(kit)]
    assert names == sorted(names, key=int)
    assert all(len(name) == 17 for name in names)


def test_restarts_do_not_change_the_index(kit: Kit) -> None:
    for first in range(0, 30, 5):
        put(kit, first, 5)
        assert kit.reopen().clean
    expected = plain_bytes(kit)
    assert kit.store.index.behind == 0, "nothing is indexed again"
    kit.close()
    assert index_bytes(kit) == expected


def test_queries_find_dispatched_messages_only(kit: Kit) -> None:
    put(kit, 0, 3)
    kit.write(b"0003", properties=encode_properties({"KEYS": "all"}))
    assert found(kit, "all") == [0, 1, 2]
    kit.dispatch()
    assert found(kit, "all") == [0, 1, 2, 3]


def test_a_message_that_names_a_key_twice_is_found_once(kit: Kit) -> None:
    kit.write(b"0000", properties=encode_properties({"UNIQ_KEY": "u", "KEYS": "k55 k55 u"}))
    put(kit, 1, 1)
    assert found(kit, "k55") == [0]
    assert found(kit, "u") == [0]


def save_checkpoint(kit: Kit) -> None:
    """Do what the queues' flush thread does every second."""
    flusher = kit.store._threads._queue_flusher
    assert flusher is not None
    kit.store._threads._log_flusher.flushed = kit.store.log_end  # type: ignore[union-attr]
    flusher.finish()
    while kit.store.index.flush(1 << 62, kit.store._threads.checkpoint):
        flusher._save()


def test_a_killed_store_rebuilds_the_open_file(kit: Kit) -> None:
    put(kit, 0, 9)
    assert found(kit, "u8") == [8]
    save_checkpoint(kit)
    before = {path.name: path.read_bytes() for path in index_paths(kit)}
    kit.kill()
    kit.now_ms += 1000
    assert not kit.open_only().clean
    kept = {path.name: path.read_bytes() for path in index_paths(kit)}
    assert kept == dict(list(before.items())[:-1]), "full files are vouched for, the last goes"
    kit.store.start()
    kit.dispatch()
    assert_rebuilt(kit, 9)
    expected = plain_bytes(kit)
    kit.close()
    assert index_bytes(kit) == expected


def entries_of_apache(kit: Kit) -> Counter[tuple[int, int]]:
    """Hash and offset of every entry after Apache's broker opened this killed store
    (docs/formats/store-format.md, sections 4 and 6.4)."""
    checkpoint = Checkpoint.decode((kit.root / "checkpoint").read_bytes())
    entries: Counter[tuple[int, int]] = Counter()
    end_offset = 0
    for path in index_files(str(kit.root / "index")):
        with IndexFile(path, IndexLayout(SLOTS, ENTRIES)) as file:
            if file.header.end_timestamp_ms > checkpoint.index_msg_timestamp_ms:
                continue  # deleted
            end_offset = file.header.end_offset
            reached = set()
            for slot in range(SLOTS):
                number = file.slot(slot)
                while 0 < number < file.header.count:
                    hash_, offset, _, previous = ENTRY.unpack_from(
                        file.data, file.layout.entry_at(number)
                    )
                    entries[hash_, offset] += 1
                    reached.add(number)
                    number = previous
            assert reached == set(range(1, file.header.count)), "every entry is in a chain"
    for start in (int(path.name) for path in reversed(kit.segment_paths())):
        if start <= checkpoint.logics_physical_offset:
            break
    for record in records_on_disk(kit):
        if record.physical_offset >= max(start, end_offset):
            entries += entries_of(record)
    return entries


def entries_of(record: Record) -> Counter[tuple[int, int]]:
    return Counter((key_hash(text), record.physical_offset) for text in keys_of(record))


def records_on_disk(kit: Kit) -> list[Record]:
    """Records of a store that is not open."""
    with StoreQuery([str(kit.root / "commitlog")], str(kit.root / "index")) as log:
        found: list[Record] = []
        offset = 0
        while offset < kit.store.log_end:
            record = log.record_or_none(offset)
            if record is not None:
                found.append(record)
            # A blank ends the segment.
            offset = offset + record.size if record else (offset // SEGMENT + 1) * SEGMENT
        return found


def check_entries_of_apache(kit: Kit) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for record in records_on_disk(kit):
        expected += entries_of(record)
    assert entries_of_apache(kit) == expected


@pytest.mark.parametrize("seed", range(4))
def test_apache_indexes_no_record_of_a_killed_store_twice(kit: Kit, seed: int) -> None:
    rng = random.Random(seed)
    number = 0
    for _ in range(6):
        for _ in range(rng.randrange(1, 9)):
            count = rng.randrange(1, 4)
            put(kit, number, count)
            number += count
            assert found(kit, f"u{number - 1}") == [number - 1]
            # Between a full file and the next flush the files behind it are not yet kept.
            save_checkpoint(kit)
            if not rng.randrange(4):
                kit.reopen()
        kit.kill()
        check_entries_of_apache(kit)
        kit.open()
        if rng.randrange(2):
            kit.kill()
            check_entries_of_apache(kit)
            kit.open()
        assert_rebuilt(kit, number)


class Killed(Exception):
    """The process ends at this system call."""


def killed_in_flush(root: Path, calls: int) -> tuple[Kit, list[str]]:
    """Fill some index files, and kill the store before a system call of the flush that covers
    them. Return the names of the calls made."""
    kit = new_kit(root)
    kit.open()
    put(kit, 0, 3)
    found(kit, "all")
    save_checkpoint(kit)
    put(kit, 3, 2)
    found(kit, "all")
    made: list[str] = []

    def count(name: str) -> None:
        if threading.current_thread() is threading.main_thread():
            if len(made) == calls:
                raise Killed
            made.append(name)

    kit.disk.fault = count
    with suppress(Killed):
        save_checkpoint(kit)
    kit.disk.fault = None
    kit.kill()
    return kit, made


def test_apache_repeats_one_record_at_most_after_a_kill_during_a_flush(tmp_path: Path) -> None:
    """And only between the header of a full file and the checkpoint, which are one fdatasync
    apart; it never lacks an entry."""
    repeated = calls = 0
    while True:
        kit, made = killed_in_flush(tmp_path / f"{calls}", calls)
        expected = sum(map(entries_of, records_on_disk(kit)), Counter[tuple[int, int]]())
        entries = entries_of_apache(kit)
        assert not expected - entries, calls
        if more := entries - expected:
            repeated += 1
            kit.open()
            kit.dispatch()
            assert_rebuilt(kit, 5)
            kit.close()
            assert len({offset for _, offset in more}) == 1
            assert made[-1] in ("pwrite", "fdatasync"), "of the header"
        if len(made) < calls:
            break
        calls += 1
    assert repeated == 2, "one file was full"


def flip(path: Path, position: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def scrub(kit: Kit) -> None:
    """Do what the scrub of the broker does."""
    index = kit.store.index
    for path in index.full_files():
        with suppress(FileNotFoundError):  # deleted with the one before
            index.compare(path, index.read_digest(path))
    filling = index.filling()
    if filling is not None and not filling.is_intact():
        index.rebuild_from(filling.path)


@pytest.mark.parametrize("ended", ["", "close", "kill"])
@pytest.mark.parametrize("when", ["being filled", "full", "flushed"])
def test_damage_of_an_index_file_before_its_first_check_is_found(
    kit: Kit, when: str, ended: str
) -> None:
    """Whenever it happens, and however the store ends afterwards."""
    first_entry = IndexLayout(SLOTS, ENTRIES).entry_at(1)
    put(kit, 0, 1)
    found(kit, "all")
    (path,) = index_paths(kit)
    if when == "being filled":
        flip(path, first_entry)
    put(kit, 1, 4)
    found(kit, "all")
    assert kit.store.index.filling() is not None
    if when == "full":
        flip(path, first_entry)
    save_checkpoint(kit)
    if when == "flushed":
        flip(path, first_entry)
    assert found(kit, "u0") == []
    if ended == "close":
        kit.reopen()
    elif ended:
        kit.kill()
        kit.open()
        kit.dispatch()
    assert path in index_paths(kit)
    scrub(kit)
    assert kit.store.index.damaged == 1
    assert_rebuilt(kit, 5)
    scrub(kit)
    assert kit.store.index.damaged == 1


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_index_file_is_rebuilt(
    kit: Kit, place: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    put(kit, 0, 16)
    kit.close()
    kit.open()
    expected = [sorted(found(kit, f"k{number}")) for number in (1, 15)]
    if clean:
        kit.close()
    else:
        kit.kill()
    index_paths(kit)[place].unlink()
    kit.open()
    assert "index.file_missing" in caplog.text
    assert [sorted(found(kit, f"k{number}")) for number in (1, 15)] == expected == [[1], [15]]
    assert len(found(kit, "all", count_max=64)) == 16
    caplog.clear()
    kit.close()
    kit.open()
    assert "index.file_missing" not in caplog.text


def test_a_cut_of_the_last_index_file_is_found(kit: Kit) -> None:
    """Also of its free entries: a query refuses a file of another size."""
    put(kit, 0, 1)
    found(kit, "u0")
    (path,) = index_paths(kit)
    os.truncate(path, path.stat().st_size - ENTRY.size)
    with pytest.raises(UnsupportedLayoutError):
        found(kit, "u0")
    scrub(kit)
    assert_rebuilt(kit, 1)


@pytest.mark.parametrize("ended", [False, True])
def test_damage_of_the_last_index_file_is_found(kit: Kit, ended: bool) -> None:
    put(kit, 0, 1)
    assert found(kit, "u0") == [0]
    (path,) = index_paths(kit)
    flip(path, IndexLayout(SLOTS, ENTRIES).entry_at(1))
    assert found(kit, "u0") == []
    if ended:
        kit.reopen()
    else:
        scrub(kit)
    assert kit.store.index.damaged == 1
    assert_rebuilt(kit, 1)
    scrub(kit)
    assert kit.store.index.damaged == 1


def test_without_a_checkpoint_all_files_are_rebuilt(kit: Kit) -> None:
    put(kit, 0, 20)
    kit.kill()
    kit.open()
    kit.dispatch()
    assert kit.store.index.behind > 0
    expected = plain_bytes(kit)
    assert_rebuilt(kit, 20)
    kit.close()
    assert index_bytes(kit) == expected


def test_a_rebuild_continues_without_traffic(kit: Kit) -> None:
    put(kit, 0, 20)
    kit.kill()
    kit.open()
    turns = 0
    while kit.store.index.turn():
        turns += 1
        assert turns < 100
    assert kit.store.index.behind == 0
    assert not kit.store.index.turn()


def test_dispatch_indexes_batches(tmp_path: Path) -> None:
    kit = new_kit(tmp_path, mapped_file_size_commit_log=1 << 20, max_index_num=100_000)
    kit.open()
    message = {"properties": encode_properties({"KEYS": "k"})}
    for _ in range(BATCH_RECORDS - 1):
        kit.write(b"", **message)
    kit.dispatch()
    assert not index_paths(kit), "dispatch does not pay for a few"
    kit.write(b"", **message)
    kit.dispatch()
    assert kit.store.index.behind == 0
    assert len(index_paths(kit)) == 1
    kit.close()


def test_a_full_disk_suspends_indexing(kit: Kit) -> None:
    put(kit, 0, 2)
    found(kit, "all")

    def no_room(name: str) -> None:
        if name == "truncate":
            raise OSError(errno.ENOSPC, "No space left on device")

    kit.disk.fault = no_room
    put(kit, 2, 10)
    assert found(kit, "u2") == found(kit, "u11") == []
    assert kit.store.writable
    assert "No space" in kit.store.index.stall_reason
    put(kit, 12, 3)
    kit.disk.fault = None
    assert found(kit, "u14") == [14]
    assert kit.store.index.stall_reason == ""
    expected = plain_bytes(kit)
    kit.close()
    assert index_bytes(kit) == expected, "no entry is lost or written twice"


def test_stopping_on_a_full_disk_is_clean(kit: Kit) -> None:
    put(kit, 0, 2)
    kit.reopen()  # the queue has its file now

    def no_room(name: str) -> None:
        if name == "truncate":
            raise OSError(errno.ENOSPC, "No space left on device")

    kit.disk.fault = no_room
    put(kit, 2, 10)
    assert found(kit, "u11") == []
    assert kit.reopen().clean
    assert_rebuilt(kit, 12)
    expected = plain_bytes(kit)
    kit.close()
    assert index_bytes(kit) == expected


def test_another_failure_makes_the_store_read_only(kit: Kit) -> None:
    put(kit, 0, 2)

    def broken(name: str) -> None:
        if name == "truncate":
            raise OSError(errno.EIO, "Input/output error")

    kit.disk.fault = broken
    assert found(kit, "all") == []
    assert "Building the index failed" in kit.store.refusal
    assert kit.queue_bodies() == kit.bodies()


def test_retention_deletes_the_oldest_and_never_the_last(kit: Kit) -> None:
    put(kit, 0, 20)
    found(kit, "all")
    count = len(index_paths(kit))
    assert kit.store.index.trim(0) == 0
    assert kit.store.index.trim(1 << 60) == 1, "one a call"
    while kit.store.index.trim(1 << 60):
        count -= 1
    assert len(index_paths(kit)) == 1
    assert found(kit, "u19") == [19]
    save_checkpoint(kit)
    assert kit.reopen().clean
    assert found(kit, "u19") == [19]


def test_an_invalid_file_is_deleted_with_all_later_ones(kit: Kit) -> None:
    put(kit, 0, 20)
    kit.close()
    expected = index_bytes(kit)
    paths = index_paths(kit)
    data = bytearray(expected[2])
    data[36:40] = (999).to_bytes(4, "big")
    paths[2].write_bytes(data)
    kit.now_ms += 1000
    assert kit.open_only().clean
    assert index_bytes(kit) == expected[:2]
    kit.store.start()
    assert_rebuilt(kit, 20)


def test_a_file_before_the_last_that_is_not_full_is_rebuilt(kit: Kit) -> None:
    put(kit, 0, 20)
    kit.close()
    expected = index_bytes(kit)
    paths = index_paths(kit)
    data = bytearray(expected[2])
    data[39] -= 1  # the number of the next entry
    paths[2].write_bytes(data)
    assert kit.open_only().clean
    assert index_bytes(kit) == expected[:2]
    kit.store.start()
    assert_rebuilt(kit, 20)


def test_files_with_entries_behind_the_log_end_are_deleted(kit: Kit) -> None:
    put(kit, 0, 20)
    kit.close()
    end = kit.store.log_end
    data = bytearray(index_paths(kit)[-1].read_bytes())
    data[24:32] = end.to_bytes(8, "big")
    index_paths(kit)[-1].write_bytes(data)
    kit.open()
    assert_rebuilt(kit, 20)


def test_an_empty_last_file_is_removed(kit: Kit) -> None:
    put(kit, 0, 3)
    kit.close()
    before = index_bytes(kit)
    (kit.root / "index" / "20990101000000000").write_bytes(b"")
    kit.open_only()
    assert index_bytes(kit) == before


def test_other_sizes_are_refused_and_nothing_is_changed(kit: Kit) -> None:
    put(kit, 0, 20)
    assert found(kit, "u0") == [0]
    kit.kill()
    before = kit.all_files()
    kit.options["max_hash_slot_num"] = SLOTS + 1
    with pytest.raises(UnsupportedLayoutError, match="maxHashSlotNum=6"):
        kit.open()
    assert kit.all_files() == before
    kit.options["max_hash_slot_num"] = SLOTS
    kit.open()


def test_without_an_index(tmp_path: Path) -> None:
    kit = new_kit(tmp_path / "store", message_index_enable=False)
    kit.open()
    put(kit, 0, 3)
    with pytest.raises(StoreError, match="messageIndexEnable"):
        found(kit, "all")
    assert kit.store.index.behind == 0
    kit.close()
    assert not index_paths(kit)
    kit.options["message_index_enable"] = True
    kit.open()
    assert_rebuilt(kit, 3)
    kit.close()


def test_damage_in_an_old_segment_is_skipped(kit: Kit) -> None:
    put(kit, 0, 60)
    assert len(kit.segment_paths()) > 3
    kit.close()
    for path in index_paths(kit):
        path.unlink()
    kit.change(4, b"\0\0\0\0")  # the magic of the first record
    kit.open()
    assert found(kit, "u0") == []
    assert found(kit, "u1") == [1]
    assert found(kit, "u59") == [59]
