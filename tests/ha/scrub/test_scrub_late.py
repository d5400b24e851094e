"""Damage from before the digest: the records show which bytes are right, or it is reported; digests
are taken soon."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.ha.state import digests
from cometmq.store.format.record import CRC_NAME
from cometmq.tests.ha.scrub.scrub_pair import COUNT, Pair


async def test_damage_before_the_digest_is_found_by_record_checksums(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.one.kit.flip_byte(pair.records[20].physical_offset + 120)
    async with pair:
        result = await pair.one.scrub.run_once()
        assert (result.damaged, result.repaired) == (1, 1)
        assert pair.one.kit.log_bytes() == pair.bytes
        known = digests.load(pair.one.kit.root / "ha")
        assert known == digests.load(pair.two.kit.root / "ha"), (
            "the digest is of the right bytes now"
        )


async def test_damage_between_the_roll_and_the_digest_is_repaired(tmp_path: Path) -> None:
    """The digest claims to be taken when the segment was finished, but is of damaged bytes."""
    pair = Pair(tmp_path)
    for replica in (pair.one, pair.two):
        replica.scrub._late.clear()  # as if the segments had been finished in this run
    pair.one.kit.flip_byte(pair.records[20].physical_offset + 120)
    async with pair:
        assert all(each.sealed for each in digests.load(pair.one.kit.root / "ha").values())
        assert (await pair.two.scrub.run_once()).repaired == 0, "its bytes are right"
        result = await pair.one.scrub.run_once()
        assert (result.damaged, result.repaired, result.lost, result.different) == (1, 1, 0, 0)
        assert pair.one.kit.log_bytes() == pair.bytes == pair.two.kit.log_bytes()
        for replica in (pair.one, pair.two):
            assert (await replica.scrub.run_once()).different == 0


async def test_fields_damaged_before_the_digest_are_found_by_the_records_own_checksum(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, enabled_append_prop_crc=True)
    pair.one.kit.flip_byte(pair.records[20].physical_offset + 44)  # the time of birth
    async with pair:
        assert (await pair.one.scrub.run_once()).repaired == 1
        assert pair.one.kit.log_bytes() == pair.bytes


async def test_a_reader_passes_a_record_whose_block_the_scrub_finds_intact(tmp_path: Path) -> None:
    """The name of the record's own checksum is damaged, and the digest is of damaged bytes."""
    pair = Pair(tmp_path, enabled_append_prop_crc=True)
    pair.one.peers = []
    record = pair.records[20]
    name_at = pair.bytes.index(CRC_NAME, record.physical_offset)
    pair.one.kit.flip_byte(name_at)
    async with pair:
        pair.one.scrub.start()
        store = pair.one.kit.store
        found = store.get("TopicTest", 0, 20, 100, 1 << 20)
        assert (found.records, found.next_offset) == ([], 20), "it waits for a scrub"
        assert (await pair.one.scrub.run_once()).lost == 0
        found = store.get("TopicTest", 0, 20, 100, 1 << 20)
        assert [each.queue_offset for each in found.records] == list(range(21, COUNT))
        await pair.one.scrub.stop()


async def test_a_difference_with_intact_records_on_both_sides_is_reported_only(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path)
    pair.one.kit.flip_byte(pair.records[20].physical_offset + 44)  # the time of birth
    before = pair.one.kit.log_bytes()
    async with pair:
        for replica in (pair.one, pair.two):
            result = await replica.scrub.run_once()
            assert (result.different, result.damaged) == (1, 0)
        assert (pair.one.kit.log_bytes(), pair.two.kit.log_bytes()) == (before, pair.bytes)


async def test_a_fresh_segment_gets_its_digest_before_those_of_an_old_log(tmp_path: Path) -> None:
    """A segment that was just finished gets its digest before all that existed at the start."""
    pair = Pair(tmp_path)
    pair.one.kit.write_many(30, size=200)
    finished = [start for start, _ in pair.one.kit.store.blocks.finished_segments()]
    fresh = [start for start in finished if start not in pair.one.scrub._late]
    assert fresh
    async with pair:
        noted = list(digests.load(pair.one.kit.root / "ha"))
        assert noted == fresh + [start for start in finished if start not in fresh]


async def test_a_digest_is_taken_promptly_at_the_roll(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    async with pair:
        pair.one.scrub.start()
        await asyncio.sleep(0.2)  # its first look is over
        pair.one.kit.write_many(30, size=200)
        finished = {start for start, _ in pair.one.kit.store.blocks.finished_segments()}
        for _ in range(2000):
            if finished <= pair.one.scrub._digests.keys():
                break
            await asyncio.sleep(0.01)
        known = digests.load(pair.one.kit.root / "ha")
        assert finished == set(known)
        await pair.one.scrub.stop()
