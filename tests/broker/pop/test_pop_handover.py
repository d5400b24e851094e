"""A follower that serves without its leader, and its state after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.names.delivery import DeliveryRef, Outcome, PopOptions
from cometmq.broker.pop.fifo.ordered_group import OrderedGroup
from cometmq.broker.pop.group import PopGroup
from cometmq.broker.pop.handover import dump_core, load_queue, read_file, write_file
from cometmq.proto import v1
from cometmq.tests.broker.desk import Desk, desk
from cometmq.tests.broker.live import Live, follower_of, running, settings, until

NOW_MS = 1_000_000


def served() -> PopGroup:
    """Return a group with deliveries in flight, acknowledged ones between them, and a skip."""
    core = PopGroup("t", "g", 100, NOW_MS)
    queue = core.add_queue((0, 2), 5)
    core.deliver(queue, [5, 6, 8, 9], 11, PopOptions(NOW_MS, 10_000, "c"))
    core.ack(DeliveryRef((0, 2), 6, NOW_MS, NOW_MS + 10_000), NOW_MS)
    core.ack(DeliveryRef((0, 2), 20, NOW_MS - 5, NOW_MS + 9_000), NOW_MS)
    core.validate()
    return core


def test_the_state_round_trips_through_the_file(tmp_path: Path) -> None:
    handover = v1.PopHandover(queues=list(dump_core(served())))
    path = tmp_path / "ha" / "pop-handover"
    write_file(path, handover)
    found = read_file(path)
    assert found is not None
    (state,) = found.queues
    assert [(run.first, run.last) for run in state.acked] == [(6, 7), (10, 10), (20, 20)]
    core = PopGroup("t", "g", 100, NOW_MS + 1)
    queue = core.add_queue((0, 2), 4)
    load_queue(core, (0, 2), state)
    core.validate()
    assert (queue.committed, queue.next_read, queue.skips) == (5, 11, {20})
    assert sorted(queue.unacked) == [5, 8, 9]
    assert queue.unacked[8].owner == "c"
    core.expire(NOW_MS + 10_000, lambda client_id: False)
    taken = [core.take_ready() for _ in range(3)]
    assert [one[1].offset for one in taken if one] == [5, 8, 9]


def test_a_retry_topic_is_stored_under_its_own_name() -> None:
    core = PopGroup("t", "g", 100, NOW_MS)
    retry = core.add_queue((1, 0), 0)
    core.add_queue((0, 0), 0)
    core.deliver(retry, [0, 1], 2, PopOptions(NOW_MS, 10_000))
    core.hide(retry, retry.unacked[1], NOW_MS + 5, 30_000)
    states = {state.topic: state for state in dump_core(core)}
    assert list(states) == ["%RETRY%g_t", "t"]
    again = PopGroup("t", "g", 100, NOW_MS + 9)
    queue = again.add_queue((1, 0), 0)
    load_queue(again, (1, 0), states["%RETRY%g_t"])
    again.validate()
    assert [queue.unacked[o].visible_ms for o in (0, 1)] == [NOW_MS + 10_000, NOW_MS + 30_005]
    # The holder of a handle from before the extension may still acknowledge.
    assert again.ack(DeliveryRef((1, 0), 1, NOW_MS, NOW_MS + 1), NOW_MS + 9) is Outcome.DONE


def test_journalled_messages_of_the_leader_stay_in_flight() -> None:
    core = PopGroup("t", "g", 100, NOW_MS)
    queue = core.add_queue((0, 2), 0)
    core.deliver(queue, [0, 1, 2], 3, PopOptions(NOW_MS, 10_000))
    core.stored(queue, [0, 2])
    core.ack(DeliveryRef((0, 2), 1, NOW_MS, NOW_MS + 10_000), NOW_MS)
    (state,) = dump_core(core)
    assert (state.consumer_offset, state.next_offset) == (3, 3)
    again = PopGroup("t", "g", 100, NOW_MS + 9)
    fresh = again.add_queue((0, 2), 3)
    assert load_queue(again, (0, 2), state)
    again.validate()
    assert sorted(fresh.unacked) == [0, 2]
    further = PopGroup("t", "g", 100, NOW_MS + 9)
    further.add_queue((0, 2), 4)
    assert not load_queue(further, (0, 2), state)
    assert further.idle()


def test_a_file_older_than_the_offsets_changes_nothing() -> None:
    (state,) = dump_core(served())
    core = PopGroup("t", "g", 100, NOW_MS)
    queue = core.add_queue((0, 2), 30)
    load_queue(core, (0, 2), state)
    core.validate()
    assert (queue.committed, queue.next_read, queue.unacked) == (30, 30, {})


def test_fifo_state_consists_of_the_offset_and_acknowledged_messages() -> None:
    core = OrderedGroup("t", "g", 100, NOW_MS)
    queue = core.add_queue((0, 0), 5)
    core.deliver(queue, [5, 6, 7], 8, PopOptions(NOW_MS, 10_000))
    for offset in (5, 7):
        assert (
            core.ack(DeliveryRef((0, 0), offset, NOW_MS, NOW_MS + 10_000), NOW_MS) is Outcome.DONE
        )
    (state,) = dump_core(core)
    other = OrderedGroup("t", "g", 100, NOW_MS + 1)
    fresh = other.add_queue((0, 0), 0)
    load_queue(other, (0, 0), state)
    other.validate()
    assert (fresh.committed, fresh.skips) == (6, {7})


@pytest.mark.parametrize("damage", [b"", b"CMQPOP1\n", b"CMQPOP1\n\0\0\0\1rest", b"other file"])
def test_a_damaged_file_is_ignored(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "pop-handover"
    assert read_file(path) is None
    path.write_bytes(damage)
    assert read_file(path) is None


def of(live: Live) -> Desk:
    """Return a desk for a running broker."""
    return Desk(live, live.node.acks, live.node.pulls)


async def caught_up(leader: Desk, follower: Desk) -> None:
    """Wait until the follower's log and view equal the leader's."""
    await until(
        lambda: (
            follower.node.store.dispatched_offset == leader.node.store.log_end
            and sorted(follower.node.offsets) == sorted(leader.node.offsets)
        )
    )


async def alone(follower: Desk) -> None:
    """Wait until the follower has noticed that its leader is gone."""
    await until(lambda: not follower.node.replication.leader_alive)


async def test_a_follower_serves_and_the_returning_leader_takes_its_offsets(tmp_path: Path) -> None:
    leader_settings = settings(tmp_path / "a")
    async with desk(tmp_path / "a", leader_settings) as leader:
        address = leader.live.bound
        async with running(follower_of(address, tmp_path / "b")) as live:
            follower = of(live)
            leader.topic("t")
            leader.group("g")
            await leader.sent("t", *(b"%d" % n for n in range(6)))
            got = await leader.receive("t", "g", batch=4)
            leader.ack("t", "g", got.handles[0], got.handles[2])
            await caught_up(leader, follower)
            await leader.live.server.stop(0.5)
            await alone(follower)
            # The leader's deliveries are in flight here too, and their handles are accepted.
            assert follower.ack("t", "g", got.handles[3]).status.code == 20_000
            served = await follower.receive("t", "g", invisible_ms=60_000)
            assert served.bodies == [b"4", b"5"]
            follower.advance(30_000)
            late = await follower.receive("t", "g")
            assert (late.bodies, late.attempts) == ([b"1"], [2])
            assert live.node.runtime.counters.redelivered_without_handover == 0
            follower.ack("t", "g", *served.handles, *late.handles)
            assert live.node.offsets.get("t", "g", 0) == 6
            async with desk(tmp_path / "a", settings(tmp_path / "a")) as again:
                live.node.replication.set_leader(again.live.bound.ha)
                await until(lambda: again.node.offsets.get("t", "g", 0) == 6)
                await again.nothing("t", "g")
                await again.sent("t", b"new")
                assert (await again.receive("t", "g")).bodies == [b"new"]
            assert not (tmp_path / "b" / "ha" / "pop-handover").exists()


async def test_a_restarted_follower_does_not_redeliver_messages_in_flight(tmp_path: Path) -> None:
    async with desk(tmp_path / "a") as leader:
        chosen = follower_of(leader.live.bound, tmp_path / "b")
        async with running(chosen) as live:
            leader.topic("t")
            leader.group("g")
            await leader.sent("t", b"a", b"b", b"c")
            await caught_up(leader, of(live))
            await leader.live.server.stop(0.5)
            first = await of(live).receive("t", "g", batch=2)
            of(live).ack("t", "g", first.handles[1])
    async with running(chosen) as live:
        follower = of(live)
        assert (await follower.receive("t", "g")).bodies == [b"c"]
        follower.advance(30_000)
        again = await follower.receive("t", "g")
        assert again.bodies == [b"a", b"c"]
        assert again.attempts == [2, 2]
