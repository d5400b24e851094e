"""Topics and groups: creation, names, types, and routes.

Rows of the feature table from "Topic auto-create" to "System topics", "Group disabled",
"Assignment"; the pitfalls of routes (docs/formats/broker-semantics.md, section 8;
docs/formats/grpc-api.md, sections 4.2, 5.1 and 5.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cometmq.proto import paths, v1, v2
from cometmq.tests.features.client import MIXED, Client, resource

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def route(client: Client, topic: str) -> v2.QueryRouteResponse:
    """Call QueryRoute as a client does, with the address that it dialled."""
    request = v2.QueryRouteRequest(topic=resource(topic))
    host, _, port = client.wire.endpoints.rpartition(":")
    request.endpoints.addresses.add(host=host, port=int(port))
    request.endpoints.scheme = v2.IPv4
    answer: v2.QueryRouteResponse = await client.call(
        paths.QUERY_ROUTE, request, v2.QueryRouteResponse
    )
    return answer


async def assigned(client: Client, topic: str, group: str) -> v2.QueryAssignmentResponse:
    """Call QueryAssignment."""
    request = v2.QueryAssignmentRequest(topic=resource(topic), group=resource(group))
    answer: v2.QueryAssignmentResponse = await client.call(
        paths.QUERY_ASSIGNMENT, request, v2.QueryAssignmentResponse
    )
    return answer


@pytest.mark.feature("Topic auto-create")
@pytest.mark.pitfall(8, 10, 28)
async def test_a_topic_that_was_not_created_is_not_found(client: Client) -> None:
    unknown = client.name("unknown")
    answer = await route(client, unknown)
    assert (answer.status.code, len(answer.message_queues)) == (v2.TOPIC_NOT_FOUND, 0)
    assert await client.refused(unknown) == v2.TOPIC_NOT_FOUND
    assert (await client.receive(unknown, client.name("group"))).code == v2.TOPIC_NOT_FOUND
    assert (await assigned(client, unknown, "g")).status.code == v2.TOPIC_NOT_FOUND


@pytest.mark.feature("Topic auto-create")
async def test_groups_are_created_at_first_use(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    await client.one(topic, group)
    request = v1.DescribeGroupRequest(name=group)
    described = await client.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
    assert (described.code, described.group.max_attempts) == (v2.OK, 17)


@pytest.mark.feature("Type enforcement")
@pytest.mark.pitfall(38)
async def test_a_topic_accepts_only_messages_of_its_type(client: Client) -> None:
    later_ms = await client.now_ms() + 60_000
    ways: dict[int, dict[str, Any]] = {
        v2.NORMAL: {},
        v2.FIFO: {"message_group": "g"},
        v2.DELAY: {"deliver_ms": later_ms},
        v2.TRANSACTION: {"message_type": v2.TRANSACTION},
    }
    mixed = await client.topic(MIXED, what="mixed")
    for kind, own in ways.items():
        topic = await client.topic(kind, what=f"type{kind}")
        for way, fields in ways.items():
            if way == kind:
                await client.send(topic, **{"message_type": kind, **fields})
            else:
                code = await client.refused(topic, **{"message_type": way, **fields})
                assert code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        await client.send(mixed, **{"message_type": kind, **own})
    fifo = client.name(f"type{v2.FIFO}")
    # The properties determine the type, not the enum: a message with a message group is FIFO.
    await client.send(fifo, message_group="g", message_type=v2.NORMAL)
    code = await client.refused(fifo, message_type=v2.FIFO)
    assert code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.feature("Topic name rule")
async def test_topic_names_are_validated(client: Client) -> None:
    for name in ("a.b", "a b", "", "x" * 128, "größe", "a/b"):
        assert await client.refused(name) == v2.ILLEGAL_TOPIC
        assert (await route(client, name)).status.code == v2.ILLEGAL_TOPIC
        request = v1.CreateTopicRequest(name=name)
        made = await client.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
        assert made.code == v2.ILLEGAL_TOPIC
    for name in ("x" * 127, "a|b%c_d-E9"):
        assert await client.refused(name) == v2.TOPIC_NOT_FOUND


@pytest.mark.feature("Group name rule")
async def test_group_names_are_validated(client: Client) -> None:
    topic = await client.topic()
    for name in ("a b", "", "x" * 121, "CID_RMQ_SYS_x", "a.b"):
        assert (await client.receive(topic, name)).code == v2.ILLEGAL_CONSUMER_GROUP
        assert await client.heartbeat(v2.SIMPLE_CONSUMER, name) == v2.ILLEGAL_CONSUMER_GROUP
    await client.send(topic, "a")
    await client.one(topic, "x" * 120)


@pytest.mark.feature("System topics")
async def test_system_topics_are_refused_to_clients(client: Client) -> None:
    for name in (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
    ):
        assert await client.refused(name) == v2.ILLEGAL_TOPIC
        assert (await client.receive(name, client.name("g"))).code == v2.ILLEGAL_TOPIC
        assert (await route(client, name)).status.code == v2.ILLEGAL_TOPIC
    request = v1.ListTopicsRequest()
    listed = await client.call(paths.LIST_TOPICS, request, v1.ListTopicsResponse)
    assert not [one.name for one in listed.topics if one.name.startswith("rmq_sys_")]


@pytest.mark.feature("Group disabled")
async def test_a_disabled_group_receives_nothing(client: Client) -> None:
    """Disabled by an operator: the code is the reference's, which has no better one."""
    topic, group = await client.topic(), await client.group(consume_enable=False)
    await client.send(topic, "a")
    answer = await client.receive(topic, group)
    assert (answer.code, answer.bodies) == (v2.INTERNAL_SERVER_ERROR, [])
    await client.group(consume_enable=True)
    assert (await client.one(topic, group)).body == b"a"


@pytest.mark.feature("Assignment")
@pytest.mark.pitfall(34)
async def test_an_assignment_contains_the_queues_of_a_push_consumer(client: Client) -> None:
    topic = await client.topic(queues=3)
    plain = await assigned(client, topic, client.name("plain"))
    assert [one.message_queue.id for one in plain.assignments] == [-1]
    ordered = await assigned(client, topic, await client.group(orderly=True))
    assert [one.message_queue.id for one in ordered.assignments] == [0, 1, 2]
    for one in (*plain.assignments, *ordered.assignments):
        assert one.message_queue.broker.id == 0 and one.message_queue.broker.endpoints.addresses


@pytest.mark.pitfall(26, 27, 30, 31)
async def test_a_route_is_valid_for_every_client(client: Client) -> None:
    topic = await client.topic(queues=4)
    answers = [await route(client, topic) for _ in range(3)]
    assert len({answer.SerializeToString(deterministic=True) for answer in answers}) == 1
    queues = answers[0].message_queues
    assert [queue.id for queue in queues] == [0, 1, 2, 3]
    for queue in queues:
        assert queue.permission == v2.READ_WRITE
        assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
        endpoints = queue.broker.endpoints
        assert endpoints.scheme == v2.IPv4
        named = [f"{one.host}:{one.port}" for one in endpoints.addresses]
        assert named == [client.wire.endpoints], "the address that it dialled"


@pytest.mark.pitfall(29)
@pytest.mark.parametrize("language", ["JAVA", "PYTHON"])
async def test_routes_contain_the_message_types_of_a_queue(client: Client, language: str) -> None:
    accepted = {
        v2.NORMAL: [v2.NORMAL],
        v2.FIFO: [v2.FIFO],
        v2.DELAY: [v2.DELAY],
        v2.TRANSACTION: [v2.TRANSACTION],
        v2.PRIORITY: [v2.PRIORITY],
        MIXED: [v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION],
    }
    async with Client(client.wire.endpoints, client.mark, language) as asking:
        for kind, kinds in accepted.items():
            topic = await client.topic(kind, what=f"type{kind + 1}")
            (queue,) = (await route(asking, topic)).message_queues
            assert list(queue.accept_message_types) == kinds


@pytest.mark.feature("Topic auto-create")
async def test_topics_are_created_at_first_use_if_enabled(
    alone: Callable[..., Any],
) -> None:
    async with alone(auto_create_topic_enable=True) as (_, client):
        assert (await route(client, "wanted")).status.code == v2.OK
        await client.send("wanted", "a")
        assert (await client.one("wanted", "g")).body == b"a"
