"""Pop mode of classic consumers over the pop services; assignment of queues by the broker."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.classic.assignment import POP_TOPICS, pops, share, with_mode
from cometmq.broker.metadata.tables import PERM_WRITE, Topic
from cometmq.remoting.bare_json import loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import Record
from cometmq.tests.broker.classic_wire import (
    GROUP,
    TOPIC,
    classic,
    heartbeat,
    message,
    port_of,
    records,
)
from cometmq.tests.broker.desk import Desk
from cometmq.tests.broker.live import create_group, create_topic, until
from cometmq.tests.remoting.client import RemotingClient


def popping(**more: Any) -> Command:
    fields = {
        **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32},
        **{"invisibleTime": 60_000, "pollTime": 5_000, "bornTime": 0, "initMode": 0},
        **{"expType": "TAG", "exp": "*", "order": "false", **more},
    }
    return Command(Request.POP_MESSAGE, {name: str(value) for name, value in fields.items()})


async def popped(client: RemotingClient, **more: Any) -> list[Record]:
    answer = await client.post(popping(**more))
    assert (answer.code, answer.remark) == (Reply.SUCCESS, "FOUND")
    return records(answer.body)


def named(record: Record, **more: object) -> dict[str, object]:
    handle = record.properties_dict["POP_CK"]
    queue_id, offset = handle.split(" ")[6:8]
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "offset": offset}
    return {**fields, "extraInfo": handle, **more}


def batch(*found: Record, **more: str) -> bytes:
    """Return the body that acknowledges messages of one batch."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC} | more
    bits, entries = 0, []
    for record in found:
        start, pop_ms, invisible_ms, revive, kind, _, queue, offset, _ = record.properties_dict[
            "POP_CK"
        ].split(" ")
        bits |= 1 << int(offset) - int(start)
        entries = [
            {
                **{"c": fields["consumerGroup"], "t": fields["topic"], "r": kind},
                **{"so": int(start), "q": int(queue), "rq": int(revive)},
                **{"pt": int(pop_ms), "it": int(invisible_ms)},
                "b": base64.b64encode(bits.to_bytes(64, "little")).decode(),
            }
        ]
    return json.dumps({"brokerName": "broker-a", "acks": entries}).encode()


async def test_popped_messages_are_acknowledged_by_their_handles(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        for n in range(4):
            await client.post(message(b"%d" % n, f"UNIQ_KEY\x01id{n}\x02", e=n % 2))
        answer = await client.post(popping())
        found = records(answer.body)
        assert {each.body for each in found} == {b"0", b"1", b"2", b"3"}
        infos = dict(
            part.split(" ")[1::1][:2] for part in answer.fields["msgOffsetInfo"].split(";")
        )
        assert infos == {"0": "0,1", "1": "0,1"}
        assert {"0 0 0", "0 1 0"} == set(answer.fields["startOffsetInfo"].split(";"))
        first = found[0].properties_dict["POP_CK"].split(" ")
        assert first[1:3] == [answer.fields["popTime"], answer.fields["invisibleTime"]]
        assert first[3] == answer.fields["reviveQid"]
        assert answer.fields["restNum"] == "0"
        for record in found[:3]:
            done = await client.call(Request.ACK_MESSAGE, **named(record))
            assert done.code == Reply.SUCCESS
        assert sum(live.node.pop.in_flight(TOPIC, GROUP, queue) for queue in (0, 1)) == 1
        done = await client.call(Request.ACK_MESSAGE, **named(found[3], extraInfo="x"))
        assert done.code == Reply.NO_MESSAGE


async def test_a_batch_is_acknowledged_by_bits(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        for n in range(10):
            await client.post(message(b"%d" % n, f"UNIQ_KEY\x01id{n}\x02"))
        found = await popped(client)
        answer = await client.call(Request.BATCH_ACK_MESSAGE, batch(*found[:9]))
        assert (answer.code, answer.remark) == (Reply.SUCCESS, None)
        assert live.node.pop.in_flight(TOPIC, GROUP, 1) == 1
        assert (await client.call(Request.BATCH_ACK_MESSAGE, batch())).code == Reply.NO_MESSAGE
        document = json.loads(batch(found[0]))
        (entry,) = document["acks"]
        for wrong in ({"b": "!"}, {"so": "x"}, {"b": "A" * 1_000}):
            body = json.dumps({**document, "acks": [{**entry, **wrong}]}).encode()
            assert (await client.call(Request.BATCH_ACK_MESSAGE, body)).code == 1


async def test_a_batch_is_refused_only_if_none_of_it_is_acknowledged(tmp_path: Path) -> None:
    """A batch has one code: of one that was acknowledged in part, all would be repeated."""
    async with classic(tmp_path) as (live, client):
        await client.post(message(b"1"))
        (record,) = await popped(client)
        group, topic, none = ({"consumerGroup": "none"}, {"topic": "none"}, {"topic": "a b"})
        foreign = [batch(record, **more) for more in (group, topic, none)]
        entries = [entry for body in foreign for entry in json.loads(body)["acks"]]
        body = json.dumps({"brokerName": "broker-a", "acks": entries}).encode()
        answer = await client.call(Request.BATCH_ACK_MESSAGE, body)
        assert answer.code == Reply.NO_MESSAGE
        assert (answer.remark or "").startswith("3 of 3 messages are not acknowledged: ")
        entries += json.loads(batch(record))["acks"]
        body = json.dumps({"brokerName": "broker-a", "acks": entries}).encode()
        for _ in range(2):
            answer = await client.call(Request.BATCH_ACK_MESSAGE, body)
            assert answer.code == Reply.SUCCESS
            assert (answer.remark or "").startswith("3 of 4 messages are not acknowledged: ")
        assert live.node.pop.in_flight(TOPIC, GROUP, 1) == 0


async def test_a_changed_invisible_time_brings_the_message_again(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        await client.post(message(b"again"))
        (record,) = await popped(client)
        assert (record.topic, record.reconsume_times) == (TOPIC, 0)
        changed = await client.call(
            Request.CHANGE_MESSAGE_INVISIBLETIME, **named(record, invisibleTime=0)
        )
        assert changed.code == Reply.SUCCESS
        assert changed.fields.keys() == {"popTime", "invisibleTime", "reviveQid"}
        (again,) = await popped(client, pollTime=20_000)
        assert (again.topic, again.body, again.reconsume_times) == (TOPIC, b"again", 1)
        retry = f"%RETRY%{GROUP}_{TOPIC}" if "1" in again.properties_dict["POP_CK"] else TOPIC
        done = await client.call(Request.ACK_MESSAGE, **named(again, topic=retry))
        assert done.code == Reply.SUCCESS


@pytest.mark.parametrize("gone", ["deleted", "unreadable", "group deleted"])
async def test_the_handle_of_what_cannot_be_read_any_more_names_no_message(
    tmp_path: Path, gone: str
) -> None:
    async with classic(tmp_path) as (live, client):
        await client.post(message(b"1"))
        (record,) = await popped(client)
        meta_log = live.node.meta_log
        if gone == "deleted":
            meta_log.delete_topic(TOPIC)
        elif gone == "unreadable":
            meta_log.write_topic(Topic(TOPIC, 2, 2, perm=PERM_WRITE))
        else:
            meta_log.delete_group(GROUP, keep_offsets=False)
        for code in (Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME):
            answer = await client.call(code, **named(record, invisibleTime=1_000))
            assert (answer.code, answer.fields) == (Reply.NO_MESSAGE, {})


async def test_a_pop_waits_for_a_message_and_ends_with_its_client(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        waiting = client.post(popping(pollTime=20_000))
        await until(lambda: live.node.pop.waiting == 1)
        await client.post(message(b"late"))
        answer = await asyncio.wait_for(waiting, 60)
        assert [each.body for each in records(answer.body)] == [b"late"]
        async with RemotingClient(port_of(live)) as other:
            other.post(popping(pollTime=20_000))
            await until(lambda: live.node.pop.waiting == 1)
        await until(lambda: live.node.pop.waiting == 0)


async def test_a_pop_that_does_not_wait_is_answered_at_once(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        answer = client.post(popping(pollTime=0))
        await until(lambda: answer.done() or live.node.pop.waiting)
        assert live.node.pop.waiting == 0
        assert (await answer).code == Reply.POLLING_TIMEOUT


async def test_a_refused_pop_has_a_code(tmp_path: Path) -> None:
    async with classic(tmp_path, pop_polling_size=1) as (live, client):
        client.post(popping(pollTime=20_000))
        await until(lambda: live.node.pop.waiting == 1)
        expected: dict[Reply, tuple[dict[str, object], ...]] = {
            Reply.INVALID_PARAMETER: ({"maxMsgNums": 33}, {"queueId": 0}),
            Reply.TOPIC_NOT_EXIST: ({"topic": "nowhere"},),
            Reply.POLLING_FULL: ({"pollTime": 20_000},),
            Reply.SUBSCRIPTION_PARSE_FAILED: ({"exp": "a >", "expType": "SQL92"},),
        }
        for code, cases in expected.items():
            for more in cases:
                assert (await client.post(popping(**more))).code == code


async def test_the_mode_of_a_group_decides_its_assignment(tmp_path: Path) -> None:
    def asking(client_id: str, topic: str = TOPIC, model: str = "CLUSTERING") -> bytes:
        return json.dumps(
            {
                **{"clientId": client_id, "consumerGroup": GROUP, "messageModel": model},
                **{"strategyName": "AVG", "topic": topic},
            }
        ).encode()

    async def assigned(client: RemotingClient, body: bytes) -> list[tuple[int, str]]:
        answer = await client.call(Request.QUERY_ASSIGNMENT, body)
        assert answer.code == Reply.SUCCESS
        found = loads(answer.body)["messageQueueAssignments"]
        return [(each["messageQueue"]["queueId"], each["mode"]) for each in found]

    async with classic(tmp_path) as (live, client), live.client() as wire:
        await create_group(wire, GROUP)
        await create_topic(wire, "wide", queues=5)
        for name in ("c1", "c2"):
            await client.call(Request.HEART_BEAT, heartbeat(name))
        assert await assigned(client, asking("c1", "wide")) == [(n, "PULL") for n in (0, 1, 2)]
        assert await assigned(client, asking("c2", "wide")) == [(n, "PULL") for n in (3, 4)]
        assert await assigned(client, asking("stranger", "wide")) == []
        every = await assigned(client, asking("c1", "wide", "BROADCASTING"))
        assert every == [(n, "PULL") for n in range(5)]
        mode = {"consumerGroup": GROUP, "topic": TOPIC, "mode": "POP", "popShareQueueNum": 0}
        body = json.dumps(mode).encode()
        assert (await client.call(Request.SET_MESSAGE_REQUEST_MODE, body)).code == Reply.SUCCESS
        assert await assigned(client, asking("c1")) == [(-1, "POP")]
        assert (await assigned(client, asking("c1", f"%RETRY%{GROUP}")))[0][1] == "PULL"
        for wrong, code in (
            ({"topic": "nowhere"}, Reply.TOPIC_NOT_EXIST),
            ({"topic": f"%RETRY%{GROUP}"}, Reply.NO_PERMISSION),
            ({"consumerGroup": "nobodys"}, Reply.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"mode": "OTHER"}, Reply.INVALID_PARAMETER),
        ):
            body = json.dumps({**mode, **wrong}).encode()
            assert (await client.call(Request.SET_MESSAGE_REQUEST_MODE, body)).code == code
        body = json.dumps({**mode, "mode": "PULL"}).encode()
        await client.call(Request.SET_MESSAGE_REQUEST_MODE, body)
        assert POP_TOPICS not in live.node.metadata.groups[GROUP].attributes


async def test_a_group_pops_until_no_message_waits_where_only_pops_look(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        one = Desk(live, live.node.acks, live.node.pulls)
        one.group(GROUP)
        await client.post(message(b"1"))
        await client.post(message(b"2"))
        mode = {"consumerGroup": GROUP, "topic": TOPIC, "popShareQueueNum": 0}
        pop, pull = (json.dumps({**mode, "mode": name}).encode() for name in ("POP", "PULL"))
        assert (await client.call(Request.SET_MESSAGE_REQUEST_MODE, pop)).code == Reply.SUCCESS
        got = await one.receive(TOPIC, GROUP, invisible_ms=10_000)
        assert len(got.handles) == 2
        one.ack(TOPIC, GROUP, got.handles[0])
        for _ in range(2):  # in flight, and in the retry topic
            answer = await client.call(Request.SET_MESSAGE_REQUEST_MODE, pull)
            assert answer.code == Reply.SYSTEM_ERROR
            assert (answer.remark or "").startswith("1 messages of topic orders are in flight or")
            one.advance(10_001)
            await until(lambda: f"%RETRY%{GROUP}_{TOPIC}" in live.node.metadata.topics)
            await one.dispatched()
        got = await one.receive(TOPIC, GROUP, invisible_ms=10_000)
        one.ack(TOPIC, GROUP, *got.handles)
        assert (await client.call(Request.SET_MESSAGE_REQUEST_MODE, pull)).code == Reply.SUCCESS


@given(st.integers(0, 100), st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=20))
def test_members_share_all_queues_without_overlap(queues: int, members: set[str]) -> None:
    shares = [share(queues, list(members), each) for each in members]
    assert sorted(queue for each in shares for queue in each) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_modes_are_kept_beside_other_attributes() -> None:
    found = with_mode(with_mode({"a": "b"}, "T1", pop=True), "T2", pop=True)
    assert found == {"a": "b", POP_TOPICS: "T1,T2"}
    assert pops(found, "T2")
    assert not pops(found, "T")
    assert with_mode(with_mode(found, "T1", pop=False), "T2", pop=False) == {"a": "b"}
