"""What holds for classic clients after a restart holds at the next leader, also if its clock is
hours behind.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.validation import MIXED
from cometmq.proto import v2
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.bare_json import QueueKey, loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.message_id import OffsetId
from cometmq.store.format.record import Record
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.tests.broker.assembly.test_after_failover import buried
from cometmq.tests.broker.classic.test_classic_advertised import classic_nameserver
from cometmq.tests.broker.classic.test_classic_pop import batch, named, popped, popping
from cometmq.tests.broker.classic.test_classic_system_topics import HALF, TRACE, found, viewed
from cometmq.tests.broker.classic.test_classic_transactions import COMMIT, end
from cometmq.tests.broker.classic_wire import (
    heartbeat,
    message,
    port_of,
    pulled,
    pulling,
    records,
)
from cometmq.tests.broker.desk import Desk
from cometmq.tests.broker.failing_over import GROUP, HOUR, PLACES, SECOND, TOPIC, Row, check
from cometmq.tests.broker.live import until
from cometmq.tests.broker.timing import arrives, stored
from cometmq.tests.remoting.client import RemotingClient, wait_for_routes

QUEUE = {"brokerName": "broker-a", "queueId": 0, "topic": TOPIC}
OURS: dict[str, Any] = {"topic": TOPIC, "consumerGroup": GROUP}


def dialled(act: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Give an act a classic client of the broker, too."""

    @wraps(act)
    async def connected(k: Desk, *told: Any) -> Any:
        async with RemotingClient(port_of(k.live)) as client:
            return await act(k, client, *told)

    return connected


async def send(
    k: Desk, client: RemotingClient, name: str, more: str = "", **header: Any
) -> Command:
    """Send a message whose body and id are its name."""
    command = message(
        name.encode(), f"UNIQ_KEY\x01{name}\x02{more}", **{"b": TOPIC, "e": 0} | header
    )
    answer = await client.post(command)
    assert answer.code == Reply.SUCCESS, answer
    await k.dispatched()
    return answer


def due(due_ms: int) -> str:
    """Return the properties of a message that is due at this time."""
    return f"TIMER_DELIVER_MS\x01{due_ms}\x02"


async def read(client: RemotingClient, topic: str = TOPIC, offset: int = 0) -> list[bytes]:
    """Return the bodies of a pull."""
    found = await pulled(client, **OURS | {"topic": topic}, queueId=0, queueOffset=offset)
    return [each.body for each in found]


async def pop(client: RemotingClient, **more: Any) -> list[Record]:
    """Pop what is available."""
    answer = await client.post(popping(**OURS, pollTime=0, **more))
    return records(answer.body) if answer.code == Reply.SUCCESS else []


async def ack(client: RemotingClient, *found: Record) -> None:
    """Acknowledge what was popped."""
    for each in found:
        answer = await client.call(Request.ACK_MESSAGE, **named(each, **OURS))
        assert answer.code == Reply.SUCCESS, answer


async def deleted_topic(client: RemotingClient) -> None:
    answer = await client.call(Admin.DELETE_TOPIC_IN_BROKER, topic=TOPIC)
    assert answer.code == Reply.SUCCESS, answer


# -- the clock ------------------------------------------------------------------------------------


@dialled
async def in_flight(k: Desk, client: RemotingClient) -> None:
    k.topic(TOPIC)
    k.group(GROUP)
    await send(k, client, "1")
    assert len(await pop(client, invisibleTime=20 * SECOND)) == 1
    k.advance(2 * SECOND)  # its checkpoint is in the log
    await until(lambda: k.node.offsets.get(TOPIC, GROUP, 0) == 1)


@dialled
async def visible_in_its_own_time(k: Desk, client: RemotingClient, _: Any) -> None:
    k.advance(21 * SECOND)
    (again,) = await popped(client, **OURS, pollTime=20_000)
    assert (again.body, again.reconsume_times) == (b"1", 1)


@dialled
async def level(k: Desk, client: RemotingClient) -> None:
    k.topic(TOPIC, message_type=MIXED)
    await send(k, client, "level", "DELAY\x013\x02")
    await send(k, client, "ahead")


@dialled
async def due_after_its_own_time(k: Desk, client: RemotingClient, _: Any) -> None:
    await send(k, client, "after")
    assert stored(k)[1].store_timestamp_ms <= k.node.runtime.clock.wall_ms()
    k.advance(11 * SECOND)
    await until(lambda: len(stored(k)) == 3)
    assert await read(client) == [b"ahead", b"after", b"level"]


@dialled
async def timers(k: Desk, client: RemotingClient) -> int:
    k.topic(TOPIC, message_type=v2.DELAY)
    due_ms = k.node.runtime.clock.wall_ms() + HOUR
    for n in range(5):
        await send(k, client, f"{n}", due(due_ms + n))
    return due_ms


@dialled
async def a_new_timer_does_not_wait_behind_them(
    k: Desk, client: RemotingClient, due_ms: int
) -> None:
    clock = k.node.runtime.clock
    await send(k, client, "soon", due(clock.wall_ms() + 5 * SECOND))
    k.advance(6 * SECOND)
    await until(lambda: len(stored(k)) == 1)
    assert await read(client) == [b"soon"]
    k.advance(due_ms + SECOND - clock.wall_ms())
    await until(lambda: len(stored(k)) == 6)


# -- what is deleted, recalled, changed -----------------------------------------------------------


@dialled
async def recalled(k: Desk, client: RemotingClient) -> int:
    """Under deduplication: one message is sent again with its id, another one is not yet."""
    k.topic(TOPIC, message_type=v2.DELAY)
    due_ms = k.node.runtime.clock.wall_ms() + HOUR
    for name in ("here", "there"):
        handle = (await send(k, client, name, due(due_ms))).fields["recallHandle"]
        answer = await client.call(Request.RECALL_MESSAGE, topic=TOPIC, recallHandle=handle)
        assert answer.code == Reply.SUCCESS
    await send(k, client, "here", due(due_ms))
    return due_ms


@dialled
async def what_is_sent_again_arrives_once(k: Desk, client: RemotingClient, due_ms: int) -> None:
    await send(k, client, "there", due(due_ms))
    await until(lambda: not k.node.timers.enqueue_lag)
    await k.node.timers.settle()
    assert k.node.timers.waiting(TOPIC) == 2
    k.advance(due_ms + SECOND - k.node.runtime.clock.wall_ms())
    await arrives(k, b"here", b"there")


@dialled
async def successor(k: Desk, client: RemotingClient) -> str:
    k.topic(TOPIC, message_type=MIXED)
    await send(k, client, "old timer", due(k.node.runtime.clock.wall_ms() + HOUR))
    await send(k, client, "old level", "DELAY\x0117\x02")
    half = await send(k, client, "old half", "TRAN_MSG\x01true\x02PGROUP\x01producers\x02", f=4)
    await deleted_topic(client)
    k.topic(TOPIC, message_type=MIXED)
    return half.fields["queueOffset"]


@dialled
async def nothing_old_arrives(k: Desk, client: RemotingClient, half: str) -> None:
    assert await end(client, "old half", half, COMMIT) == Reply.SYSTEM_ERROR
    k.advance(11 * HOUR)
    await until(lambda: k.node.timers.stats.without_topic == 1)
    await send(k, client, "new")
    assert await read(client) == [b"new"]


@dialled
async def only_other_letters_are_read(k: Desk, client: RemotingClient, _: Any) -> None:
    assert await read(client, "%DLQ%g") == [b"other"]
    k.topic(TOPIC)
    assert await read(client, "%DLQ%g") == [b"other"]


@dialled
async def deleted(k: Desk, client: RemotingClient) -> None:
    k.topic(TOPIC)
    await send(k, client, "1")
    await client.call(Request.HEART_BEAT, heartbeat("c1", GROUP, 1, **{TOPIC: "*"}))
    assert await read(client) == [b"1"]
    answer = await client.call(Admin.DELETE_SUBSCRIPTIONGROUP, groupName=GROUP)
    assert answer.code == Reply.SUCCESS


@dialled
async def stays_deleted(k: Desk, client: RemotingClient, _: Any) -> None:
    await client.call(Request.HEART_BEAT, heartbeat("c1", GROUP, 1, **{TOPIC: "*"}))
    answer = await client.post(pulling(**OURS, queueId=0))
    assert answer.code == Reply.SUBSCRIPTION_GROUP_NOT_EXIST
    assert GROUP not in k.node.metadata.groups


def mode(name: str) -> bytes:
    """Return the body that sets how the group reads the topic."""
    return json.dumps({**OURS, "mode": name, "popShareQueueNum": 0}).encode()


@dialled
async def retrying(k: Desk, client: RemotingClient) -> Record:
    k.topic(TOPIC)
    k.group(GROUP)
    done = await client.call(Request.SET_MESSAGE_REQUEST_MODE, mode("POP"))
    assert done.code == Reply.SUCCESS
    await send(k, client, "1")
    (found,) = await pop(client, invisibleTime=20 * SECOND)
    k.advance(21 * SECOND)
    await until(lambda: len(stored(k, "%RETRY%g_Later")) == 1)
    return found


@dialled
async def changes_and_acknowledgements_are_refused(
    k: Desk, client: RemotingClient, found: Record
) -> None:
    answer = await client.call(Request.SET_MESSAGE_REQUEST_MODE, mode("PULL"))
    assert (answer.code, (answer.remark or "")[:2]) == (Reply.SYSTEM_ERROR, "1 ")
    group = json.dumps({"groupName": GROUP, "consumeMessageOrderly": True}).encode()
    answer = await client.call(Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
    assert answer.code != Reply.SUCCESS
    assert "1 messages" in (answer.remark or "")
    await deleted_topic(client)
    for code in (Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME):
        answer = await client.call(code, **named(found, **OURS, invisibleTime=SECOND))
        assert answer.code == Reply.NO_MESSAGE


@dialled
async def shortened(k: Desk, client: RemotingClient) -> Record:
    """A message comes again before the time of its first handle ends."""
    k.topic(TOPIC)
    k.group(GROUP)
    await send(k, client, "1")
    (found,) = await pop(client, invisibleTime=HOUR)
    changing = named(found, **OURS, invisibleTime=SECOND)
    answer = await client.call(Request.CHANGE_MESSAGE_INVISIBLETIME, **changing)
    assert answer.code == Reply.SUCCESS
    k.advance(2 * SECOND)
    await until(lambda: len(stored(k, "%RETRY%g_Later")) == 1)
    return found


@dialled
async def the_old_handle_is_refused(k: Desk, client: RemotingClient, found: Record) -> None:
    for code in (Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME):
        answer = await client.call(code, **named(found, **OURS, invisibleTime=SECOND))
        assert answer.code == Reply.NO_MESSAGE
    answer = await client.call(Request.BATCH_ACK_MESSAGE, batch(found, **OURS))
    assert answer.code == Reply.NO_MESSAGE
    assert [each.body for each in await pop(client)] == [b"1"]


# -- order ----------------------------------------------------------------------------------------


async def four_in_order(k: Desk, client: RemotingClient) -> None:
    k.topic(TOPIC, message_type=v2.FIFO)
    k.group(GROUP, orderly=True, max_attempts=3)
    for n in range(4):
        await send(k, client, f"{n}", "__SHARDINGKEY\x01one\x02")


@dialled
async def popped_in_order(k: Desk, client: RemotingClient) -> None:
    await four_in_order(k, client)
    found = await pop(client, order="true", invisibleTime=20 * SECOND)
    assert len(found) == 4
    await ack(client, *found[1:])


@dialled
async def only_what_is_not_acknowledged_dies(k: Desk, client: RemotingClient, _: Any) -> None:
    for _attempt in range(3):
        k.advance(31 * SECOND)
        found = await pop(client, order="true", invisibleTime=20 * SECOND)
        await ack(client, *(each for each in found if each.body != b"0"))
    k.advance(40 * SECOND)
    assert not await pop(client, order="true")
    await until(lambda: [one.body for one in stored(k, "%DLQ%g")] == [b"0"])
    assert k.node.pop.in_flight(TOPIC, GROUP, 0) == 0


async def locks(client: RemotingClient, client_id: str) -> bool:
    """Lock the queue for a client of the group; return whether it has it."""
    await client.call(Request.HEART_BEAT, heartbeat(client_id, GROUP, 1, **{TOPIC: "*"}))
    document = {"clientId": client_id, "consumerGroup": GROUP, "mqSet": [QUEUE]}
    answer = await client.call(Request.LOCK_BATCH_MQ, json.dumps(document).encode())
    return bool(loads(answer.body)["lockOKMQSet"])


async def commit(client: RemotingClient, topic: str, offset: int) -> None:
    """Commit an offset of queue 0."""
    fields = {**OURS, "topic": topic, "queueId": 0, "commitOffset": offset}
    answer = await client.call(Request.UPDATE_CONSUMER_OFFSET, **fields)
    assert answer.code == Reply.SUCCESS


@dialled
async def pulled_in_order(k: Desk, client: RemotingClient) -> None:
    await four_in_order(k, client)
    assert await locks(client, "c1")
    assert not await locks(client, "c2")
    assert len(await read(client)) == 4
    await commit(client, TOPIC, 3)


@dialled
async def another_client_goes_on(k: Desk, client: RemotingClient, _: Any) -> None:
    assert await locks(client, "c2")
    answer = await client.call(Request.QUERY_CONSUMER_OFFSET, **OURS, queueId=0)
    assert await read(client, offset=int(answer.fields["offset"])) == [b"3"]
    assert not stored(k, "%DLQ%g")


# -- what tools read ------------------------------------------------------------------------------


@dialled
async def shown(k: Desk, client: RemotingClient) -> list[Command]:
    """Messages of each kind that tools read: sent, waiting, traces."""
    k.topic(TOPIC, message_type=MIXED)
    keys = "KEYS\x01order7\x02"
    half = f"{keys}TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    due_ms = k.node.runtime.clock.wall_ms() + 24 * HOUR
    return [
        await send(k, client, "sent", keys),
        await send(k, client, "half", half, f=4),
        await send(k, client, "level", f"{keys}DELAY\x0118\x02"),
        await send(k, client, "timer", keys + due(due_ms)),
        await send(k, client, "trace", keys, b=TRACE),
    ]


@dialled
async def tools_read_the_same(k: Desk, client: RemotingClient, sent: list[Command]) -> None:
    topics = [TOPIC, HALF, "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", TRACE]
    names = [b"sent", b"half", b"level", b"timer", b"trace"]
    assert [await viewed(client, each) for each in sent] == list(zip(topics, names, strict=True))
    for topic, name in ((TOPIC, b"sent"), (HALF, b"half"), (TRACE, b"trace")):
        assert name in await found(client, topic, "order7")
    assert await found(client, META_TOPIC, "order7") == []
    (record,) = await pulled(client, **OURS, queueId=0)
    ident = OffsetId(record.store_host, record.physical_offset)
    assert str(ident) == sent[0].fields["msgId"], "tools compute the id that the producer got"
    fresh = await send(k, client, "fresh")
    place = OffsetId.parse(fresh.fields["msgId"])
    assert place is not None
    assert int.from_bytes(place.store_host[-4:]) == port_of(k.live)


@dialled
async def created_again(k: Desk, client: RemotingClient) -> None:
    for name in ("old", "new"):
        await deleted_topic(client)
        k.topic(TOPIC)
        await send(k, client, name)


@dialled
async def a_group_starts_at_its_first_message(k: Desk, client: RemotingClient, _: Any) -> None:
    answer = await client.call(Request.QUERY_CONSUMER_OFFSET, **OURS, queueId=0)
    assert await read(client, offset=int(answer.fields["offset"])) == [b"new"]


# -- offsets --------------------------------------------------------------------------------------


async def behind(client: RemotingClient, group: str) -> dict[str, int]:
    """Return how far a group is behind, by topic, as Apache's tools show it."""
    answer = await client.call(Admin.GET_CONSUME_STATS, consumerGroup=group)
    rows: dict[QueueKey, dict[str, int]] = loads(answer.body)["offsetTable"]
    return {key.topic: row["brokerOffset"] - row["consumerOffset"] for key, row in rows.items()}


async def beat(client: RemotingClient, version: int, **topics: str) -> None:
    """Send the heartbeats of a group, and of one that reads by broadcast."""
    await client.call(Request.HEART_BEAT, heartbeat("c1", GROUP, version, **topics))
    body = heartbeat("c2", "all", version, **{TOPIC: "*"})
    await client.call(Request.HEART_BEAT, body.replace(b"CLUSTERING", b"BROADCASTING"))


@dialled
async def left(k: Desk, client: RemotingClient) -> None:
    for topic in (TOPIC, "left"):
        k.topic(topic)
        for n in range(3):
            await send(k, client, f"{topic}-{n}", b=topic)
    await beat(client, 1, **{TOPIC: "*", "left": "*"})
    await commit(client, TOPIC, 1)
    await commit(client, "left", 1)
    assert len(await pulled(client, consumerGroup="all", topic=TOPIC, queueId=0, sysFlag=0)) == 3
    assert await behind(client, GROUP) == {TOPIC: 2, "left": 2}
    await beat(client, 2, **{TOPIC: "*"})
    assert (await behind(client, GROUP), await behind(client, "all")) == ({TOPIC: 2}, {})


@dialled
async def only_what_is_read_is_behind(k: Desk, client: RemotingClient, _: Any) -> None:
    await beat(client, 3, **{TOPIC: "*"})
    assert (await behind(client, GROUP), await behind(client, "all")) == ({TOPIC: 2}, {})
    await send(k, client, "new")
    assert (await behind(client, GROUP), await behind(client, "all")) == ({TOPIC: 3}, {})


@dialled
async def reset_forward(k: Desk, client: RemotingClient) -> None:
    k.topic(TOPIC)
    k.group(GROUP)
    for n in range(3):
        await send(k, client, f"{n}")
    await commit(client, TOPIC, 1)
    fields = {"topic": TOPIC, "group": GROUP, "timestamp": -HOUR, "isForce": "true"}
    answer = await client.call(Admin.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
    assert answer.code == Reply.SUCCESS, answer


@dialled
async def it_is_at_the_end(k: Desk, client: RemotingClient, _: Any) -> None:
    assert await behind(client, GROUP) == {TOPIC: 0}


ROWS = {
    "a message in flight": Row(in_flight, visible_in_its_own_time),
    "a delay level": Row(level, due_after_its_own_time),
    "timers": Row(timers, a_new_timer_does_not_wait_behind_them),
    "messages sent again after a recall": Row(
        recalled, what_is_sent_again_arrives_once, {"message_deduplication_enable": True}
    ),
    "a topic of a deleted one's name": Row(successor, nothing_old_arrives),
    "a topic that was created again": Row(created_again, a_group_starts_at_its_first_message),
    "dead letters of a deleted topic": Row(buried, only_other_letters_are_read),
    "a deleted group": Row(deleted, stays_deleted),
    "messages that wait for a retry": Row(retrying, changes_and_acknowledgements_are_refused),
    "a time that was shortened": Row(shortened, the_old_handle_is_refused),
    "a batch popped in order": Row(popped_in_order, only_what_is_not_acknowledged_dies),
    "a locked queue": Row(pulled_in_order, another_client_goes_on),
    "messages that tools read": Row(shown, tools_read_the_same, {"trace_topic_enable": True}),
    "a topic that a group has left": Row(left, only_what_is_read_is_behind),
    "a reset to a negative time": Row(reset_forward, it_is_at_the_end),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("place", PLACES)
async def test_it_holds(tmp_path: Path, row: str, place: str) -> None:
    async with asyncio.timeout(60):
        await check(tmp_path, ROWS[row], place)


@pytest.mark.parametrize("place", PLACES)
async def test_topics_are_created_by_the_route_of_the_template(tmp_path: Path, place: str) -> None:
    async with classic_nameserver() as (address, port):

        @dialled
        async def created(k: Desk, client: RemotingClient) -> None:
            await wait_for_routes(port, ["TBW102"])
            await send(k, client, "1", b="new", d=3)

        @dialled
        async def route_leads_here(k: Desk, client: RemotingClient, _: Any) -> None:
            await wait_for_routes(port, ["TBW102", "new"])
            async with RemotingClient(port) as names:
                route = await names.call(Request.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
            (broker,) = json.loads(route.body)["brokerDatas"]
            assert broker["brokerAddrs"]["0"] == k.live.bound.remoting
            assert k.node.metadata.topics["new"].write_queues == 3
            await send(k, client, "2", b="new")
            await send(k, client, "3", b="newer", d=2)
            assert await read(client, "new") == [b"1", b"2"]
            assert await read(client, "newer") == [b"3"]

        options = {"namesrv_addr": address, "auto_create_topic_enable": True}
        await check(tmp_path, Row(created, route_leads_here, options), place)
