"""Consumer offsets: the file in RocketMQ's format, snapshots, and merging of replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.offsets.consumer_offsets import ConsumerOffsets
from cometmq.broker.offsets.entries import Position
from cometmq.proto import v1
from cometmq.store.format.json_file import CHECKSUM, loads

# As Apache 5.5 writes it (fastjson 2: bare integer keys), abridged.
APACHE = """{
\t"dataVersion":{
\t\t"counter":7,
\t\t"stateVersion":0,
\t\t"timestamp":1795255670841
\t},
\t"groupTopicMap":{
\t\t"GID":[
\t\t\t"t",
\t\t\t"%RETRY%GID_t"
\t\t]
\t},
\t"offsetTable":{
\t\t"t@GID":{
\t\t\t0:1,
\t\t\t1:98,
\t\t\t11:3
\t\t},
\t\t"%RETRY%GID_t@GID":{0:2
\t\t}
\t},
\t"pullOffsetTable":{
\t\t"t@GID":{0:4}
\t}
}"""


def made(directory: Path) -> ConsumerOffsets:
    """Return a table whose file is in the directory."""
    return ConsumerOffsets(directory / "consumerOffset.json", lambda: 1_700_000_000_000)


async def persisted(offsets: ConsumerOffsets) -> None:
    """Write the file now."""
    offsets.start()
    await offsets.close()


async def test_apaches_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text(APACHE)
    offsets = made(tmp_path)
    offsets.load()
    assert offsets.get("t", "GID", 1) == 98
    assert offsets.get("%RETRY%GID_t", "GID", 0) == 2
    assert offsets.get("t", "GID", 2) is None
    offsets.commit("t", "GID", 0, 5)
    await persisted(offsets)
    written = loads(path.read_text())
    assert written["offsetTable"]["t@GID"] == {0: 5, 1: 98, 11: 3}
    assert written["pullOffsetTable"] == {"t@GID": {0: 4}}
    ours, *apaches = written
    assert ours == CHECKSUM
    assert apaches == ["dataVersion", "groupTopicMap", "offsetTable", "pullOffsetTable"]
    assert written["dataVersion"]["timestamp"] == 1_700_000_000_000
    assert (tmp_path / "consumerOffset.json.bak").read_text() == APACHE
    again = made(tmp_path)
    again.load()
    assert sorted(again) == sorted(offsets)


@pytest.mark.parametrize("broken", ["", "{", "[1]", '{"topicConfigTable": {}}', None])
async def test_a_damaged_file_falls_back_to_the_backup(tmp_path: Path, broken: str | None) -> None:
    offsets = made(tmp_path)
    for offset in (3, 9):
        offsets.commit("t", "g", 0, offset)
        await persisted(offsets)
    path = tmp_path / "consumerOffset.json"
    if broken is None:
        path.unlink()
    else:
        path.write_text(broken)
    again = made(tmp_path)
    again.load()
    assert again.get("t", "g", 0) == 3


def test_no_file_is_an_empty_table(tmp_path: Path) -> None:
    offsets = made(tmp_path)
    offsets.load()
    assert list(offsets) == []


async def test_changes_are_written_while_the_broker_runs(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json", lambda: 1, 20)
    offsets.start()
    offsets.commit("t", "g", 0, 4)
    for _ in range(200):
        await asyncio.sleep(0.01)
        path = tmp_path / "consumerOffset.json"
        if path.exists() and '"t@g"' in path.read_text():
            break
    else:
        raise AssertionError("never written")
    await offsets.close()


def test_a_snapshot_is_made_once_for_each_change(tmp_path: Path) -> None:
    offsets = made(tmp_path)
    offsets.commit("t", "g", 0, 4, 9)
    first = offsets.snapshot()
    assert offsets.snapshot() is first
    (entry,) = v1.Offsets.FromString(first).entries
    assert (entry.topic, entry.group, entry.queue_id) == ("t", "g", 0)
    assert (entry.offset, entry.next_offset, entry.generation) == (4, 9, 0)
    offsets.commit("t", "g", 0, 5)
    assert offsets.snapshot() != first


def test_replicas_merge_by_maximum(tmp_path: Path) -> None:
    leader, follower = made(tmp_path / "a"), made(tmp_path / "b")
    leader.commit("t", "g", 0, 10, 12)
    leader.commit("t", "g", 1, 3)
    follower.commit("t", "g", 0, 8, 20)
    follower.commit("t", "g", 2, 6)
    reported: list[tuple[str, str, int, int]] = []
    leader.subscribe_merges(
        lambda topic, group, queue, position: reported.append(
            (topic, group, queue, position.offset)
        )
    )
    assert leader.apply(follower.snapshot()) == 1
    assert reported == [("t", "g", 0, 10), ("t", "g", 2, 6)]
    assert leader.position("t", "g", 0) == Position(10, 0, 20)
    assert follower.apply(leader.snapshot()) == 2
    assert sorted(follower) == sorted(leader)
    # A stale snapshot undoes nothing.
    assert leader.apply(follower.snapshot()) == 0


def test_a_rewind_overrides_a_higher_offset(tmp_path: Path) -> None:
    leader, follower = made(tmp_path / "a"), made(tmp_path / "b")
    leader.commit("t", "g", 0, 100)
    follower.apply(leader.snapshot())
    leader.commit("t", "g", 0, 5)
    leader.commit("t", "g", 0, 7)
    assert follower.apply(leader.snapshot()) == 1
    assert follower.position("t", "g", 0) == Position(7, 1, 0)
    assert leader.apply(follower.snapshot()) == 0


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x05ab"])
def test_an_invalid_snapshot_is_rejected(tmp_path: Path, garbage: bytes) -> None:
    offsets = made(tmp_path)
    with pytest.raises(ValueError, match="snapshot"):
        offsets.apply(garbage)
    assert list(offsets) == []


def test_removed_topics_and_groups_have_no_offsets(tmp_path: Path) -> None:
    offsets = made(tmp_path)
    for topic in ("a", "b"):
        for group in ("x", "y"):
            offsets.commit(topic, group, 0, 1)
    offsets.forget_topic("a")
    offsets.forget_group("x")
    assert list(offsets) == [("b", "y", 0, 1)]


COMMITS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 50)), max_size=20
)


@given(COMMITS, COMMITS)
def test_merging_converges_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    mine: list[tuple[str, int, int]],
    theirs: list[tuple[str, int, int]],
) -> None:
    one, other = made(Path("a")), made(Path("b"))
    for target, commits in ((one, mine), (other, theirs)):
        for topic, queue_id, offset in commits:
            target.commit(topic, "g", queue_id, offset)
    first, second = one.snapshot(), other.snapshot()
    one.apply(second)
    other.apply(first)
    assert sorted(one) == sorted(other)
    one.apply(second)
    assert sorted(one) == sorted(other)


def test_waiting_snapshots_are_dropped_on_a_leader_change(tmp_path: Path) -> None:
    """The former leader had more of the log: its snapshot relies on the lost part."""
    offsets = made(tmp_path)
    entry = v1.OffsetEntry(topic="t", group="g", offset=9, next_offset=9)
    offsets.apply(v1.Offsets(entries=[entry], log_end=1_000).SerializeToString(), log_end=500)
    offsets.drop_waiting()
    assert offsets.catch_up(2_000) == 0
    assert offsets.get("t", "g", 0) is None


def test_a_file_that_has_lost_its_table_gives_way_to_its_backup(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text("{}")
    (tmp_path / "consumerOffset.json.bak").write_text(APACHE)
    offsets, backup = made(tmp_path), ConsumerOffsets(tmp_path / "consumerOffset.json.bak", int)
    offsets.load()
    backup.load()
    assert list(offsets)
    assert list(offsets) == list(backup)
