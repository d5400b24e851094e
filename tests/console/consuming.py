"""Consumers of the shared cluster: messages that are held, and messages that are given up."""

from __future__ import annotations

import cometmq
from cometmq.operations.connection import Connection
from cometmq.operations.links import Links
from cometmq.proto import paths, v2
from cometmq.tests.harness.cluster import Cluster, wait_until


def receive(cluster: Cluster, topic: str, group: str, count: int) -> list[cometmq.Message]:
    """Receive messages without acknowledging them."""
    found: list[cometmq.Message] = []
    with cometmq.sync.SimpleConsumer(cluster.endpoints, group=group, topics=topic) as consumer:

        def all_came() -> bool:
            found.extend(consumer.receive(count - len(found), invisible_for=3600, wait=1))
            return len(found) >= count

        wait_until("the messages are received", all_came)
    return found


def dead_letters(cluster: Cluster, topic: str, group: str, count: int) -> None:
    """Receive as many messages and send each to the dead letters of the group."""
    with Connection(cluster.endpoints, Links()) as connection:
        for message in receive(cluster, topic, group, count):
            request = v2.ForwardMessageToDeadLetterQueueRequest(
                group=v2.Resource(name=group),
                topic=v2.Resource(name=topic),
                receipt_handle=message.receipt_handle,
                message_id=message.message_id,
                delivery_attempt=1,
                max_delivery_attempts=1,
            )
            answer = v2.ForwardMessageToDeadLetterQueueResponse
            connection.call(paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE, request, answer)
