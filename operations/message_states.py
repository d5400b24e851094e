"""The state of one message in each consumer group.

The index finds the message, its retry copies and its dead letters by the message id; the offsets of
the consumer groups say who is past it. A broker does not record single deliveries (unless
`traceTopicEnable` is on): that the offset of a group is past a message does not tell whether a
consumer acknowledged it, a filter left it out, or a reset skipped it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..client.message import Message, read_message
from ..proto import paths, v1, v2
from .broker_groups import BrokerGroups
from .errors import CliError

_DEAD_LETTERS = "%DLQ%"
#: The state in a group of which only the offset is known.
PAST = "offset is past it"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message and the broker group that has it, as `BrokerGroups` names it."""

    broker: str
    message: Message


@dataclass(frozen=True, slots=True)
class Copies:
    """What a consumer group has of the message besides the original."""

    #: The newest retry copy, and whether the group is past it.
    retry: Message | None = None
    retry_is_past: bool = False
    dead_letter: Message | None = None


def states(
    groups: BrokerGroups, stored: StoredMessage, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each of these groups that consumes the topic. Raises CliError."""
    rows = []
    message = stored.message
    for name in names:
        request = v1.DescribeGroupRequest(name=name)
        (outcome,) = groups.each(
            paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse, [stored.broker]
        )
        if outcome.answer is None:
            if outcome.absent:
                continue
            raise outcome.error or CliError("no answer")
        queues = outcome.answer.queues
        own = [
            queue
            for queue in queues
            if (queue.topic, queue.queue_id) == (message.topic, message.queue_id)
        ]
        if own:
            rows.append(_row(name, message, own[0], _copies(groups, stored, name, queues)))
    return rows


def _copies(
    groups: BrokerGroups, stored: StoredMessage, group: str, queues: Sequence[v1.GroupQueueStatus]
) -> Copies:
    message_id = stored.message.message_id
    dead = newest(groups, stored.broker, _DEAD_LETTERS + group, message_id)
    last: Message | None = None
    past = False
    for topic in dict.fromkeys(queue.topic for queue in queues if queue.retry):
        copy = newest(groups, stored.broker, topic, message_id)
        if copy is not None and (last is None or copy.stored_ms > last.stored_ms):
            last = copy
            past = any(
                copy.offset < queue.consumer_offset
                for queue in queues
                if (queue.topic, queue.queue_id) == (topic, copy.queue_id)
            )
    return Copies(last, past, dead)


def newest(groups: BrokerGroups, broker: str, topic: str, message_id: str) -> Message | None:
    """Return the newest message of a topic with a unique key; None also without the topic."""
    request = v1.QueryMessagesRequest(topic=topic, unique_key=message_id, count=1)
    (outcome,) = groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse, [broker])
    if outcome.error is not None and not outcome.absent:
        raise outcome.error
    messages = outcome.answer.messages if outcome.answer is not None else ()
    return read_message(v2.Message.FromString(messages[-1].message)) if messages else None


def _row(
    group: str, message: Message, queue: v1.GroupQueueStatus, copies: Copies
) -> dict[str, Any]:
    state, attempts, at_ms = state_of(message, queue, copies)
    return {
        "group": group,
        "state": state,
        "attempts": attempts,
        "at_ms": at_ms,
        "consumer_offset": queue.consumer_offset,
        "in_flight_of_queue": queue.in_flight,
    }


def state_of(
    message: Message, queue: v1.GroupQueueStatus, copies: Copies
) -> tuple[str, int | None, int]:
    """Return the state in a group, the known attempts, and the time of a copy (0: none). Pure."""
    if copies.dead_letter is not None:
        dead = copies.dead_letter
        return "dead letter", dead.attempt, dead.stored_ms
    if copies.retry is not None:
        retry = copies.retry
        state = "consumed after a retry" if copies.retry_is_past else "retrying"
        return state, retry.attempt, retry.stored_ms
    if message.offset < queue.consumer_offset:
        return PAST, None, 0
    if queue.in_flight:
        return "in flight or waiting", None, 0
    return "waiting", None, 0
