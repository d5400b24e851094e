"""Upkeep of running replicas: repair over the replication port, digests on request, automatic
replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.ha import upkeep as upkeep_module
from cometmq.ha.rejoin import (
    diverged_tails as tails,
)
from cometmq.ha.rejoin import (
    pending,
)
from cometmq.ha.rejoin.plan import CUT, Plan, write_plan
from cometmq.ha.role.disk_full_handover import DiskFullHandover
from cometmq.ha.scrub.peer import Peer
from cometmq.ha.upkeep import Upkeep
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import v1, v2
from tests.ha.live import SEGMENT, Live, Pair, assert_equal_logs, files_of, until
from tests.ha.real_store import RealLog


def _keep_up(live: Live) -> Upkeep:
    upkeep = Upkeep(live.replication, live.log, lambda: "")
    upkeep.start()
    return upkeep


def _flip(live: Live, offset: int) -> None:
    path = live.directory / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}"
    with path.open("r+b") as file:
        file.seek(offset % SEGMENT)
        (byte,) = file.read(1)
        file.seek(offset % SEGMENT)
        file.write(bytes([byte ^ 1]))


def written(directory: Path) -> dict[str, bytes]:
    """Return the segments that hold data; the next one may be allocated at any moment."""
    return {name: data for name, data in files_of(directory).items() if data.strip(b"\0")}


async def test_a_damaged_follower_is_repaired_from_its_leader(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(ha_scrub_rate=0)
        follower = await pair.follower(leader, ha_scrub_rate=0)
        await leader.append_random(1, 150)
        await assert_equal_logs(leader, follower)
        sides = [_keep_up(leader), _keep_up(follower)]
        whole = written(follower.directory)
        await sides[1].scrub.seal()
        _flip(follower, SEGMENT + 999)
        assert written(follower.directory) != whole
        result = await sides[1].scrub.run_once()
        assert (result.damaged, result.repaired) == (1, 1)
        assert written(follower.directory) == whole
        for side in sides:
            await side.stop()


async def test_a_follower_waits_until_a_damaged_block_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would copy the damage, and then both sides had it."""
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(ha_scrub_rate=0)
        follower = await pair.follower(leader, ha_scrub_rate=0)
        await leader.append_random(1, 150)
        await assert_equal_logs(leader, follower)
        good = leader.log.read_log(SEGMENT, SEGMENT)
        sides = [_keep_up(leader), _keep_up(follower)]
        # As the group's state would report.
        monkeypatch.setattr(sides[0], "_peer_addresses", lambda: [follower.address])
        await sides[0].scrub.seal()
        _flip(leader, SEGMENT + 999)
        fresh = await pair.follower(leader, "fresh", 2)
        await until(lambda: sides[0].scrub.total.repaired > 0)
        await assert_equal_logs(leader, fresh)
        assert fresh.log.read_log(SEGMENT, SEGMENT) == good
        for side in sides:
            await side.stop()


async def test_an_empty_follower_may_start_with_the_last_segment(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        await leader.append_random(1, 150)
        last = leader.log.log_end // SEGMENT * SEGMENT
        assert last > 0
        follower = await pair.follower(leader, sync_from_last_file=True)
        await until(lambda: follower.log.log_end >= leader.log.log_end)
        assert follower.log.log_start == last, "byte offsets are kept"
        end = leader.log.log_end
        assert follower.log.log_crc(last, end) == leader.log.log_crc(last, end)
        await pair.stop(follower)
        again = await pair.follower(leader, sync_from_last_file=True)
        await leader.append_random(2, 20)
        await until(lambda: again.log.log_end >= leader.log.log_end)
        assert again.log.log_start == last


async def test_digest_and_range_requests_are_answered(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        await leader.append_random(1, 150)
        side = _keep_up(leader)
        assert leader.replication.archived_tails() == []
        get_digests = leader.replication.get_digests
        assert get_digests is not None
        blocks = [each async for each in get_digests(v1.DigestsRequest())]
        assert [block.offset for block in blocks] == list(
            range(0, leader.log.log_end // SEGMENT * SEGMENT, SEGMENT)
        )
        assert all(block.now == block.crc32 for block in blocks)
        answer = await side.replay.run(v1.ReplayTailRequest())
        assert list(answer.steps) == ["there is nothing to replay"]
        await side.stop()


async def test_the_full_disk_handover_runs_with_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the handover existed but was never started."""
    asked: list[bool] = []

    async def hand_over(watch: DiskFullHandover) -> bool:
        asked.append(True)
        return True

    monkeypatch.setattr(DiskFullHandover, "hand_over", hand_over)
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        monkeypatch.setattr(type(leader.log), "paused", property(lambda _: True))
        side = _keep_up(leader)
        await until(lambda: bool(asked))
        await side.stop()


async def test_scrub_results_are_counted(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(ha_scrub_rate=0)
        await leader.append_random(1, 150)
        side = _keep_up(leader)
        await side.scrub.seal()
        _flip(leader, SEGMENT + 999)
        await side.scrub.run_once()
        counters = leader.replication.counters
        assert (counters["scrub_rounds"], counters["scrub_rotten"]) == (1, 1)
        await side.stop()


class _Told(Peer):
    """Another replica, as its status shows its archives."""

    def __init__(self, broker_id: int, *held: v1.ArchivedTail) -> None:
        super().__init__("told", NodeLinks())
        self.answer = v1.ReplicaStatus(tails=held)
        self.answer.beat.replica.broker_id = broker_id

    async def status(self) -> v1.ReplicaStatus:
        return self.answer


@pytest.mark.parametrize("what", ["sent", "left", "broken"])
async def test_two_automatic_replays_send_the_same_tail_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Broker 0 archived it too: a tail that it sent is marked, an unsent one is left to it for a
    while."""
    monkeypatch.setattr(upkeep_module, "_RETRY_S", 0.05)
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        again = await _with_tail(pair, leader)
        sent: list[bytes] = []

        async def send(request: v2.SendMessageRequest) -> v2.SendMessageResponse:
            sent.extend(message.body for message in request.messages)
            return v2.SendMessageResponse(status=v2.Status(code=v2.OK))

        upkeep = Upkeep(again.replication, again.log, lambda: "", send=send)
        (own,) = again.replication.archived_tails()
        theirs = v1.ArchivedTail()
        theirs.CopyFrom(own)
        theirs.replayed = what == "sent"
        monkeypatch.setattr(upkeep, "_peers", lambda: [_Told(0, theirs)])
        if what == "broken":
            _fail_once(monkeypatch, upkeep.replay)
        upkeep.start()
        await until(lambda: all(tail.replayed for tail in again.replication.archived_tails()))
        assert len(sent) == (0 if what == "sent" else 5)
        await upkeep.stop()


def _fail_once(monkeypatch: pytest.MonkeyPatch, replay: tails.Replay) -> None:
    """The first try meets a disk that does not write."""
    run_it, failed = replay.run, list[bool]()

    async def fail(request: v1.ReplayTailRequest) -> v1.ControlResponse:
        if not failed:
            failed.append(True)
            raise OSError("it does not write")
        return await run_it(request)

    monkeypatch.setattr(replay, "run", fail)


async def _with_tail(pair: Pair, leader: Live) -> Live:
    """A follower of the leader, which cut five messages of its own."""
    follower = await pair.follower(leader)
    await leader.append_random(1, 10)
    await assert_equal_logs(leader, follower)
    cut_at = follower.log.log_end
    await pair.stop(follower)
    config = follower.log.config
    own = RealLog(follower.directory, SEGMENT)  # written while it led alone
    for number in range(5):
        own.append(b"%d" % number)
    own.close()
    write_plan(follower.directory / "ha", Plan(CUT, cut_at, epoch=2, leader="broker 0"))
    pending.run(follower.directory, config)
    again = await pair.follower(leader, replay_tail="auto")
    await until(lambda: again.replication.leader_alive)
    return again


async def test_a_tail_is_replayed_automatically_when_configured(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        again = await _with_tail(pair, leader)
        sent: list[bytes] = []

        async def send(request: v2.SendMessageRequest) -> v2.SendMessageResponse:
            sent.extend(message.body for message in request.messages)
            return v2.SendMessageResponse(status=v2.Status(code=v2.OK))

        upkeep = Upkeep(again.replication, again.log, lambda: "", send=send)
        upkeep.start()
        await until(lambda: all(tail.replayed for tail in again.replication.archived_tails()))
        assert sorted(sent) == [b"%d" % number for number in range(5)]
        await upkeep.stop()
