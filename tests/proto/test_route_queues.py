"""Queues of a route, encoded without a message object for each."""

from __future__ import annotations

import pytest

from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.proto.route_queues import check_repeated, encode_assignments, encode_queues

QUEUE = v2.MessageQueue(
    topic=v2.Resource(name="t", resource_namespace="ns"),
    permission=v2.READ_WRITE,
    broker=v2.Broker(name="b", endpoints=v2.Endpoints(addresses=[v2.Address(host="h", port=1)])),
    accept_message_types=[v2.NORMAL, v2.FIFO],
)
IDS = (0, 1, 127, 128, 1_023, 20_000)


def with_id(queue_id: int) -> v2.MessageQueue:
    queue = v2.MessageQueue()
    queue.CopyFrom(QUEUE)
    queue.id = queue_id
    return queue


def test_encoded_queues_equal_message_objects() -> None:
    found = v2.QueryRouteResponse.FromString(encode_queues(QUEUE, IDS))
    assert list(found.message_queues) == [with_id(queue_id) for queue_id in IDS]


def test_encoded_assignments_equal_message_objects() -> None:
    found = v2.QueryAssignmentResponse.FromString(encode_assignments(QUEUE, IDS))
    assert [one.message_queue for one in found.assignments] == [with_id(n) for n in IDS]


def test_a_long_namespace_or_address_list_is_refused() -> None:
    check_repeated(v2.Resource(name="t" * 127, resource_namespace="n" * 255))
    with pytest.raises(WireError) as refusal:
        check_repeated(v2.Resource(name="t", resource_namespace="n" * 1_000))
    assert refusal.value.code == v2.ILLEGAL_TOPIC
    addresses = [v2.Address(host=f"10.0.0.{n}", port=8081) for n in range(100)]
    with pytest.raises(WireError) as refusal:
        check_repeated(v2.Resource(name="t"), v2.Endpoints(addresses=addresses))
    assert refusal.value.code == v2.ILLEGAL_ACCESS_POINT
