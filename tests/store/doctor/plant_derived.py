"""Damage of what is derived from the log, and of the checkpoint and JSON files, for the matrix:
each plants it and gives the range that has to be found."""

from __future__ import annotations

from cometmq.store.format.checkpoint import USED_BYTES
from cometmq.tests.store.damage import Place, Site, cut, duplicate, flip, i32, put, swap, zero

# -- queues ---------------------------------------------------------------------------------------


def unit_flip(at: int, found: tuple[int, int], site: Site) -> Place:
    unit = site.unit("TopicNormal", 1, 17)
    flip(unit.part(at, at + 1), 2)
    return unit.part(*found)


def unit_zero(site: Site) -> Place:
    zero(site.unit("TopicNormal", 2, 30))
    return site.unit("TopicNormal", 2, 30)


def last_unit_zero(site: Site) -> Place:
    zero(site.unit("TopicNormal", 2, 59))
    return site.unit("TopicNormal", 2, 59)


def units_swapped(site: Site) -> Place:
    first, second = (site.unit("TopicNormal", 3, number) for number in (20, 21))
    swap(first, second)
    return Place(first.file, first.begin, second.end)


def unit_duplicated(site: Site) -> Place:
    duplicate(site.unit("TopicNormal", 3, 20), site.unit("TopicNormal", 3, 41))
    return site.unit("TopicNormal", 3, 41)


def unit_behind_the_end(site: Site) -> Place:
    duplicate(site.unit("TopicNormal", 3, 20), site.unit("TopicNormal", 3, 60))
    return site.unit("TopicNormal", 3, 60)


def unit_size(site: Site) -> Place:
    put(site.unit("TopicNormal", 0, 5).part(8, 12), i32(99))
    return site.unit("TopicNormal", 0, 5)


def queue_cut(site: Site) -> Place:
    path = site.unit("TopicNormal", 0, 0).file
    cut(path, 1990)
    return Place(path, 1990, 2000)


def ext_flip(at: int, site: Site) -> Place:
    unit = site.unit("TopicNormal", 1, 7, "consumequeue_ext")
    flip(unit.part(at, at + 1), 4)
    return unit


# -- index ----------------------------------------------------------------------------------------


def slot_flip(site: Site) -> Place:
    place = site.slot(site.used_slots()[8])
    flip(place.part(3, 4), 0)
    return place


def slots_zero(site: Site) -> Place:
    used = site.used_slots()
    first = next(n for n in used if n + 1 in used)
    place = Place(site.index(), site.slot(first).begin, site.slot(first + 1).end)
    zero(place)
    return place


def slots_swapped(site: Site) -> Place:
    used = site.used_slots()
    first = next(n for n in used if n + 1 in used)
    swap(site.slot(first), site.slot(first + 1))
    return Place(site.index(), site.slot(first).begin, site.slot(first + 1).end)


def slot_duplicated(site: Site) -> Place:
    used = site.used_slots()
    duplicate(site.slot(used[3]), site.slot(used[9]))
    return site.slot(used[9])


def entry_flip(at: int, found: tuple[int, int], site: Site) -> Place:
    entry = site.entry(50)
    flip(entry.part(at, at + 1), 1)
    return entry.part(*found)


def entries_zero(site: Site) -> Place:
    zero(Place(site.index(), site.entry(60).begin, site.entry(63).end))
    return site.entry(61)


def entries_swapped(site: Site) -> Place:
    swap(site.entry(70), site.entry(71))
    return site.entry(70)


def entry_duplicated(site: Site) -> Place:
    duplicate(site.entry(70), site.entry(90))
    return site.entry(90)


def index_cut(site: Site) -> Place:
    cut(site.index(), 8000)
    return Place(site.index(), 8000, 8440)


def index_header(at: int, found: tuple[int, int], site: Site) -> Place:
    header = Place(site.index(), 0, 40)
    flip(header.part(at, at + 1), 1)
    return header.part(*found)


# -- timers ---------------------------------------------------------------------------------------


def timer_flip(at: int, site: Site) -> Place:
    flip(site.timer(300).part(at, at + 1), 4)
    return site.timer(300)


def timer_zero(site: Site) -> Place:
    zero(site.timer(301))
    return site.timer(301)


def timer_size(site: Site) -> Place:
    put(site.timer(302).part(0, 4), i32(53))
    return site.timer(302)


def timer_magic(site: Site) -> Place:
    put(site.timer(303).part(12, 16), i32(8))
    return site.timer(303)


def timers_swapped(site: Site) -> Place:
    swap(site.timer(304), site.timer(305))
    return site.timer(304)


def timer_duplicated(site: Site) -> Place:
    duplicate(site.timer(306), site.timer(320))
    return site.timer(320)


def timer_cut(site: Site) -> Place:
    cut(site.timer(0, 1).file, 30_000)
    return Place(site.timer(0, 1).file, 30_000, 52_000)


def timer_end(site: Site) -> Place:
    place = Place(site.timer(0).file, 51_948, 51_964)
    flip(place.part(13, 14), 0)
    return place


def wheel_flip(site: Site) -> Place:
    slot = site.wheel_slot()
    flip(slot.part(23, 24), 0)
    return slot


def wheel_zero(site: Site) -> Place:
    slot = site.wheel_slot()
    zero(slot)
    return slot


def timercheck_flip(site: Site) -> Place:
    place = site.file("config/timercheck").part(8, 16)
    flip(place, 3)
    return place


# -- checkpoint and JSON --------------------------------------------------------------------------


def checkpoint_flip(at: int, site: Site) -> Place:
    place = site.file("checkpoint")
    flip(place.part(at, at + 1), 6)
    return place.part(at - at % 8, at - at % 8 + 8)


def checkpoint_cut(site: Site) -> Place:
    cut(site.root / "checkpoint", 100)
    return Place(site.root / "checkpoint", 100, 4096)


def checkpoint_rest(site: Site) -> Place:
    place = site.file("checkpoint")
    put(place.part(900, 904), b"junk")
    return place.part(USED_BYTES, 4096)


def json_flip(site: Site) -> Place:
    place = site.file("config/topics.json")
    at = place.data.index(b"{", 10)
    flip(place.part(at, at + 1), 1)
    return place


def json_zero(site: Site) -> Place:
    place = site.file("config/subscriptionGroup.json")
    zero(place.part(100, 160))
    return place


def json_cut(site: Site) -> Place:
    cut(site.root / "config/consumerOffset.json", 90)
    return site.file("config/consumerOffset.json")
