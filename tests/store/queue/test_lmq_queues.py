"""Light queues: one record in several queues, through every way from the log to the queues.

A simple model computes the expected units from the records of the log. All code paths (hints,
parsing, bulk reading, recovery, a follower) write the same files.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store import dispatch as dispatch_module
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.verify import verify
from cometmq.store.format.lmq_queues import (
    MULTI_DISPATCH,
    lmq_units,
    numbered,
    with_lmqs,
)
from cometmq.store.format.properties import decode_properties, encode_properties
from cometmq.store.format.record import decode
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.doctor.test_doctor_repair import repair
from cometmq.tests.store.kit import LIMIT, Kit, message

A, B, C = "%LMQ%a", "%LMQ%b", "%LMQ%c"
NEVER = 1 << 60


def light(names: tuple[str, ...] = (A,), body: bytes = b"x", **fields: Any) -> Any:
    return with_lmqs(message(body, **fields), names)


def put(kit: Kit, *names: str, body: bytes = b"x", **fields: Any) -> Any:
    (result,) = kit.store.writer.append_many([light(names, body, **fields)])
    assert result.status is PutStatus.PUT_OK
    return result


def files(kit: Kit) -> dict[str, bytes]:
    root = kit.root / "consumequeue"
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def expected(kit: Kit) -> dict[str, list[tuple[int, int]]]:
    """Light queue -> (physical offset, size) by number, as the log says it; the later life
    counts."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for record in kit.records():
        for name, number in lmq_units(record.topic, record.properties):
            units = found.setdefault(name, {})
            for later in [n for n in units if n >= number]:
                del units[later]
            units[number] = (record.physical_offset, record.size)
    return {name: [units[n] for n in sorted(units)] for name, units in found.items()}


def seen(kit: Kit, name: str) -> list[tuple[int, int]]:
    store = kit.store
    first, end = store.min_offset(name, 0), store.max_offset(name, 0)
    records = store.get(name, 0, first, 10_000, LIMIT).records
    assert [one.queue_offset for one in records] == list(range(first, end))
    return [(one.physical_offset, len(one.data)) for one in records]


def check(kit: Kit) -> None:
    kit.dispatch()
    for name, units in expected(kit).items():
        assert seen(kit, name) == units
    assert sorted(kit.store.queue_table.lmqs()) == sorted(expected(kit))


def judged(kit: Kit) -> list[Any]:
    return verify(discover(kit.root)).findings.problems


# -- the codec ----------------------------------------------------------------------------------


def test_the_properties_are_what_apache_would_write() -> None:
    """The order is that of the buckets of a Java hash map, WAIT is dropped, foreign names keep
    their place with an empty number (docs/formats/store-format.md, section 3.9)."""
    before = encode_properties({"UNIQ_KEY": "1", "WAIT": "true", "TAGS": "t"})
    one = with_lmqs(message(properties=before), (A, B))
    assert one.sys_flag & MULTI_DISPATCH
    after = decode_properties(numbered(one.properties, [7, 12]))
    assert after == {
        "UNIQ_KEY": "1",
        "TAGS": "t",
        "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b",
        "INNER_MULTI_QUEUE_OFFSET": "7,12",
    }
    mixed = with_lmqs(message(), ("other", A))
    text = decode_properties(numbered(mixed.properties, [3]))
    assert text["INNER_MULTI_QUEUE_OFFSET"] == ",3"
    assert lmq_units("t", numbered(mixed.properties, [3])) == [(A, 3)]


@given(
    st.lists(st.sampled_from([A, B, C, "plain", ""]), max_size=5, unique=True),
    st.dictionaries(
        st.text("abcWAIT", min_size=1, max_size=6), st.text("xyz", min_size=1), max_size=6
    ),
)
def test_assigned_offsets_are_read_back(names: list[str], others: dict[str, str]) -> None:
    numbers = list(range(10, 10 + sum(name.startswith("%LMQ%") for name in names)))
    one = with_lmqs(message(properties=encode_properties(others)), names)
    text = numbered(one.properties, numbers)
    lights = [name for name in names if name.startswith("%LMQ%")]
    assert lmq_units("t", text) == list(zip(lights, numbers, strict=True))
    rest = decode_properties(text)
    others.pop("WAIT", None)
    for name in ("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"):
        rest.pop(name, None)
    assert rest == others
    # Numbering again replaces.
    assert len(numbered(text, numbers)) == len(text)


@pytest.mark.parametrize(
    ("names", "numbers", "units"),
    [
        ("%LMQ%a,%LMQ%b", "1", []),
        ("%LMQ%a", "x", []),
        ("%LMQ%a", "-1", []),
        ("%LMQ%a/../../b,%LMQ%b", "1,2", [(B, 2)]),
        ("%LMQ%a,%LMQ%a", "1,2", [(A, 1)]),
        (f"%LMQ%{'l' * 251}", "1", []),
    ],
)
def test_invalid_properties_yield_no_unit(names: str, numbers: str, units: list[Any]) -> None:
    text = encode_properties({"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": numbers})
    assert lmq_units("t", text) == units


@pytest.mark.parametrize("topic", ["%RETRY%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
def test_retry_and_system_topics_have_no_lmqs(tmp_path: Path, topic: str) -> None:
    kit = Kit(tmp_path)
    kit.open()
    put(kit, A, topic=topic)
    kit.dispatch()
    assert kit.store.queue_table.lmqs() == []
    assert "INNER_MULTI_QUEUE_OFFSET" not in next(iter(kit.records())).properties_dict
    kit.close()


# -- append and dispatch ------------------------------------------------------------------------


def test_one_record_stands_in_its_own_and_in_the_light_queues(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    plain = kit.write()
    first = put(kit, A, B, tags="t")
    second = put(kit, B)
    assert [r.queue_offset for r in (plain, first, second)] == [0, 1, 2]
    arrivals = kit.store.writer.dispatch(LIMIT)
    assert [(a.topic, a.queue_id, a.queue_offset) for a in arrivals] == [
        ("TopicTest", 0, 0),
        ("TopicTest", 0, 1),
        (A, 0, 0),
        (B, 0, 0),
        ("TopicTest", 0, 2),
        (B, 0, 1),
    ]
    check(kit)
    own = kit.store.get("TopicTest", 0, 1, 1).records[0]
    other = kit.store.get(A, 0, 0, 1).records[0]
    assert (own.data, own.tags_code) == (other.data, other.tags_code)
    assert decode(other.data).sys_flag == 0
    kit.close()
    content = files(kit)
    assert content["%LMQ%a/0/" + "0" * 20][:20] == content["TopicTest/0/" + "0" * 20][20:40]
    assert judged(kit) == []


def test_light_queues_can_be_bounded_and_switched_off(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "bounded", max_lmq_consume_queue_num=2)
    kit.open()
    put(kit, A)
    results = kit.store.writer.append_many([light((B, C)), light((A, B)), light((C,)), light((A,))])
    full = PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    assert [r.status for r in results] == [full, PutStatus.PUT_OK, full, PutStatus.PUT_OK]
    check(kit)
    kit.close()
    off = Kit(tmp_path / "off", enable_lmq=False)
    off.open()
    put(off, A)
    check(off)
    assert off.store.queue_table.lmqs() == []
    off.close()
    assert StoreConfig("x").lmq_max == 20_000


@pytest.mark.parametrize("names", [("%LMQ%a/b",), ("%LMQ%\0",), (A, A), (f"%LMQ%{'l' * 251}",)])
def test_invalid_names_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    kit = Kit(tmp_path)
    kit.open()
    (result,) = kit.store.writer.append_many([light(names)])
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert kit.store.writer.append_batch([light()])[0].status is PutStatus.MESSAGE_ILLEGAL
    assert kit.store.log_end == 0
    kit.close()


def test_a_record_is_bounded_as_a_whole(tmp_path: Path) -> None:
    kit = Kit(tmp_path, max_message_size=1000)
    kit.open()
    status = [kit.store.writer.append_many([light(body=bytes(n))])[0].status for n in (700, 900)]
    assert status == [PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL]
    kit.close()


def test_records_with_checksums_have_light_queues_too(tmp_path: Path) -> None:
    kit = Kit(tmp_path, enabled_append_prop_crc=True, force_verify_prop_crc=True)
    kit.open()
    for _ in range(5):
        put(kit, A, B)
    check(kit)
    kit.kill()
    kit.open()
    check(kit)
    kit.close()


def test_extension_units_are_made_for_light_queues(tmp_path: Path) -> None:
    kit = Kit(tmp_path, enable_consume_queue_ext=True)
    kit.open()
    for _ in range(5):
        put(kit, A, tags="t")
    check(kit)
    records = kit.store.get(A, 0, 0, 10).records
    assert {one.tags_code for one in records} == {ord("t")}
    assert kit.store.removal.remove_lmq(A)
    put(kit, A, tags="u")
    kit.dispatch()
    assert [one.tags_code for one in kit.store.get(A, 0, 0, 10).records] == [ord("u")]
    kit.reopen()
    assert [one.tags_code for one in kit.store.get(A, 0, 0, 10).records] == [ord("u")]
    kit.close()


# -- removal, and all ways to the queues ---------------------------------------------------------


def test_a_removed_queue_restarts_at_0(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    for _ in range(50):  # more than one file
        put(kit, A, B)
    assert not kit.store.removal.remove_lmq(A)  # not dispatched
    check(kit)
    kit.store.queue_table.write_out()
    assert kit.store.removal.remove_lmq(A)
    assert not kit.store.removal.remove_lmq(A)
    assert not kit.store.removal.remove_lmq("TopicTest")
    assert not (kit.root / "consumequeue" / A).exists()
    assert kit.store.queue_table.lmqs() == [B]
    kit.reopen()
    assert kit.store.queue_table.lmqs() == [B]
    put(kit, A, B)
    kit.dispatch()
    assert (kit.store.max_offset(A, 0), kit.store.max_offset(B, 0)) == (1, 51)
    kit.close()
    assert judged(kit) == []
    kit.open()
    assert (kit.store.max_offset(A, 0), kit.store.max_offset(B, 0)) == (1, 51)
    kit.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_code_path_builds_the_same_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Hints, parsing, bulk reading, a killed store, lost queues, and a follower."""
    rng = random.Random(seed)
    kit = Kit(tmp_path / "leader", mapped_file_size_commit_log=16 << 10)
    kit.open()
    for _ in range(150):
        names = rng.sample([A, B, C, "%LMQ%d"], rng.randrange(4))
        if names:
            put(kit, *names, body=bytes(rng.randrange(300)))
        else:
            kit.write()
        if not rng.randrange(10):
            kit.store.writer.dispatch(LIMIT, rng.choice([1, 2, 7, 1000]))
        if not rng.randrange(30):
            kit.dispatch()
            kit.store.removal.remove_lmq(rng.choice([A, B]))
    put(kit, A, B, C, "%LMQ%d")
    check(kit)
    for bulk in (False, True):
        monkeypatch.setattr(dispatch_module, "BULK_BYTES_MIN", 1 if bulk else NEVER)
        monkeypatch.setattr(dispatch_module, "BULK_RECORDS_MIN", 1)
        follow(kit, Kit(tmp_path / f"follower-{bulk}", mapped_file_size_commit_log=16 << 10), rng)
    kit.kill()
    kit.open()
    check(kit)
    kit.close()
    whole = files(kit)
    assert judged(kit) == []
    for path in sorted((kit.root / "consumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    kit.open()
    check(kit)
    kit.close()
    assert files(kit) == whole


def follow(leader: Kit, follower: Kit, rng: random.Random) -> None:
    follower.open()
    while follower.store.received_end < leader.store.log_end:
        at = follower.store.received_end
        follower.store.append_raw(at, leader.store.read_log(at, rng.randrange(200, 3000)))
        if not rng.randrange(3):
            follower.store.writer.dispatch(LIMIT)
    if rng.randrange(2):
        follower.dispatch()
    # The follower becomes the leader: its numbers go on where the old one's ended.
    numbers = {
        name: leader.store.writer.next_offset(name, 0) for name in leader.store.queue_table.lmqs()
    }
    for name in numbers:
        put(follower, name)
    check(follower)
    assert {name: follower.store.max_offset(name, 0) - 1 for name in numbers} == numbers
    follower.close()
    assert judged(follower) == []


def test_units_behind_a_cut_log_are_dropped(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    for _ in range(10):
        put(kit, A)
    kit.dispatch()
    kit.store.queue_table.flush(0)
    last = kit.store.get(A, 0, 8, 1).records[0].physical_offset
    kit.kill()
    (segment,) = (kit.root / "commitlog").iterdir()
    data = bytearray(segment.read_bytes())
    data[last:] = bytes(len(data) - last)
    segment.write_bytes(data)
    kit.open()
    assert kit.store.max_offset(A, 0) == 8
    put(kit, A)
    check(kit)
    kit.close()


def test_a_unit_that_its_record_does_not_confirm_is_rebuilt(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    for _ in range(4):
        put(kit, A)
    put(kit, B)
    kit.dispatch()
    kit.close()
    path = kit.root / "consumequeue" / A / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[60:80] = (kit.root / "consumequeue" / B / "0" / ("0" * 20)).read_bytes()[:20]
    path.write_bytes(data)
    kit.open()
    check(kit)
    kit.close()


@pytest.mark.parametrize("behind", [0, 3])
def test_a_damaged_light_queue_is_repaired_after_a_restart_at_0(
    tmp_path: Path, behind: int
) -> None:
    kit = Kit(tmp_path)
    kit.open()
    for _ in range(7):
        put(kit, A, B)
    kit.dispatch()
    assert kit.store.removal.remove_lmq(A)
    for _ in range(3):
        put(kit, A)
    kit.dispatch()
    kit.close()
    path = kit.root / "consumequeue" / A / "0" / ("0" * 20)
    whole = path.read_bytes()
    data = bytearray(whole)
    data[20 * behind + 7] ^= 1
    path.write_bytes(data)
    assert judged(kit)
    assert repair(kit.root) == []
    assert path.read_bytes() == whole
    kit.open()
    check(kit)
    kit.close()
