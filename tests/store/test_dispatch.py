"""Dispatch: hints and the log itself give the same queues, whatever the order of calls."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from cometmq.store import dispatch as dispatch_module
from cometmq.store.format.record import Message, pack_host
from cometmq.store.format.results import Arrival
from cometmq.store.queue import table
from cometmq.tests.store.kit import LIMIT, Kit, message


def workload(seed: int, count: int = 300) -> list[list[Message]]:
    """Batches of every kind of message."""
    rng = random.Random(seed)
    batches: list[list[Message]] = []
    while count > 0:
        batch = []
        for _ in range(rng.randrange(1, 12)):
            one = message(
                rng.randbytes(rng.randrange(600)),
                topic=rng.choice(["A", "B", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 150]),
                queue_id=rng.randrange(3),
                sys_flag=rng.choice([0, 0, 0, 0, 1, 4, 8, 12]),
            )
            one.properties = rng.choice(
                [
                    b"",
                    b"TAGS\x01a\x02",
                    b"K\x01v\x02TAGS\x01b\x02",
                    b"DELAY\x012\x02",
                    b"x\x02TAGS\x01",
                ]
            )
            if rng.random() < 0.2:
                one.born_host = pack_host("::1", 1)
            batch.append(one)
        batches.append(batch)
        count -= len(batch)
    return batches


def rebuilt(kit: Kit, folder: Path) -> dict[str, bytes]:
    """The queue files that a store makes from this log alone."""
    shutil.copytree(kit.root / "commitlog", folder / "commitlog")
    other = Kit(folder)
    other.open()
    other.dispatch()
    other.close()
    return other.queue_files()


@pytest.mark.parametrize("seed", range(4))
def test_hints_and_the_log_give_the_same_queues(tmp_path: Path, seed: int) -> None:
    hinted = Kit(tmp_path / "hinted")
    parsed = Kit(tmp_path / "parsed")
    hinted.open()
    parsed.open()
    parses: list[int] = []
    original = hinted.store._dispatcher.parse

    def counted(begin: int, up_to: int, records_max: int) -> tuple[list[Arrival], int]:
        parses.append(begin)
        return original(begin, up_to, records_max)

    hinted.store._dispatcher.parse = counted  # type: ignore[method-assign]
    seen: dict[str, list[Arrival]] = {"hinted": [], "parsed": []}
    for batch in workload(seed):
        hinted.store.writer.append_many(batch)
        parsed.store.writer.append_many(batch)
        parsed.store._dispatcher._hints.clear()
        parsed.store._dispatcher._hints_end = -1
        seen["hinted"] += hinted.store.writer.dispatch(LIMIT)
        seen["parsed"] += parsed.store.writer.dispatch(LIMIT)
    assert seen["hinted"] == seen["parsed"]
    assert len(seen["hinted"]) > 200
    hinted.close()
    parsed.close()
    assert hinted.log_bytes() == parsed.log_bytes()
    files = hinted.queue_files()
    assert files == parsed.queue_files()
    assert files == rebuilt(hinted, tmp_path / "rebuilt")


def test_ordinary_messages_are_never_parsed(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(kit.store._dispatcher, "parse", refuse)
    for index in range(100):
        kit.store.writer.append_many(
            [message(b"x" * 300, queue_id=i % 3) for i in range(index % 7 + 1)]
        )
        if index % 3 == 0:
            kit.store.writer.dispatch(LIMIT)
    kit.store.writer.dispatch(LIMIT)
    assert kit.store.dispatched_offset == kit.store.log_end


@pytest.mark.parametrize("hints", [True, False])
def test_nothing_beyond_the_limit_becomes_visible(tmp_path: Path, hints: bool) -> None:
    kit = Kit(tmp_path)
    kit.open()
    rng = random.Random(5)
    for batch in workload(9, 200):
        kit.store.writer.append_many(batch)
    if not hints:
        kit.store._dispatcher._hints.clear()
    arrivals: list[Arrival] = []
    limit = 0
    while kit.store.dispatched_offset < kit.store.log_end:
        limit += rng.randrange(900)
        records_max = rng.randrange(1, 9)
        new = kit.store.writer.dispatch(limit, records_max)
        assert len(new) <= records_max
        assert all(arrival.end <= limit for arrival in new)
        assert kit.store.dispatched_offset <= limit
        arrivals += new
    offsets = [arrival.physical_offset for arrival in arrivals]
    assert offsets == sorted(set(offsets))
    queued = [r for r in kit.records() if r.sys_flag & 0xC not in (4, 12)]
    assert offsets == [record.physical_offset for record in queued]
    assert [a.topic for a in arrivals] == [record.topic for record in queued]
    kit.close()
    assert kit.queue_files() == rebuilt(kit, tmp_path / "rebuilt")


def test_too_many_hints_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_module, "HINTS_MAX", 10)
    kit = Kit(tmp_path)
    kit.open()
    for batch in workload(3, 200):
        kit.store.writer.append_many(batch)
    assert kit.store._dispatcher._hinted < 30
    kit.dispatch()
    kit.store.writer.append_many([message(b"hinted again")])
    assert kit.store._dispatcher._hinted == 1
    kit.dispatch()
    kit.close()
    assert kit.queue_files() == rebuilt(kit, tmp_path / "rebuilt")


def test_prepared_and_rolled_back_records_are_not_queued(kit: Kit) -> None:
    for sys_flag in (0, 4, 8, 12):
        kit.write(f"{sys_flag}".encode(), sys_flag=sys_flag)
    arrivals = kit.store.writer.dispatch(LIMIT)
    assert [arrival.queue_offset for arrival in arrivals] == [0, 1]
    assert kit.queue_bodies() == [b"0", b"8"]
    assert kit.store.dispatched_offset == kit.store.log_end


def test_what_became_visible_before_a_failed_write_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting polls and the tables of a follower get only what `dispatch` returns."""
    monkeypatch.setattr(table, "WAITING_UNITS_MAX", 10)
    kit = Kit(tmp_path)
    kit.open()
    ends = [kit.write(queue_id=number % 3).physical_offset for number in range(40)]
    lacking = True

    def fault(call: str) -> None:
        if lacking and call == "pwrite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kit.disk.fault = fault
    found = list(kit.store.writer.dispatch(LIMIT))
    assert kit.store.paused
    lacking = False
    found += kit.store.writer.dispatch(LIMIT)
    assert [arrival.physical_offset for arrival in found] == ends
    kit.close()
