"""How far consumer groups are: queue by queue, and summed up for a group.

Lag counts messages that a group has not consumed: those it has not received, those in flight, and
those that wait in its retry topics (broker semantics, section 11.2). A consumer offset alone does not
tell, because it may pass messages in flight that the journal has; where this node has the state of a
queue, that counts. Reads everything, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...proto import v1
from ..pop.dead_letter import dead_letter_topic
from ..pop.retry import queue_topics

if TYPE_CHECKING:
    from ..clients.registry import Client
    from ..node import Node

_RETRY_PREFIX = "%RETRY%"
NOT_CONSUMED = -1
"""Offset of a group in a queue where it has not consumed yet."""


def all_group_queues(node: Node) -> Iterator[tuple[str, v1.GroupQueueStatus]]:
    """Group and queue for everything that was ever consumed, and for the retry topics beside it."""
    node.pump.catch_up()
    pairs: set[tuple[str, str]] = set()
    for topic, group, queue_id, offset in node.offsets:
        pairs.add((topic, group))
        yield group, queue_row(node, topic, group, queue_id, offset)
    for topic, group in pairs:
        if topic.startswith(_RETRY_PREFIX):
            continue
        for name in queue_topics(topic, group)[1:]:
            known = node.metadata.topics.get(name)
            if known is not None and (name, group) not in pairs:
                for queue_id in range(known.read_queues):
                    yield group, queue_row(node, name, group, queue_id, NOT_CONSUMED)


def group_queues(node: Node, group: str, topic: str = "") -> list[v1.GroupQueueStatus]:
    """The queues of one group, of one topic (with its retry topics) or of all."""
    wanted = queue_topics(topic, group) if topic else ()
    rows = [
        row
        for name, row in all_group_queues(node)
        if name == group and (not topic or row.topic in wanted)
    ]
    return sorted(rows, key=lambda row: (row.retry, row.topic, row.queue_id))


def queue_row(
    node: Node, topic: str, group: str, queue_id: int, offset: int
) -> v1.GroupQueueStatus:
    """One queue, as one group sees it; `offset` is its consumer offset."""
    store = node.store
    first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    progress = node.pop.progress(topic, group, queue_id)
    read, in_flight = progress if progress is not None else (offset, 0)
    return v1.GroupQueueStatus(
        topic=topic,
        queue_id=queue_id,
        consumer_offset=max(offset, 0),
        max_offset=end,
        lag=max(0, end - max(read, first)) + in_flight,
        in_flight=in_flight,
        broker=node.config.broker_name,
        retry=topic.startswith(_RETRY_PREFIX),
        min_offset=first,
    )


def group_progress(
    node: Node, group: str, rows: Iterable[v1.GroupQueueStatus], clients: int
) -> v1.GroupProgress:
    """What the rows of one group come to."""
    progress = v1.GroupProgress(
        dead_letters=held_messages(node, dead_letter_topic(group)), clients=clients
    )
    for row in rows:
        progress.lag += row.lag
        progress.in_flight += row.in_flight
        if row.retry:
            progress.retries += row.lag
    return progress


def all_progress(node: Node) -> dict[str, v1.GroupProgress]:
    """Of every group of the tables, in one pass."""
    rows: dict[str, list[v1.GroupQueueStatus]] = {}
    for group, row in all_group_queues(node):
        rows.setdefault(group, []).append(row)
    clients = Counter(client.group for client in _alive(node))
    return {
        group: group_progress(node, group, rows.get(group, ()), clients[group])
        for group in node.metadata.groups
    }


def clients_of(node: Node, group: str) -> list[Client]:
    """Its consumers that were heard of lately."""
    return [client for client in _alive(node) if client.group == group]


def held_messages(node: Node, topic: str) -> int:
    """Messages that can be read in a topic."""
    known = node.metadata.topic(topic)
    if known is None:
        return 0
    store = node.store
    return sum(
        store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
        for queue_id in range(max(known.read_queues, known.write_queues))
    )


def _alive(node: Node) -> Iterator[Client]:
    now_ns = node.clock.steady_ns()
    return (client for client in node.clients if node.clients.alive(client.client_id, now_ns))
