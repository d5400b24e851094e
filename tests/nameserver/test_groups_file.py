"""`groups.state` and the acceptors' file: torn, damaged, deleted, a full disk; and the rebuild from
replicas."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli.server.process import _sentence
from cometmq.ha.core.cas_register import Ballot
from cometmq.ha.core.group_state import GroupState, Member, Ref
from cometmq.nameserver.acceptor_store import AcceptorRefusedError, AcceptorStore
from cometmq.nameserver.groups_file import GroupsFile
from cometmq.nameserver.meta_store import StoreUnavailableError
from cometmq.nameserver.record_file import DamagedFileError, RecordFile, encode_record, scan
from cometmq.proto import v1
from cometmq.tests.nameserver.fake_broker import FakeBroker, controller, until

HEADER = b"cometmq-records1"


def state(version: int, group: str = "g") -> GroupState:
    return GroupState(
        "c",
        group,
        version=version,
        epoch=version,
        leader=Ref(0, 1),
        in_sync=(Ref(0, 1),),
        members=(Member(0, "uuid-0"),),
    )


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=20)), st.integers(0, 400))
def test_a_file_cut_anywhere_gives_a_prefix_of_its_records(
    values: dict[str, bytes], cut: int
) -> None:
    data = HEADER + b"".join(encode_record(key, value) for key, value in values.items())
    found, end = scan(data[:cut])
    assert end <= max(cut, 0)
    assert list(found.items()) == list(values.items())[: len(found)]
    whole, _ = scan(data)
    assert whole == values


def test_damage_with_whole_records_behind_it_is_not_taken_for_a_torn_tail() -> None:
    data = HEADER + encode_record("a", b"1" * 40) + encode_record("b", b"2")
    broken = bytearray(data)
    broken[40] ^= 1
    with pytest.raises(DamagedFileError):
        scan(bytes(broken))


def test_opening_keeps_the_newest_value_and_compacts(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = RecordFile(path)
    file.open()
    for number in range(100):
        file.put({"k": b"%d" % number})
    grown = path.stat().st_size
    file.close()
    again = RecordFile(path)
    again.open()
    assert again.values == {"k": b"99"}
    assert path.stat().st_size < grown / 10
    again.close()


def test_a_write_that_failed_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RecordFile(tmp_path / "f")
    file.open()
    file.put({"k": b"old"})

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            file.put({"k": b"new"})
    assert file.values == {"k": b"old"}
    file.put({"other": b"x"})
    file.close()
    again = RecordFile(tmp_path / "f")
    again.open()
    assert again.values == {"k": b"old", "other": b"x"}
    again.close()


def test_a_start_on_a_full_disk_names_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space") as raised:
            GroupsFile(tmp_path).open()
    sentence = _sentence("namesrv", raised.value, ())
    assert f"The disk of {tmp_path} has" in sentence
    assert "Free space on it" in sentence


async def test_a_change_is_durable_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_sync, real_write = os.fdatasync, os.write
    store = GroupsFile(tmp_path)
    store.open()

    def sync(fd: int) -> None:
        calls.append("sync")
        real_sync(fd)

    def write(fd: int, data: bytes) -> int:
        calls.append("write")
        return real_write(fd, data)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "write", write)
    taken, now = await store.compare_and_set(0, state(1))
    calls.append("told")
    assert (taken, now.version) == (True, 1)
    assert calls.index("write") < calls.index("sync") < calls.index("told")
    assert await store.compare_and_set(0, state(1)) == (False, state(1))
    await store.close()


async def test_a_failed_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = GroupsFile(tmp_path)
    store.open()
    await store.compare_and_set(0, state(1))

    def broken(_changes: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store._file, "put", broken)
        with pytest.raises(StoreUnavailableError):
            await store.compare_and_set(1, state(2))
    assert (await store.read("c", "g")).version == 1
    assert (await store.compare_and_set(1, state(2)))[0]
    await store.close()


async def test_a_torn_tail_is_cut_and_a_damaged_file_is_renamed(tmp_path: Path) -> None:
    store = GroupsFile(tmp_path)
    store.open()
    for version in range(1, 4):
        await store.compare_and_set(version - 1, state(version))
    await store.close()
    path = tmp_path / "groups.state"
    path.write_bytes(path.read_bytes()[:-3])
    torn = GroupsFile(tmp_path)
    torn.open()
    assert (await torn.read("c", "g")).version == 2
    await torn.compare_and_set(2, state(3))
    await torn.close()
    data = bytearray(path.read_bytes())
    data[30] ^= 0xFF
    path.write_bytes(bytes(data))
    damaged = GroupsFile(tmp_path)
    damaged.open()
    assert await damaged.groups() == []
    assert (tmp_path / "groups.state.damaged-1").exists()
    await damaged.close()


async def test_a_fresh_acceptor_does_not_vote_and_invalid_requests_are_refused(
    tmp_path: Path,
) -> None:
    cells = AcceptorStore(tmp_path)
    cells.open()
    with pytest.raises(StoreUnavailableError):
        await cells.prepare("group/g", Ballot(1, "a"))
    await cells.take_over({})
    assert (await cells.prepare("group/g", Ballot(2, "a"))).ok
    assert not (await cells.accept("group/g", Ballot(1, "z"), b"x")).ok
    with pytest.raises(AcceptorRefusedError):
        await cells.prepare("", Ballot(1, "a"))
    with pytest.raises(AcceptorRefusedError):
        await cells.accept("group/g", Ballot(3, "a"), b"x" * (2 << 20))
    await cells.close()
    again = AcceptorStore(tmp_path)
    again.open()
    assert again.votes
    assert again.peek("group/g").promised == Ballot(2, "a")
    assert not (await again.prepare("group/g", Ballot(1, "b"))).ok
    await again.close()
    path = tmp_path / "cells"
    path.write_bytes(path.read_bytes()[:-1])
    torn = AcceptorStore(tmp_path)
    torn.open()
    assert not torn.votes, "the torn bytes may have been a promise"
    await torn.close()


@pytest.mark.parametrize("harm", ["delete", "damage"])
async def test_drill_22_states_are_rebuilt_from_the_replicas(tmp_path: Path, harm: str) -> None:
    async with controller(tmp_path) as link:
        leader = FakeBroker(0, [link])
        leader.start()
        await until(lambda: leader.leads)
        await leader.stop()
    path = tmp_path / "groups.state"
    if harm == "delete":
        path.unlink()
    else:
        path.write_bytes(b"nonsense" * 40)
    async with controller(tmp_path) as link:
        stranger = FakeBroker(1, [link], log_end=999, log_is_empty=False)
        stranger.state = v1.GroupState.FromString(leader.state.SerializeToString())
        stranger.start()
        await asyncio.sleep(1.5)  # the grace time and more: no in-sync replica has answered
        assert not stranger.leads
        answer = await link.groups()
        assert answer.groups[0].state.version == 0
        assert "waiting for a replica that was in sync" in answer.steps[0]
        back = FakeBroker(0, [link], incarnation=2, **leader.heartbeat)
        back.state = leader.state
        back.start()
        await until(lambda: back.leads)
        assert back.state.version > 1_000
        assert back.state.epoch > leader.state.epoch + 1_000
        await back.stop()
        await stranger.stop()


async def test_states_survive_a_restart_of_the_nameserver(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader = FakeBroker(0, [link])
        leader.start()
        await until(lambda: leader.leads)
        await leader.stop()
    async with controller(tmp_path) as link:
        answer = await link.groups("g")
        assert answer.groups[0].state.epoch == 1
        again = FakeBroker(0, [link], **leader.heartbeat)
        again.role = v1.LEADER
        again.start()
        await until(lambda: any(d.lease_for_seq for d in again.directives))
        await asyncio.sleep(1.0)
        answer = await link.groups("g")
        assert answer.groups[0].state.epoch == 1, "no election while the leader sends heartbeats"
        await again.stop()
