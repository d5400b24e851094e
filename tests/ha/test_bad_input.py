"""Invalid input from outside: refused or survived, with a counter and a log line."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest

from cometmq.ha.state import (
    epochs_file,
)
from cometmq.ha.state.boot_id import OVERRIDE_NAME
from cometmq.ha.stream import (
    frames,
)
from cometmq.proto import paths, v1
from cometmq.tests.ha.group import Group
from cometmq.tests.ha.live import Live, Pair, assert_equal_logs, until


def counts(live: Live) -> dict[str, int]:
    return live.replication.counters


async def test_an_unauthenticated_caller_is_refused_and_counted(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(cluster_token="the-token-of-the-tests")
        async with grpc.aio.insecure_channel(leader.address) as channel:
            call = channel.stream_stream(paths.HA_REPLICATE)()
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert counts(leader)["strangers"] == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"segment_size": 1}, "SEGMENT_SIZE"),
        ({"broker_id": 0}, "ID_IN_USE"),
        ({"group": "another"}, "WRONG_GROUP"),
        ({"log_end": 10**9, "epochs": [v1.EpochStartPoint(epoch=1)]}, "DIVERGED"),
    ],
)
async def test_an_invalid_hello_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], code: str
) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        leader.append(b"x")
        fields = {
            "cluster_id": "cluster",
            "group": "group",
            "broker_id": 1,
            "replica_uuid": "u",
            "segment_size": leader.segment,
            **changes,
        }
        frame = v1.FollowerFrame(hello=v1.Hello(**fields))
        async with grpc.aio.insecure_channel(leader.address) as channel:
            call = channel.stream_stream(paths.HA_REPLICATE)()
            await call.write(frame.SerializeToString())
            reply = v1.LeaderFrame.FromString(await call.read()).hello_reply
        assert v1.RejectCode.Name(reply.reject_code) == code
        assert not reply.accept
        assert counts(leader)[f"refused_{code.lower()}"] == 1
        assert any("ha.follower.refused" in record.getMessage() for record in caplog.records)


async def test_an_invalid_epoch_history_in_a_hello_is_refused(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        points = [v1.EpochStartPoint(epoch=5, start=0), v1.EpochStartPoint(epoch=2, start=9)]
        frame = v1.FollowerFrame(hello=v1.Hello(epochs=points)).SerializeToString()
        async with grpc.aio.insecure_channel(leader.address) as channel:
            call = channel.stream_stream(paths.HA_REPLICATE)()
            await call.write(frame)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_two_brokers_with_one_identity(tmp_path: Path) -> None:
    """A copied data directory has the same uuid and id. The older incarnation must not replace the
    newer one's stream."""
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        first = await pair.follower(leader)
        await until(lambda: leader.replication.in_sync_count == 2)
        await pair.stop(first)
        shutil.copytree(tmp_path / "follower", tmp_path / "copy")
        again = await pair.follower(leader)
        await pair.stop(again)
        again = await pair.follower(leader)  # a third incarnation
        # Its stream is open: the seat of the former incarnation alone would not keep the copy out.
        await until(
            lambda: any(m.connected and m.incarnation == 3 for m in leader.replication.members())
        )
        await until(lambda: leader.replication.in_sync_count == 2)
        copy = await pair.follower(leader, "copy")  # a second one
        await until(lambda: copy.replication.refused is not None)
        assert (copy.replication.refused or "").startswith("ID_IN_USE")
        assert counts(leader)["refused_id_in_use"] > 0
        assert again.replication.refused is None


async def test_a_repeated_frame_of_a_former_leader_is_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_chunk, make_beat = frames.chunk, frames.heartbeat
    chunks: list[bytes] = []
    heartbeats: list[bytes] = []
    replaying = [False, False]

    def chunk(**fields: Any) -> bytes:
        chunks.append(make_chunk(**fields))
        if replaying[0]:
            replaying[0] = False
            return chunks[0]
        return chunks[-1]

    def heartbeat(**fields: Any) -> bytes:
        heartbeats.append(make_beat(**fields))
        if replaying[1]:
            replaying[1] = False
            return heartbeats[0]
        return heartbeats[-1]

    async with Group(tmp_path) as group:
        monkeypatch.setattr(frames, "chunk", chunk)
        monkeypatch.setattr(frames, "heartbeat", heartbeat)
        await group.start(0, 1)
        group.elect(0)
        one = await group.leads(0)
        await until(lambda: len(group.state.in_sync) == 2)
        await until(lambda: group.replicas[1].log.log_end == one.log.log_end)
        await until(lambda: bool(heartbeats))
        group.elect(1, in_sync=(0, 1))
        two = await group.leads(1)
        await assert_equal_logs(two, one)
        replaying[0] = True
        await two.append_random(1, 20)
        await until(lambda: counts(one).get("nack_gap", 0) > 0)
        await assert_equal_logs(two, one)
        dropped = counts(one)["streams_dropped"]
        replaying[1] = True  # of epoch 1, while epoch 2 is followed
        await until(lambda: counts(one)["streams_dropped"] > dropped)
        await two.append_random(2, 20)
        await assert_equal_logs(two, one)
        assert one.replication.replica.history == two.replication.replica.history


@pytest.mark.parametrize("damage", ["deleted", "torn"])
async def test_a_missing_epoch_file_is_rebuilt(tmp_path: Path, damage: str) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        leader = await group.leads(0)
        await leader.append_random(1, 20)
        follower = group.replicas[1]
        await assert_equal_logs(leader, follower)
        path = follower.directory / "ha" / epochs_file.EPOCHS_NAME
        await group.stop(1)
        if damage == "deleted":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-2])
        await group.start(1)
        follower = group.replicas[1]
        group.tell_state(follower)
        assert counts(follower)["epochs_made"] == 1
        await leader.append_random(2, 20)
        await assert_equal_logs(leader, follower)
        assert follower.starts == 1, "nothing was cut"


async def test_a_disk_error_in_the_middle_of_a_chunk_is_retried(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader, store={"flush_interval_consume_queue": 60_000})
        await until(lambda: leader.replication.in_sync_count == 2)
        failing = [True]

        def fault(call: str) -> None:
            if failing[0] and call == "fallocate":
                raise OSError(28, "No space left on device")

        follower.log.disk.fault = fault
        await leader.append_random(1, 200)
        await until(lambda: counts(follower).get("nack_disk_full", 0) > 0)
        await until(lambda: counts(leader).get("nack_disk_full", 0) > 0)
        failing[0] = False
        await assert_equal_logs(leader, follower)


async def test_a_suspect_replica_stays_suspect_until_it_has_the_bytes(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        leader = await group.leads(0)
        await leader.append_random(1, 20)
        follower = group.replicas[1]
        await assert_equal_logs(leader, follower)
        meta = (follower.directory / "ha" / "replica.meta").read_bytes()
        await group.stop(1)
        # As a power loss leaves it: no clean stop, and another boot.
        (follower.directory / "ha" / "replica.meta").write_bytes(meta)
        (follower.directory / "ha" / OVERRIDE_NAME).write_text("another boot\n")
        await group.start(1)
        follower = group.replicas[1]
        assert follower.replication.heartbeat().suspect
        await group.stop(1)
        await group.start(1)
        follower = group.replicas[1]
        assert follower.replication.heartbeat().suspect, "it survives a clean restart"
        group.tell_state(follower)
        await until(lambda: not follower.replication.heartbeat().suspect)
        await asyncio.sleep(0)


async def test_state_beside_the_log_travels_by_kind(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        locks = [b"first"]
        taken: list[bytes] = []
        leader, follower = group.replicas[0], group.replicas[1]
        leader.told.states["LOCKS"] = lambda: locks[0]
        follower.told.takers["LOCKS"] = taken.append
        follower.told.states["POP"] = lambda: b"handed over"
        pops: list[bytes] = []
        leader.told.takers["POP"] = pops.append
        group.elect(0)
        await group.leads(0)
        await until(lambda: taken == [b"first"])
        await until(lambda: pops == [b"handed over"])
        locks[0] = b"second" * 20_000
        await until(lambda: taken[-1] == locks[0])
