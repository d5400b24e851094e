"""Extension files of consume queues: the unit, roll-over, what a crash or a cut leaves, reading."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import UnsupportedLayoutError
from cometmq.store.format.properties import java_hash
from cometmq.store.format.queue_ext import (
    HEAD,
    ExtUnit,
    QueueExt,
    address_of,
    decode_unit,
    encode_unit,
    is_address,
    position_of,
    walk_units,
)
from cometmq.store.format.queue_files import QueueFiles
from cometmq.store.format.results import GetStatus
from cometmq.tests.store.kit import START_MS, Kit

FILE = 256  # twelve units of 20 bytes, and the end mark
A_FILE = (FILE - 4) // 20
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TAGS = frozenset({java_hash("T1")})


def ext_kit(root: Path, **options: Any) -> Kit:
    return Kit(
        root, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=FILE, **options
    )


def fill(kit: Kit, count: int) -> None:
    for index in range(count):
        kit.now_ms += 1
        kit.write(f"{index}".encode(), tags=f"T{index % 3}")
    kit.dispatch()


def ext_files(kit: Kit) -> dict[str, bytes]:
    folder = kit.root / "consumequeue_ext" / "TopicTest" / "0"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_unit_is_as_in_the_format() -> None:
    data = bytes.fromhex("0014 000000000027a807 0000018bcfe56800 0000")
    assert encode_unit(ExtUnit(java_hash("TagA"), 0x18BCFE56800)) == data
    assert decode_unit(data, 0) == ExtUnit(0x27A807, 0x18BCFE56800)
    with_bits = encode_unit(ExtUnit(-1, 2, b"\x81\x00"))
    assert with_bits == bytes.fromhex("0016 ffffffffffffffff 0000000000000002 0002 8100")
    with pytest.raises(ValueError, match="bitmap"):
        encode_unit(ExtUnit(0, 0, bytes(32_767 - 19)))


def test_addresses_never_equal_hashes() -> None:
    assert address_of(0) == -(1 << 63)
    assert position_of(address_of(4096)) == 4096
    assert is_address(address_of(9_223_372_034_707_292_159))
    assert not is_address(-(1 << 31))
    assert not is_address((1 << 63) - 1)


@given(units=st.lists(st.builds(ExtUnit, I64, I64, st.binary(max_size=40)), max_size=8))
def test_units_round_trip(units: list[ExtUnit]) -> None:
    data = b"".join(encode_unit(unit) for unit in units) + bytes(30)
    assert [unit for _, unit in walk_units(data)] == units


@given(data=st.binary(max_size=200), position=st.integers(-5, 210))
def test_arbitrary_bytes_are_decoded_without_a_crash(data: bytes, position: int) -> None:
    unit = decode_unit(data, position)
    if unit is not None:
        assert data[position:].startswith(encode_unit(unit))
    assert sum(HEAD.size + len(unit.bitmap) for _, unit in walk_units(data)) <= len(data)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, FILE - 24), min_size=1, max_size=30), data=st.data())
def test_units_of_every_size_roll_over(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    """Written in batches, found by address, and found again by a walk."""
    files = QueueFiles(Disk(), FILE, 2, str(tmp_path_factory.mktemp("ext")))
    ext = QueueExt("T", 0, files)
    ext.find_end(None)
    units = [ExtUnit(index, -index, bytes([index + 1]) * size) for index, size in enumerate(sizes)]
    addresses = []
    for unit in units:
        addresses.append(ext.append(unit))
        if data.draw(st.booleans()):
            ext.write_out()
    ext.write_out()
    assert [ext.unit(address) for address in addresses] == units
    again = QueueExt("T", 0, files)
    again.find_end(None)
    assert again.end == ext.end, "by a walk"
    known = QueueExt("T", 0, files)
    known.find_end(addresses[-1])
    assert known.end == ext.end, "from the last address"
    for address, size in zip(addresses, sizes, strict=True):
        place = position_of(address) % FILE
        assert place + HEAD.size + size <= FILE - 4, "room for the end mark"
    keep = data.draw(st.integers(0, len(units) - 1))
    known.end = position_of(addresses[keep])
    known.truncate()
    assert [known.unit(address) for address in addresses[:keep]] == units[:keep]
    assert known.unit(addresses[-1]) is None
    files.close()


def test_the_unit_has_the_address_and_the_reader_the_hash(tmp_path: Path) -> None:
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 30)
    for _ in range(2):
        queue = kit.store.queue_table.queue("TopicTest", 0)
        place = 0
        for number in range(30):
            if number and number % A_FILE == 0:
                place += FILE - A_FILE * 20
            assert queue.unit(number)[2] == address_of(place)
            place += 20
        records = kit.store.get("TopicTest", 0, 0, 30).records
        assert [record.tags_code for record in records] == [
            java_hash(f"T{index % 3}") for index in range(30)
        ]
        found = kit.store.get("TopicTest", 0, 0, 10, tag_codes=TAGS)
        assert [record.queue_offset for record in found.records] == list(range(1, 30, 3))
        kit.reopen()
    files = ext_files(kit)
    assert list(files) == [f"{start:020d}" for start in (0, 256, 512)]
    assert files[f"{0:020d}"][240:] == b"\xff\xff" + bytes(14)
    units = [unit for data in files.values() for _, unit in walk_units(data)]
    assert [unit.store_timestamp_ms for unit in units] == [START_MS + 1 + i for i in range(30)]
    kit.close()


def test_missing_extension_files_match_every_filter(tmp_path: Path) -> None:
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 30)
    kit.close()
    shutil.rmtree(tmp_path / "consumequeue_ext")
    kit.open()
    found = kit.store.get("TopicTest", 0, 0, 30, tag_codes=TAGS)
    assert [record.queue_offset for record in found.records] == list(range(30))
    assert found.records[0].tags_code == address_of(0)
    kit.close()


def test_switched_off_the_old_addresses_are_still_read(tmp_path: Path) -> None:
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 10)
    kit.close()
    kit.options["enable_consume_queue_ext"] = False
    kit.open()
    fill(kit, 10)
    queue = kit.store.queue_table.queue("TopicTest", 0)
    assert not is_address(queue.unit(10)[2])
    found = kit.store.get("TopicTest", 0, 0, 20, tag_codes=TAGS)
    assert [record.queue_offset for record in found.records] == [1, 4, 7, 11, 14, 17]
    kit.close()
    kit.options["enable_consume_queue_ext"] = True
    kit.open()
    fill(kit, 1)
    assert kit.store.queue_table.queue("TopicTest", 0).unit(20)[2] == address_of(200), (
        "goes on behind"
    )
    kit.close()


@pytest.mark.parametrize("written", [False, True])
def test_after_a_kill_the_same_bytes_are_written_again(tmp_path: Path, written: bool) -> None:
    """Extension units are in the file before their queue units are: what lies behind the last of
    those is written again, with the same bytes."""
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 40)
    if written:
        kit.store.queue_table.write_out()
    before = ext_files(kit)
    kit.kill()
    report = kit.open()
    assert not report.clean
    kit.dispatch()
    records = kit.store.get("TopicTest", 0, 0, 30).records
    assert [record.tags_code for record in records] == [
        java_hash(f"T{index % 3}") for index in range(30)
    ]
    kit.close()
    assert ext_files(kit) == before


def test_a_torn_record_and_its_extension_unit_are_cut(tmp_path: Path) -> None:
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 13)
    begin = kit.store.log_end
    fill(kit, 1)
    end = kit.store.log_end
    kit.store.queue_table.write_out()
    kit.kill()
    kit.cut_tail(begin, end)
    kit.open()
    kit.dispatch()
    assert kit.store.max_offset("TopicTest", 0) == 13
    units = [unit for data in ext_files(kit).values() for _, unit in walk_units(data)]
    assert len(units) == 13
    fill(kit, 1)
    assert kit.store.queue_table.queue("TopicTest", 0).unit(13)[2] == address_of(FILE + 20)
    kit.close()


def test_files_before_the_first_unit_are_trimmed(tmp_path: Path) -> None:
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 60)
    queues = kit.store.queue_table
    queues.write_out()
    start = queues.queue("TopicTest", 0).unit(45)[0]
    removed = queues.trim(start)
    assert queues.trimmed_to == start
    assert kit.store.min_offset("TopicTest", 0) == 45
    assert removed == 2 + 3, "units 0-39 in queue files of 20, 0-35 in extension files of 12"
    assert list(ext_files(kit)) == [f"{start:020d}" for start in (768, 1024)]
    found = kit.store.get("TopicTest", 0, 45, 30, tag_codes=TAGS)
    assert [record.queue_offset for record in found.records] == [46, 49, 52, 55, 58]
    assert found.status is GetStatus.FOUND
    kit.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mapped_file_size_consume_queue_ext": 23}, "mappedFileSizeConsumeQueueExt is 23"),
        ({"access_message_in_memory_max_ratio": 101}, "accessMessageInMemoryMaxRatio is 101"),
        ({"max_transfer_count_on_message_in_disk": 0}, "maxTransferCountOnMessageInDisk is 0"),
        (
            {"max_transfer_bytes_on_message_in_memory": -1},
            "maxTransferBytesOnMessageInMemory is -1",
        ),
    ],
)
def test_options_are_checked(options: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        StoreConfig("x", **options)  # type: ignore[arg-type]


def test_addresses_of_lost_units_are_not_reused(tmp_path: Path) -> None:
    """Otherwise an old unit would show the tag of a new message."""
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 30)
    kit.close()
    folder = tmp_path / "consumequeue_ext" / "TopicTest" / "0"
    (folder / f"{256:020d}").unlink()
    (folder / f"{512:020d}").unlink()
    for _ in range(2):
        kit.open()
        fill(kit, 1)
        kit.close()
    kit.open()
    records = kit.store.get("TopicTest", 0, 0, 32).records
    expected = [java_hash(f"T{index % 3}") for index in range(12)]
    assert [record.tags_code for record in records[:12]] == expected
    assert [record.tags_code for record in records[30:]] == expected[:1] * 2
    assert all(is_address(record.tags_code) for record in records[12:30])
    assert sorted(path.name for path in folder.iterdir()) == [f"{0:020d}", f"{768:020d}"]
    kit.close()


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 30)
    kit.close()
    before = kit.all_files()
    kit.options["mapped_file_size_consume_queue_ext"] = 200
    with pytest.raises(UnsupportedLayoutError, match="mappedFileSizeConsumeQueueExt is 200"):
        kit.open()
    assert kit.all_files() == before


def test_a_short_file_of_a_crash_is_extended(tmp_path: Path) -> None:
    kit = ext_kit(tmp_path)
    kit.open()
    fill(kit, 12)
    kit.close()
    path = tmp_path / "consumequeue_ext" / "TopicTest" / "0" / f"{256:020d}"
    path.touch()
    kit.open()
    fill(kit, 1)
    kit.close()
    assert path.stat().st_size == FILE
