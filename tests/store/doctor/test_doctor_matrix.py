"""The matrix of planted damage: everything that the doctor must find, with the exact byte range.

Rows are what happens to bytes, columns where: "." stands for a pair that the matrix has.

                   header  body  properties  CRC tail  blank  unit  slot  entry  timer  checkpoint
                   JSON
    bit flip         .      .        .          .        .     .     .     .      .        .
    .
    zeroed range     .      .        .          .        .     .     .     .      .
    .
    cut              .      .                                  .           .      .        .
    .
    duplicated       .      .                                  .     .     .      .
    swapped          (records) .                               .     .     .      .
    wrong size       .               .                   .     .                  .        .
    wrong magic      .                                   .                        .

A checkpoint of zeros is a legal one (nothing is known), and so is JSON with another number in it.
Without a CRC tail nothing checks flag, born time, hosts, reconsume times and the text of user
properties: those are planted in the case that has the tail (`crc`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.problems import PROBLEM, Finding
from cometmq.store.doctor.verify import verify
from cometmq.tests.formats.cases import unpack
from cometmq.tests.store.damage import Place, Site
from cometmq.tests.store.doctor import plant_derived as derived
from cometmq.tests.store.doctor import plant_log as log

Plant = Callable[[Site], Place]


@pytest.fixture(scope="module")
def sites() -> Iterator[Callable[[str], Site]]:
    """Sites of golden cases, unpacked once."""
    found: dict[str, Site] = {}
    with tempfile.TemporaryDirectory() as folder:

        def site(case: str) -> Site:
            if case not in found:
                found[case] = Site(unpack(case, Path(folder)))
            return found[case]

        yield site


def problems(root: Path) -> list[Finding]:
    return verify(discover(root)).findings.problems


MATRIX: list[tuple[str, str, Plant]] = [
    ("header: a bit of the size", "normal", partial(log.header_flip, 2, None, 1)),
    ("header: a bit of the magic", "normal", partial(log.header_flip, 6, None, 0)),
    ("header: a bit of the body's CRC", "normal", partial(log.header_flip, 9, (8, 12), 3)),
    ("header: a bit of the queue id", "normal", partial(log.header_flip, 15, (12, 16), 0)),
    ("header: a high bit of the queue id", "normal", partial(log.header_flip, 12, (12, 16), 7)),
    ("header: a bit of the flag", "crc", partial(log.header_flip, 19, None, 0)),
    ("header: a bit of the queue offset", "normal", partial(log.header_flip, 27, (20, 28), 2)),
    ("header: a high bit of the queue offset", "normal", partial(log.header_flip, 20, (20, 28), 7)),
    ("header: a bit of the physical offset", "normal", partial(log.header_flip, 35, None, 4)),
    ("header: a bit of the system flag", "normal", partial(log.header_flip, 39, None, 4)),
    ("header: a bit of the born host", "crc", partial(log.header_flip, 49, None, 4)),
    ("header: a bit of the store time", "normal", partial(log.header_flip, 61, (56, 64), 6)),
    ("header: a bit of the body's length", "normal", partial(log.header_flip, 87, None, 0)),
    ("header: zeroed", "normal", log.header_zero),
    ("header: wrong size, larger", "normal", partial(log.header_size, 5)),
    ("header: wrong size, smaller", "normal", partial(log.header_size, -5)),
    ("header: wrong magic", "normal", log.header_magic),
    ("header: cut", "normal", log.header_cut),
    ("records swapped", "normal", log.records_swapped),
    ("record duplicated", "normal", log.record_duplicated),
    ("zeros over many records", "normal", log.zeros_over_records),
    ("body: a bit", "normal", log.body_flip),
    ("body: a bit, with a CRC tail", "crc", log.body_flip),
    ("body: zeroed", "normal", log.body_zero),
    ("body: duplicated range", "normal", log.body_duplicated),
    ("body: swapped ranges", "normal", log.body_swapped),
    ("body: cut", "normal", log.body_cut),
    ("properties: a bit of a separator", "normal", log.properties_separator),
    ("properties: a bit of the tag", "normal", log.properties_tag),
    ("properties: a bit of a key", "normal", log.properties_key),
    ("properties: a bit of the unique key", "normal", log.properties_unique_key),
    ("properties: zeroed", "normal", log.properties_zero),
    ("properties: wrong size", "normal", log.properties_size),
    ("properties: a bit of a user's property", "crc", log.user_property),
    ("CRC tail: a bit of a digit", "crc", log.tail_digit),
    ("CRC tail: a digit becomes a letter", "crc", log.tail_letter),
    ("CRC tail: a bit of its name", "crc", log.tail_name),
    ("CRC tail: zeroed", "crc", log.tail_zero),
    ("blank: a bit", "normal", log.blank_flip),
    ("blank: zeroed", "normal", log.blank_zero),
    ("blank: wrong size", "normal", log.blank_size),
    ("blank: wrong magic", "normal", log.blank_magic),
    ("unit: a bit of the offset", "normal", partial(derived.unit_flip, 6, (0, 20))),
    ("unit: a bit of the size", "normal", partial(derived.unit_flip, 11, (0, 20))),
    ("unit: a bit of the tags code", "normal", partial(derived.unit_flip, 19, (12, 20))),
    ("unit: zeroed", "normal", derived.unit_zero),
    ("unit: the last one zeroed", "normal", derived.last_unit_zero),
    ("units swapped", "normal", derived.units_swapped),
    ("unit duplicated", "normal", derived.unit_duplicated),
    ("unit duplicated behind the end", "normal", derived.unit_behind_the_end),
    ("unit: wrong size", "normal", derived.unit_size),
    ("queue file cut", "normal", derived.queue_cut),
    ("extension unit: a bit of its size", "ext", partial(derived.ext_flip, 1)),
    ("extension unit: a bit of the tags", "ext", partial(derived.ext_flip, 9)),
    ("extension unit: a bit of the time", "ext", partial(derived.ext_flip, 16)),
    ("index slot: a bit", "normal", derived.slot_flip),
    ("index slots zeroed", "normal", derived.slots_zero),
    ("index slots swapped", "normal", derived.slots_swapped),
    ("index slot duplicated", "normal", derived.slot_duplicated),
    ("index entry: a bit of the hash", "normal", partial(derived.entry_flip, 2, (0, 20))),
    ("index entry: a bit of the offset", "normal", partial(derived.entry_flip, 10, (0, 20))),
    ("index entry: a bit of the seconds", "normal", partial(derived.entry_flip, 14, (12, 16))),
    ("index entry: a bit of the chain", "normal", partial(derived.entry_flip, 19, (16, 20))),
    ("index entries zeroed", "normal", derived.entries_zero),
    ("index entries swapped", "normal", derived.entries_swapped),
    ("index entry duplicated", "normal", derived.entry_duplicated),
    ("index file cut", "normal", derived.index_cut),
    ("index header: first time", "normal", partial(derived.index_header, 5, (0, 8))),
    ("index header: last time", "normal", partial(derived.index_header, 14, (8, 16))),
    ("index header: first offset", "normal", partial(derived.index_header, 22, (16, 24))),
    ("index header: last offset", "normal", partial(derived.index_header, 30, (24, 32))),
    ("index header: slots", "normal", partial(derived.index_header, 35, (32, 36))),
    ("index header: entries", "normal", partial(derived.index_header, 38, (36, 40))),
    ("timer log: a bit of the chain", "timer-roll", partial(derived.timer_flip, 10)),
    ("timer log: a bit of the time", "timer-roll", partial(derived.timer_flip, 22)),
    ("timer log: a bit of the delay", "timer-roll", partial(derived.timer_flip, 26)),
    ("timer log: a bit of the offset", "timer-roll", partial(derived.timer_flip, 35)),
    ("timer log: a bit of the message's size", "timer-roll", partial(derived.timer_flip, 39)),
    ("timer log: a bit of the topic's hash", "timer-roll", partial(derived.timer_flip, 42)),
    ("timer log: a bit of the reserved field", "timer-roll", partial(derived.timer_flip, 50)),
    ("timer log: unit zeroed", "timer-roll", derived.timer_zero),
    ("timer log: wrong size", "timer-roll", derived.timer_size),
    ("timer log: wrong magic", "timer-roll", derived.timer_magic),
    ("timer log: units swapped", "timer-roll", derived.timers_swapped),
    ("timer log: unit duplicated", "timer-roll", derived.timer_duplicated),
    ("timer log: file cut", "timer-roll", derived.timer_cut),
    ("timer log: a bit of the file's end mark", "timer-roll", derived.timer_end),
    ("timer wheel: a bit of a slot", "timer-roll", derived.wheel_flip),
    ("timer wheel: a slot zeroed", "timer-roll", derived.wheel_zero),
    ("timer checkpoint: a bit", "timer-roll", derived.timercheck_flip),
    ("checkpoint: a bit of the first time", "normal", partial(derived.checkpoint_flip, 1)),
    ("checkpoint: a bit of the index time", "normal", partial(derived.checkpoint_flip, 18)),
    ("checkpoint: a bit of the confirmed offset", "normal", partial(derived.checkpoint_flip, 38)),
    ("checkpoint: a bit of the last offset", "normal", partial(derived.checkpoint_flip, 46)),
    ("checkpoint: cut", "normal", derived.checkpoint_cut),
    ("checkpoint: junk in the rest", "normal", derived.checkpoint_rest),
    ("JSON: a bit", "normal", derived.json_flip),
    ("JSON: zeroed", "normal", derived.json_zero),
    ("JSON: cut", "normal", derived.json_cut),
]


def test_the_matrix_is_large_enough() -> None:
    assert len({name for name, _, _ in MATRIX}) == len(MATRIX) >= 30


@pytest.mark.parametrize("case", ["normal", "crc", "ext", "timer-roll"])
def test_an_undamaged_store_has_no_problem(case: str, sites: Callable[[str], Site]) -> None:
    assert problems(sites(case).root) == []


@pytest.mark.parametrize(("case", "plant"), [row[1:] for row in MATRIX], ids=[r[0] for r in MATRIX])
def test_planted_damage_is_found_at_its_position(
    case: str, plant: Plant, sites: Callable[[str], Site]
) -> None:
    site = sites(case)
    with site.damaged(plant) as expected:
        found = problems(site.root)
    name = str(expected.file.relative_to(site.root))
    ranges = {(one.file, one.begin, one.end) for one in found}
    assert (name, expected.begin, expected.end) in ranges, found
    assert all(one.severity == PROBLEM for one in found)
    # What is wrong in one place is not reported all over the store.
    assert len(found) <= 12, found
