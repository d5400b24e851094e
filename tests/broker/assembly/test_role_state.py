"""State that the next leader takes over: metadata, offsets, timers, transactions, locks, pops in
flight.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.journal.service import JournalService
from cometmq.proto import paths, v2
from cometmq.tests.broker.desk import Desk, message
from cometmq.tests.broker.live import until
from cometmq.tests.broker.role_desk import Elections, elections, replica


def desk_of(group: Elections, broker_id: int) -> Desk:
    """Return the desk of one replica."""
    live = group.replicas[broker_id]
    return Desk(live, live.node.acks, live.node.pulls)


def journal_of(node: Broker) -> JournalService:
    """Return its journal, which is open."""
    return node.journal


async def level(*nodes: Broker) -> None:
    """Wait until all logs are equal and fully dispatched."""
    await until(lambda: len({node.store.log_end for node in nodes}) == 1)
    await until(lambda: all(n.store.dispatched_offset == n.store.log_end for n in nodes))


async def test_a_topic_created_just_before_a_failover_exists_afterwards(tmp_path: Path) -> None:
    """Drill 30: its record is beyond what the follower may show."""
    async with elections(
        replica(tmp_path / "a", 0, sync=True), replica(tmp_path / "b", 1, sync=True), sync=True
    ) as group:
        first = await group.elect(0, 1)
        second = group.node(1)
        await level(first, second)
        desk_of(group, 0).topic("fresh")
        first.pump.appended()
        await until(lambda: second.store.log_end == first.store.log_end)
        group.epoch += 1
        del group.replicas[0], group._contexts[0]  # it is gone; its process ends with the test
        await group.elect(1)
        assert second.metadata.topic("fresh") is not None
        desk = desk_of(group, 1)
        answer = await desk.send(message("fresh"))
        assert answer.status.code == v2.OK


async def test_offsets_and_deliveries_continue_at_the_next_leader(tmp_path: Path) -> None:
    """Drill 31: acknowledged messages stay done, messages in flight come back when their time
    ends.
    """
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        second = group.node(1)
        desk = desk_of(group, 0)
        desk.topic("t")
        desk.group("g")
        await desk.sent("t", b"1", b"2", b"3")
        got = await desk.receive("t", "g", batch=2)
        assert got.bodies == [b"1", b"2"]
        desk.ack("t", "g", got.handles[0])
        # A clean change: the journal's buffer is written.
        journal_of(first).flush_all()
        await level(first, second)
        await asyncio.sleep(0.5)
        await group.elect(1, 0)
        desk = desk_of(group, 1)
        again = await desk.receive("t", "g")
        assert again.bodies == [b"3"]
        # A handle of the former leader is valid at the new one.
        done = desk.ack("t", "g", got.handles[1], again.handles[0])
        assert done.status.code == v2.OK
        await desk.nothing("t", "g")
        assert second.offsets.get("t", "g", 0) == 3


async def test_deliveries_of_a_follower_alone_stay_in_flight_at_the_next_leader(
    tmp_path: Path,
) -> None:
    """Another replica is elected after a follower has served alone."""
    async with elections(
        replica(tmp_path / "a", 0), replica(tmp_path / "b", 1), replica(tmp_path / "c", 2)
    ) as group:
        first = await group.elect(0, 1, 2)
        desk = desk_of(group, 0)
        desk.topic("t")
        desk.group("g")
        await desk.sent("t", b"1", b"2", b"3")
        await level(*(group.node(one) for one in (0, 1, 2)))
        await group.stop(0)
        assert first is not None
        await until(lambda: not group.node(1).replication.leader_alive)
        await until(lambda: not group.node(2).replication.leader_alive)
        alone = desk_of(group, 2)
        got = await alone.receive("t", "g", batch=2)
        assert got.bodies == [b"1", b"2"]
        alone.ack("t", "g", got.handles[0])
        second = await group.elect(1, 2)
        await until(lambda: second.pop.in_flight("t", "g", 0) == 1)
        desk = desk_of(group, 1)
        rest = await desk.receive("t", "g")
        assert rest.bodies == [b"3"]
        assert desk.ack("t", "g", got.handles[1]).status.code == v2.OK
        assert journal_of(second).core.open_count == 1


async def test_deliveries_of_a_follower_alone_reach_a_leader_that_waits_for_them(
    tmp_path: Path,
) -> None:
    """The follower sends its state before it acknowledges the log, and only then the leader leads
    pops.
    """
    first, second = (
        replica(tmp_path / name, broker_id, sync=True) for broker_id, name in enumerate(("a", "b"))
    )
    async with elections(first, second, sync=True) as group:
        leader = await group.elect(0, 1)
        desk = desk_of(group, 0)
        desk.topic("t")
        desk.group("g")
        await desk.sent("t", b"1", b"2", b"3")
        await level(leader, group.node(1))
        await group.stop(0)
        await until(lambda: not group.node(1).replication.leader_alive)
        alone = desk_of(group, 1)
        got = await alone.receive("t", "g", batch=2)
        assert got.bodies == [b"1", b"2"]
        alone.ack("t", "g", got.handles[0])
        await group.start(first)
        leader = await group.elect(0, 1)
        await until(lambda: leader.pop.in_flight("t", "g", 0) == 1)
        desk = desk_of(group, 0)
        assert (await desk.receive("t", "g")).bodies == [b"3"]
        assert desk.ack("t", "g", got.handles[1]).status.code == v2.OK


async def test_deliveries_of_a_follower_alone_stay_in_flight_when_it_is_elected(
    tmp_path: Path,
) -> None:
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        await group.elect(0, 1)
        desk = desk_of(group, 0)
        desk.topic("t")
        desk.group("g")
        await desk.sent("t", b"1", b"2", b"3")
        await level(group.node(0), group.node(1))
        await group.stop(0)
        second = group.node(1)
        await until(lambda: not second.replication.leader_alive)
        desk = desk_of(group, 1)
        got = await desk.receive("t", "g", batch=2)
        desk.ack("t", "g", got.handles[1])
        await group.elect(1)
        assert second.pop.in_flight("t", "g", 0) == 1
        rest = await desk.receive("t", "g")
        assert rest.bodies == [b"3"]
        assert desk.ack("t", "g", got.handles[0]).status.code == v2.OK
        assert not (tmp_path / "b" / "ha" / "pop-handover").exists()


async def test_a_locked_fifo_queue_stays_locked_at_the_next_leader(tmp_path: Path) -> None:
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        second = group.node(1)
        desk = desk_of(group, 0)
        desk.topic("t", message_type=v2.FIFO)
        desk.group("g", orderly=True)
        await desk.sent("t", b"1", b"2", b"3", message_type=v2.FIFO, message_group="m")
        got = await desk.receive("t", "g", batch=2)
        assert got.bodies == [b"1", b"2"]
        await level(first, second)
        await until(lambda: b'"t@g"' in second.pop._order_info._received)
        await group.elect(1, 0)
        desk = desk_of(group, 1)
        await desk.nothing("t", "g")
        desk.ack("t", "g", *got.handles)
        assert (await desk.receive("t", "g")).bodies == [b"3"]


async def test_the_new_leader_delivers_delayed_messages(tmp_path: Path) -> None:
    """Drill 32."""
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        second = group.node(1)
        desk = desk_of(group, 0)
        desk.topic("t", message_type=v2.DELAY)
        desk.group("g")
        late = message("t", b"late", message_type=v2.DELAY)
        due_ms = first.runtime.clock.wall_ms() + 2_500
        late.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
        assert (await desk.send(late)).status.code == v2.OK
        await level(first, second)
        await group.elect(1, 0)
        desk = desk_of(group, 1)
        got = await desk.receive("t", "g")
        assert got.bodies == [b"late"]
        assert second.runtime.clock.wall_ms() >= due_ms


async def test_sends_wait_for_the_next_leader(tmp_path: Path) -> None:
    """A client that uses either replica sees no error between two leaders."""
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        desk_of(group, 0).topic("t")
        first.pump.appended()
        await level(first, group.node(1))
        group.remove_leader()
        waiting = [asyncio.ensure_future(_sent(group, broker_id, b"x")) for broker_id in (0, 1)]
        await asyncio.sleep(0.3)
        assert not any(one.done() for one in waiting)
        await group.elect(1, 0)
        answers = await asyncio.gather(*waiting)
        assert [answer.status.code for answer in answers] == [v2.OK, v2.OK]


async def _sent(group: Elections, broker_id: int, text: bytes) -> v2.SendMessageResponse:
    async with group.replicas[broker_id].client(f"c@{broker_id}") as wire:
        request = v2.SendMessageRequest(messages=[message("t", text)])
        answer: v2.SendMessageResponse = await wire.call(
            paths.SEND_MESSAGE, request, v2.SendMessageResponse, 10.0
        )
        return answer


async def test_a_send_waiting_for_replicas_gets_an_unknown_result_at_a_failover(
    tmp_path: Path,
) -> None:
    first, second = (
        replica(tmp_path / name, broker_id, sync=True) for broker_id, name in enumerate(("a", "b"))
    )
    async with elections(first, second, sync=True) as group:
        leader = await group.elect(0, 1)
        desk = desk_of(group, 0)
        desk.topic("t")
        assert (await desk.send(message("t"))).status.code == v2.OK
        await group.stop(1)
        waiting = asyncio.ensure_future(desk.send(message("t", b"who knows")))
        await until(lambda: len(leader.durability))
        group.remove_leader()
        answer = await waiting
        assert answer.status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
        assert not answer.entries


async def test_a_diverged_tail_is_truncated_between_two_instances(tmp_path: Path) -> None:
    """Drill 5: the broker closes, truncates its diverged tail, and serves again on the same
    ports.
    """
    first, second = (replica(tmp_path / name, n) for n, name in enumerate(("a", "b")))
    async with elections(first, second) as group:
        leader = await group.elect(0, 1)
        desk = desk_of(group, 0)
        desk.topic("t")
        assert (await desk.send(message("t", b"shared"))).status.code == v2.OK
        await level(leader, group.node(1))
        await group.stop(1)
        assert (await desk.send(message("t", b"lost"))).status.code == v2.OK
        await group.stop(0)
        await group.start(second)
        await group.elect(1)
        desk = desk_of(group, 1)
        assert (await desk.send(message("t", b"new"))).status.code == v2.OK
        former = await group.start(first)
        ports = former.bound
        group.resend_state(1)
        await until(lambda: former.server.instances == 2 and former.server.alive)
        assert former.server.instance.bound == ports
        group.resend_state(1)
        mine, theirs = former.server.broker.store, group.node(1).store
        await until(lambda: mine.log_end == theirs.log_end, 30)
        assert mine.read_log(0, mine.log_end) == theirs.read_log(0, mine.log_end)
        assert list((tmp_path / "a" / "ha" / "diverged").glob("*.log"))


async def test_a_prepared_transaction_is_committed_at_the_next_leader(tmp_path: Path) -> None:
    """Drill 33: prepared at one leader, committed at the next, delivered once."""
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        second = group.node(1)
        desk = desk_of(group, 0)
        desk.topic("t", message_type=v2.TRANSACTION)
        desk.group("g")
        half = message("t", b"half", message_type=v2.TRANSACTION)
        sent = await desk.send(half)
        assert sent.status.code == v2.OK
        await level(first, second)
        await group.elect(1, 0)
        request = v2.EndTransactionRequest(
            topic=v2.Resource(name="t"),
            message_id=sent.entries[0].message_id,
            transaction_id=sent.entries[0].transaction_id,
            resolution=v2.COMMIT,
        )
        # Through the former leader, like a producer that has only that address.
        async with group.replicas[0].client("p@1") as wire:
            for _ in range(2):
                ended = await wire.call(
                    paths.END_TRANSACTION, request, v2.EndTransactionResponse, 10.0
                )
                assert ended.status.code == v2.OK, ended
        desk = desk_of(group, 1)
        assert (await desk.receive("t", "g")).bodies == [b"half"]
        await desk.nothing("t", "g")


async def test_cold_reads_go_to_a_follower(tmp_path: Path) -> None:
    """Records far behind the log end are read on a follower."""
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        second = group.node(1)
        desk = desk_of(group, 0)
        desk.topic("t")
        desk.group("g")
        await desk.sent("t", *(b"%d" % n for n in range(10)))
        await level(first, second)
        first.store.reader._memory_span = 600
        request = v2.PullMessageRequest(
            group=v2.Resource(name="g"),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name="t"), broker=v2.Broker(name="broker-a")
            ),
            offset=0,
            batch_size=2,
        )
        async with group.replicas[0].client() as wire:
            for offset, is_cold in ((0, True), (9, False)):
                request.offset = offset
                access = group.replicas[0].server.access.statistics
                forwarded = access.forwarded
                call = wire.channel.unary_stream(paths.PULL_MESSAGE)
                items = [
                    v2.PullMessageResponse.FromString(raw)
                    async for raw in call(
                        request.SerializeToString(), metadata=wire.metadata, timeout=10
                    )
                ]
                bodies = [i.message.body for i in items if i.HasField("message")]
                assert bodies[0] == b"%d" % offset
                assert access.forwarded - forwarded == is_cold
