"""Damage of the commit log, for the matrix: each plants it and gives the range that has to be
found."""

from __future__ import annotations

from cometmq.tests.store.damage import Place, Site, cut, duplicate, flip, i32, put, swap, zero


def header_flip(at: int, found: tuple[int, int] | None, bit: int, site: Site) -> Place:
    """A bit of the header at byte `at`; `found`: the field that is reported, None: the record."""
    record = site.record(30)
    flip(record.field(at, at + 1), bit)
    return record.field(*found) if found else record.whole


def header_zero(site: Site) -> Place:
    zero(site.record(30).field(0, 88))
    return site.record(30).whole


def header_size(change: int, site: Site) -> Place:
    record = site.record(30)
    put(record.field(0, 4), i32(record.whole.end - record.whole.begin + change))
    return record.whole


def header_magic(site: Site) -> Place:
    put(site.record(30).field(4, 8), bytes.fromhex("daa320ff"))
    return site.record(30).whole


def header_cut(site: Site) -> Place:
    """The last segment ends inside a header."""
    record = next(r for r in site.records if r.whole.file == site.segments[-1])
    size = site.segments[0].stat().st_size
    cut(record.whole.file, record.whole.begin + 40)
    return Place(record.whole.file, record.whole.begin + 40, size)


def records_swapped(site: Site) -> Place:
    first, second = site.neighbours()
    swap(first.whole, second.whole)
    return Place(first.whole.file, first.whole.begin, second.whole.end)


def record_duplicated(site: Site) -> Place:
    first, second = site.neighbours()
    duplicate(first.whole, second.whole)
    return second.whole


def body_flip(site: Site) -> Place:
    body = site.with_body(100).body
    flip(body.part(40, 41), 5)
    return body


def body_zero(site: Site) -> Place:
    body = site.with_body(100).body
    zero(body.part(10, 60))
    return body


def body_duplicated(site: Site) -> Place:
    body = site.with_body(100).body
    duplicate(body.part(0, 40), body.part(50, 90))
    return body


def body_swapped(site: Site) -> Place:
    body = site.with_body(100).body
    swap(body.part(0, 20), body.part(20, 50))
    return body


def body_cut(site: Site) -> Place:
    """A segment in the middle ends inside a body."""
    record = [r for r in site.records if r.whole.file == site.segments[1]][-3]
    size = site.segments[0].stat().st_size
    cut(record.whole.file, record.body.begin + 1)
    return Place(record.whole.file, record.body.begin + 1, size)


def zeros_over_records(site: Site) -> Place:
    """A page of zeros, from the middle of one record to the middle of another."""
    first, last = site.record(40), site.record(50)
    zero(Place(first.whole.file, first.body.begin, last.body.begin))
    return Place(first.whole.file, first.whole.begin, last.whole.end)


def properties_separator(site: Site) -> Place:
    record = site.record(30)
    flip(site.in_properties(record, b"\x01"), 1)
    return record.properties


def properties_tag(site: Site) -> Place:
    record = site.record(30)
    place = site.in_properties(record, b"TAGS\x01")
    flip(Place(place.file, place.end, place.end + 1), 0)
    return record.properties


def properties_key(site: Site) -> Place:
    record = site.record(30)
    place = site.in_properties(record, b"KEYS\x01")
    flip(Place(place.file, place.end, place.end + 1), 0)
    return record.properties


def properties_unique_key(site: Site) -> Place:
    record = site.record(30)
    place = site.in_properties(record, b"UNIQ_KEY\x01")
    flip(Place(place.file, place.end, place.end + 1), 0)
    return record.properties


def properties_zero(site: Site) -> Place:
    record = site.record(30)
    zero(record.properties.part(4, 24))
    return record.properties


def properties_size(site: Site) -> Place:
    record = site.record(30)
    at = record.properties.begin - record.whole.begin
    size = record.properties.end - record.properties.begin
    put(record.field(at - 2, at), (size - 3).to_bytes(2, "big"))
    return record.whole


def user_property(site: Site) -> Place:
    """The text of a property that nothing but the CRC tail checks."""
    record = site.record(30)
    place = site.in_properties(record, b"region\x01")
    flip(Place(place.file, place.end, place.end + 1), 0)
    return record.whole


def tail_digit(site: Site) -> Place:
    record = site.record(30)
    flip(Place(record.whole.file, record.whole.end - 8, record.whole.end), 0)
    return record.whole


def tail_letter(site: Site) -> Place:
    end = site.record(30).whole.end
    flip(Place(site.record(30).whole.file, end - 8, end), 6)
    return Place(site.record(30).whole.file, end - 20, end)


def tail_name(site: Site) -> Place:
    end = site.record(30).whole.end
    flip(Place(site.record(30).whole.file, end - 15, end), 0)
    return Place(site.record(30).whole.file, end - 20, end)


def tail_zero(site: Site) -> Place:
    end = site.record(30).whole.end
    zero(Place(site.record(30).whole.file, end - 20, end))
    return site.record(30).properties


def blank_flip(site: Site) -> Place:
    flip(site.blanks[0].part(5, 6), 3)
    return site.blanks[0]


def blank_zero(site: Site) -> Place:
    zero(site.blanks[0])
    return site.blanks[0]


def blank_size(site: Site) -> Place:
    size = int.from_bytes(site.blanks[0].data[:4], "big")
    put(site.blanks[0].part(0, 4), i32(size - 4))
    return site.blanks[0]


def blank_magic(site: Site) -> Place:
    put(site.blanks[0].part(4, 8), bytes.fromhex("cbd43195"))
    return site.blanks[0]
