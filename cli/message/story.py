"""The work of `cometmq message story`: what the cluster knows about one message.

The index finds the message, its retry copies and its dead letters by the message id; the offsets of
the consumer groups say who is past it. A broker does not record single deliveries (unless
`traceTopicEnable` is on): that the offset of a group is past a message does not tell whether a
consumer acknowledged it, a filter left it out, or a reset skipped it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...client.message import Message, read_message
from ...proto import paths, v1, v2
from ..cluster.broker_groups import BrokerGroups, answers, planned
from ..errors import CliError, Exit
from ..times import time_text

_TIMER_TOPIC = "rmq_sys_wheel_timer"
_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_DEAD_LETTERS = "%DLQ%"
#: The state in a group of which only the offset is known.
PAST = "offset is past it"
#: One call for each group: beyond it, name the groups.
GROUPS_MAX = 200


@dataclass(frozen=True, slots=True)
class Found:
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


def find(groups: BrokerGroups, message_id: str, topic: str) -> Found | None:
    """Return the message by its id; by an offset id without a topic.

    Broker groups that do not answer are named on stderr. Raises CliError.
    """
    request = v1.QueryMessagesRequest(topic=topic, message_id=message_id, count=1)
    outcomes = groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
    for broker, answer in planned(outcomes):
        for found in answer.messages:
            return Found(broker, read_message(v2.Message.FromString(found.message), broker))
    return None


def broker_name(groups: BrokerGroups, found: Found) -> str:
    """Return the name of the broker group that has the message. Raises CliError."""
    if found.broker:
        return found.broker
    request = v1.DescribeClusterRequest()
    ((_, answer),) = answers(
        groups.each(paths.DESCRIBE_CLUSTER, request, v1.DescribeClusterResponse, [""])
    )
    return next((member.replica.group for member in answer.members), "")


def waiting_place(groups: BrokerGroups, message_id: str) -> str:
    """Return where a message waits that is not in its topic yet; "" if nowhere. Raises CliError."""
    for broker in groups.names:
        timer = _newest(groups, broker, _TIMER_TOPIC, message_id)
        if timer is not None:
            at = time_text(timer.deliver_ms, "seconds")
            return f"It waits for its delivery time ({at}), unless it was recalled."
        if _newest(groups, broker, _HALF_TOPIC, message_id) is not None:
            return "Its transaction is not committed."
    return ""


def group_names(groups: BrokerGroups, found: Found) -> list[str]:
    """Return the consumer groups of the broker group. Raises CliError."""
    outcomes = groups.among([found.broker]).pages(
        paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse, "groups"
    )
    return [
        config.name for _, pages in answers(outcomes) for page in pages for config in page.groups
    ]


def states(groups: BrokerGroups, found: Found, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each of these groups that consumes the topic. Raises CliError."""
    rows = []
    message = found.message
    for name in names:
        request = v1.DescribeGroupRequest(name=name)
        (outcome,) = groups.each(
            paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse, [found.broker]
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
            rows.append(_row(name, message, own[0], _copies(groups, found, name, queues)))
    return rows


def _copies(
    groups: BrokerGroups, found: Found, group: str, queues: Sequence[v1.GroupQueueStatus]
) -> Copies:
    message_id = found.message.message_id
    dead = _newest(groups, found.broker, _DEAD_LETTERS + group, message_id)
    newest: Message | None = None
    past = False
    for topic in dict.fromkeys(queue.topic for queue in queues if queue.retry):
        copy = _newest(groups, found.broker, topic, message_id)
        if copy is not None and (newest is None or copy.stored_ms > newest.stored_ms):
            newest = copy
            past = any(
                copy.offset < queue.consumer_offset
                for queue in queues
                if (queue.topic, queue.queue_id) == (topic, copy.queue_id)
            )
    return Copies(newest, past, dead)


def _newest(groups: BrokerGroups, broker: str, topic: str, message_id: str) -> Message | None:
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


def document(message: Message, broker: str) -> dict[str, Any]:
    """Return the message without its body."""
    return {
        "topic": message.topic,
        "broker": broker or None,
        "queue": message.queue_id,
        "offset": message.offset,
        "message_id": message.message_id,
        "type": message.type,
        "tag": message.tag,
        "keys": list(message.keys),
        "message_group": message.group,
        "size": len(message.body),
        "born_ms": message.born_ms,
        "stored_ms": message.stored_ms,
        "delivery_ms": message.deliver_ms,
    }


def check_found(found: Found | None, waits: str, message_id: str) -> Found:
    """Return the message. Raises CliError with what is known of one that is not in its topic."""
    if found is not None:
        return found
    if waits:
        raise CliError(f"Message {message_id} is not in its topic yet. {waits}", Exit.UNHEALTHY)
    raise CliError(
        f"No message {message_id} found: it was not stored, retention has deleted it, or its topic"
        " is another one (--topic).",
        Exit.NOT_FOUND,
    )
