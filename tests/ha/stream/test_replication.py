"""Two engines over loopback with real stores: the logs end up equal, byte by byte."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from cometmq.ha.stream import frames
from cometmq.tests.ha.live import (
    SEGMENT,
    Live,
    Pair,
    assert_equal_logs,
    files_of,
    log_bytes,
    until,
)


async def test_random_appends_arrive_byte_by_byte(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        await leader.append_random(1, 100)
        one = await pair.follower(leader, "one", 1)
        two = await pair.follower(leader, "two", 2)
        await leader.append_random(2, 300)
        await assert_equal_logs(leader, one, two)
        assert leader.log.log_end > 4 * SEGMENT  # segments rolled over
        await until(lambda: leader.replication.in_sync_count == 3)
        await until(lambda: one.replication.confirm == leader.log.log_end)


async def test_an_interrupted_follower_continues_at_its_end(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        for seed in range(4):
            appending = asyncio.create_task(leader.append_random(seed, 150))
            await asyncio.sleep(0.05)
            follower.replication.set_leader("")  # the stream ends in the middle of anything
            await appending
            follower.replication.set_leader(leader.address)
            await leader.append_random(10 + seed, 20)
            await assert_equal_logs(leader, follower)


async def test_a_restarted_follower_continues_at_its_end(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        for seed in range(3):
            follower = await pair.follower(leader)
            await leader.append_random(seed, 100)
            await until(lambda f=follower: f.log.log_end > 0)  # type: ignore[misc]
            await pair.stop(follower)
            await leader.append_random(10 + seed, 100)
        follower = await pair.follower(leader)
        assert follower.replication.replica.meta.incarnation == 4
        await assert_equal_logs(leader, follower)


async def test_a_restarted_leader_is_found_again(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        await leader.append_random(1, 100)
        await until(lambda: leader.replication.in_sync_count == 2)
        port = leader.replication.port
        await pair.stop(leader)
        await until(lambda: not follower.replication.leader_alive)
        assert follower.alive_changes == [True, False]
        leader = await pair.leader(ha_listen_port=port)
        await until(lambda: follower.replication.leader_alive)
        await leader.append_random(2, 100)
        await assert_equal_logs(leader, follower)


async def test_a_message_larger_than_chunk_and_window_arrives(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        segment = 4 << 20
        leader = await pair.leader(segment=segment)
        follower = await pair.follower(leader, segment=segment)
        for size in (10, 300_000, 10, 1_500_000, 200_000):  # chunk 16 KiB, window 64 KiB
            leader.append(os.urandom(size))
        await assert_equal_logs(leader, follower)
        await until(lambda: leader.replication.confirm == leader.log.log_end)


async def test_a_stream_broken_in_the_middle_of_a_message_loses_nothing(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        segment = 16 << 20
        leader = await pair.leader(segment=segment)
        follower = await pair.follower(leader, segment=segment)
        leader.append(os.urandom(3_900_000))
        await until(lambda: follower.log.received_end > follower.log.log_end)
        follower.replication.set_leader("")
        await asyncio.sleep(0.05)
        assert follower.log.received_end > follower.log.log_end == 0
        follower.replication.set_leader(leader.address)
        await assert_equal_logs(leader, follower)


async def test_the_bytes_on_disk_are_equal(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        end = await leader.append_random(5, 200)
        await assert_equal_logs(leader, follower)
        await pair.stop_all()
        ours, theirs = files_of(leader.directory), files_of(follower.directory)
        for start in range(0, end, SEGMENT):
            name = f"{start:020d}"
            assert ours[name][: end - start] == theirs[name][: end - start]


# --- the in-sync set and the confirm offset -------------------------------------------------------


async def test_confirm_waits_for_a_lost_follower_until_it_leaves(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        # The time until it leaves is longer than a stall of the machine.
        leader = await pair.leader(ha_in_sync_lag_ms=8_000)
        assert leader.append(b"alone") == leader.replication.confirm
        follower = await pair.follower(leader)
        await until(lambda: leader.replication.in_sync_count == 2)
        before = leader.replication.confirm
        end = leader.append(b"together")
        assert leader.replication.confirm == before
        await until(lambda: leader.replication.confirm == end)
        await pair.stop(follower)
        end = leader.append(b"while it is gone")
        await asyncio.sleep(0.6)  # longer than slaveTimeout: every waiting send has timed out
        assert leader.replication.confirm < end
        assert leader.replication.write_refusal() is None
        await until(lambda: leader.replication.confirm == end)
        assert leader.replication.in_sync_count == 1


async def test_on_confirm_reports_every_move(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        leader.append(b"alone")
        assert leader.confirms == 0  # not before the caller could register its wait
        await asyncio.sleep(0)
        assert leader.confirms == 1
        follower = await pair.follower(leader)
        await until(lambda: leader.replication.in_sync_count == 2)
        reported = leader.confirms
        leader.append(b"together")
        await until(lambda: leader.confirms > reported)
        assert leader.replication.confirm == leader.log.log_end
        await until(lambda: follower.replication.confirm == leader.log.log_end)
        assert follower.confirms > 0


async def test_a_minimum_of_two_refuses_writes_until_a_follower_is_in_sync(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(min_in_sync_replicas=2)
        refusal = leader.replication.write_refusal()
        assert refusal is not None and "1 of 2" in refusal
        follower = await pair.follower(leader)
        await until(lambda: leader.replication.write_refusal() is None)
        end = leader.append(b"both")
        await until(lambda: leader.replication.confirm == end)
        await pair.stop(follower)
        leader.append(b"never confirmed")
        await until(lambda: leader.replication.write_refusal() is not None)
        assert leader.replication.confirm == end
        await pair.follower(leader)
        await until(lambda: leader.replication.confirm == leader.log.log_end)


async def test_in_sync_flush_only_flushed_bytes_are_confirmed(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        flush = {"flush_disk_type": "SYNC_FLUSH"}
        slow = {"flush_interval_commit_log": 700}
        leader = await pair.leader(store=flush, ha_in_sync_lag_ms=60_000)
        follower = await pair.follower(leader, store=slow)
        await until(lambda: leader.replication.in_sync_count == 2)
        end = leader.append(b"x" * 5000)
        await until(lambda: leader.replication.confirm == end)
        assert follower.log.flushed_offset >= end
        assert leader.log.flushed_offset >= end


async def test_an_asynchronous_leader_never_waits(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(broker_role="ASYNC_MASTER")
        follower = await pair.follower(leader)
        end = await leader.append_random(1, 50)
        assert leader.replication.confirm == end
        await until(lambda: follower.replication.confirm == end)
        await until(lambda: leader.replication.in_sync_count == 2)


async def test_a_restarted_follower_keeps_the_confirm_offset(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        end = await leader.append_random(1, 50)
        await until(lambda: follower.replication.confirm == end)
        await pair.stop_all()
        alone = await pair.follower("127.0.0.1:1")  # no process listens there
        assert alone.replication.confirm == end
        assert not alone.replication.leader_alive


async def test_members_report_role_state_and_lag(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        await leader.append_random(1, 20)
        await until(lambda: leader.replication.in_sync_count == 2)
        await until(lambda: leader.replication.confirm == leader.log.log_end)
        own, other = leader.replication.members()
        assert (own.role, own.broker_id, own.in_sync) == ("leader", 0, True)
        assert (other.role, other.broker_id, other.state) == ("follower", 1, "in_sync")
        assert (other.lag_bytes, other.behind_ms, other.connected) == (0, 0, True)
        await until(lambda: follower.replication.members()[0].in_sync)


async def test_a_damaged_chunk_only_ends_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_chunk = frames.chunk
    sent = []

    def damage(**fields: Any) -> bytes:
        sent.append(fields["offset"])
        if len(sent) % 7 == 3:  # a flipped bit
            fields["data"] = bytes([fields["data"][0] ^ 1]) + fields["data"][1:]
        elif len(sent) % 7 == 5:  # a gap
            fields["offset"] += 1
        return make_chunk(**fields)

    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        await until(lambda: leader.replication.in_sync_count == 2)
        monkeypatch.setattr(frames, "chunk", damage)
        await leader.append_random(1, 200)
        await until(lambda: len(sent) > 12)
        monkeypatch.setattr(frames, "chunk", make_chunk)
        await assert_equal_logs(leader, follower)


# --- consumer offsets -----------------------------------------------------------------------------


async def test_state_about_bytes_that_never_arrived_ends_with_its_stream(
    tmp_path: Path,
) -> None:
    """Before, a waiting snapshot was applied when another leader's records reached its log end."""
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        leader.told.states["OFFSETS"] = lambda: b"of this stream"
        follower = Live(tmp_path / "follower", broker_id=1)
        await follower.start()
        pair.running.append(follower)
        told = follower.applied
        follower.told.stream_began = lambda: told.append(b"forget")
        for _ in range(2):
            follower.replication.set_leader(leader.address)
            await until(lambda: told[-2:] == [b"forget", b"of this stream"])
            follower.replication.set_leader("")


async def test_consumer_offsets_are_sent_in_both_directions(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        current = [b"leader's first"]
        leader.told.states["OFFSETS"] = lambda: current[0]
        address = leader.address
        follower = Live(tmp_path / "follower", broker_id=1)
        await follower.start()
        pair.running.append(follower)
        follower.told.states["OFFSETS"] = lambda: b"follower's own"
        follower.replication.set_leader(address)
        await until(lambda: follower.applied == [b"leader's first"])
        await until(lambda: leader.applied == [b"follower's own"])
        current[0] = os.urandom(300_000)  # many frames
        await until(lambda: follower.applied[1:] == current)
        await asyncio.sleep(0.1)
        assert len(follower.applied) == 2  # unchanged offsets are not sent again


async def test_a_full_disk_on_the_follower_stops_only_the_follower(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        # The checkpoint needs room too; here only segments shall find none.
        follower = await pair.follower(leader, store={"flush_interval_consume_queue": 60_000})
        await leader.append_random(1, 20)
        await assert_equal_logs(leader, follower)
        full = [True]

        def fault(call: str) -> None:
            if full[0] and call == "fallocate":
                raise OSError(28, "No space left on device")

        follower.log.disk.fault = fault
        await leader.append_random(2, 200)
        await until(lambda: leader.replication.in_sync_count == 1)
        assert leader.replication.confirm == leader.log.log_end
        assert log_bytes(leader.log).startswith(log_bytes(follower.log))
        full[0] = False
        await assert_equal_logs(leader, follower)
        await until(lambda: leader.replication.in_sync_count == 2)


async def test_a_follower_whose_disk_is_too_full_waits_and_catches_up(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        await leader.append_random(1, 20)
        await assert_equal_logs(leader, follower)
        gate = follower.log.gate
        gate.pause("disk use", "The disk is 91 % full.")
        await leader.append_random(2, 20)
        await until(lambda: leader.replication.in_sync_count == 1)
        # The leader continues alone.
        await until(lambda: leader.replication.confirm == leader.log.log_end)
        gate.resume("disk use")
        await assert_equal_logs(leader, follower)
        await until(lambda: leader.replication.in_sync_count == 2)


async def test_an_empty_follower_starts_at_the_leaders_log_start(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        await leader.append_random(1, 200)
        await until(lambda: leader.log.flushed_offset == leader.log.log_end)
        leader.log.log.drop_first()
        assert leader.log.log_start > 0
        follower = await pair.follower(leader)
        end = leader.log.log_end
        await until(lambda: follower.log.log_end == end)
        start = leader.log.log_start
        assert follower.log.log_start == start
        assert follower.log.log_crc(start, end) == leader.log.log_crc(start, end)
