"""Refused followers and refused starts: a state or an error with a sentence, and no file is
changed."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cometmq.ha.errors import HaPortInUseError, WrongReplicaError
from cometmq.proto import paths, v1
from cometmq.tests.ha.live import (
    SEGMENT,
    Live,
    Pair,
    assert_equal_logs,
    files_of,
    until,
)

TOKEN = "the-token-of-the-tests"


async def test_a_longer_follower_is_refused_and_keeps_its_files(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        other = await pair.leader("follower")  # its log was written by another leader
        await other.append_random(1, 60)
        await pair.stop(other)
        before = files_of(other.directory)
        leader = await pair.leader()
        leader.append(b"short")
        follower = await pair.follower(leader)
        await until(lambda: follower.replication.diverged is not None)
        assert "above the leader's" in (follower.replication.diverged or "")
        await leader.append_random(2, 100)  # now the leader is longer: still not the same log
        await asyncio.sleep(0.8)  # it has retried meanwhile
        assert follower.replication.diverged is not None
        assert leader.replication.in_sync_count == 1
        await pair.stop_all()
        assert files_of(follower.directory) == before


async def test_a_different_tail_is_refused_and_keeps_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Pair(tmp_path) as pair:
        other = await pair.leader("follower")
        await other.append_random(1, 60)
        await pair.stop(other)
        before = files_of(other.directory)
        leader = await pair.leader()
        await leader.append_random(2, 200)
        follower = await pair.follower(leader)
        await until(lambda: follower.replication.diverged is not None)
        await asyncio.sleep(0.8)
        assert "differ" in (follower.replication.diverged or "")
        assert leader.replication.in_sync_count == 1
        assert follower.log.log_end == other.log.log_end
        await pair.stop_all()
        assert files_of(follower.directory) == before
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1  # logged once, however often it retries
        assert "move its store directory aside" in errors[0].getMessage()


async def test_a_refused_follower_recovers_with_the_right_leader(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        right, wrong = await pair.leader(), await pair.leader("wrong")
        await right.append_random(1, 60)
        await wrong.append_random(2, 20)
        follower = await pair.follower(right)
        await assert_equal_logs(right, follower)
        follower.replication.set_leader(wrong.address)
        await until(lambda: follower.replication.diverged is not None)
        follower.replication.set_leader(right.address)
        await until(lambda: follower.replication.diverged is None)
        await right.append_random(3, 20)
        await assert_equal_logs(right, follower)


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("WRONG_GROUP", {"group": "another"}),
        ("SEGMENT_SIZE", {"segment": 2 * SEGMENT}),
        ("TOKEN", {"cluster_token": "another-token-of-tests"}),
    ],
)
async def test_a_refusal_is_reported_as_a_state_with_a_sentence(
    tmp_path: Path, code: str, settings: dict[str, object]
) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(cluster_token=TOKEN)
        leader.append(b"x")
        both: Any = {"cluster_token": TOKEN, **settings}
        follower = await pair.follower(leader, **both)
        await until(lambda: follower.replication.refused is not None)
        assert (follower.replication.refused or "").startswith(code + ": ")
        assert follower.replication.diverged is None
        assert follower.log.log_end == 0


async def test_a_second_replica_with_the_same_broker_id_is_refused(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        one = await pair.follower(leader, "one", 1)
        await until(lambda: one.replication.leader_alive)
        two = await pair.follower(leader, "two", 1)
        await until(lambda: two.replication.refused is not None)
        assert (two.replication.refused or "").startswith("ID_IN_USE")
        assert one.replication.refused is None


async def test_a_follower_of_a_follower_is_refused(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        one = await pair.follower(leader, "one", 1)
        two = await pair.follower(one, "two", 2)
        await until(lambda: two.replication.refused is not None)
        assert (two.replication.refused or "").startswith("NOT_LEADER")


async def test_a_caller_without_the_token_gets_permission_denied(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(cluster_token=TOKEN)
        for metadata in ((), (("x-cometmq-token", "wrong"),)):
            async with grpc.aio.insecure_channel(leader.address) as channel:
                call = channel.stream_stream(paths.HA_REPLICATE)(metadata=metadata)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    assert await call.read() is grpc.aio.EOF
                    raise grpc.aio.AioRpcError(
                        await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata()
                    )
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("first", [b"\xff\xff\xff", b"", "ack"])
async def test_a_stream_without_a_hello_is_refused(tmp_path: Path, first: bytes | str) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        await until(lambda: leader.replication.in_sync_count == 2)
        frame = v1.FollowerFrame(ack=v1.Ack(written_end=10)).SerializeToString()
        async with grpc.aio.insecure_channel(leader.address) as channel:
            call = channel.stream_stream(paths.HA_REPLICATE)()
            await call.write(frame if first == "ack" else first)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await leader.append_random(1, 20)
        await assert_equal_logs(leader, follower)  # no other stream was affected


async def test_a_port_in_use_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        with pytest.raises(HaPortInUseError, match="set another haListenPort"):
            await pair.leader("second", ha_listen_port=leader.replication.port)


async def test_a_directory_of_another_group_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        await pair.stop(leader)
        stranger = Live(leader.directory, group="another")
        with pytest.raises(WrongReplicaError, match="storePathRootDir"):
            await stranger.start()
        stranger.real.close()
