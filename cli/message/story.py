"""The work of `cometmq message story`: what the cluster knows about one message."""

from typing import Any

from ...client.message import Message, read_message
from ...operations.broker_groups import BrokerGroups, answers
from ...operations.errors import CliError, Exit
from ...operations.message_states import StoredMessage, newest
from ...proto import paths, v1, v2
from ..cluster.broker_groups import planned
from ..times import time_text

_TIMER_TOPIC = "rmq_sys_wheel_timer"
_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
#: One call for each group: beyond it, name the groups.
GROUPS_MAX = 200


def find(groups: BrokerGroups, message_id: str, topic: str) -> StoredMessage | None:
    """Return the message by its id; by an offset id without a topic.

    Broker groups that do not answer are named on stderr. Raises CliError.
    """
    request = v1.QueryMessagesRequest(topic=topic, message_id=message_id, count=1)
    outcomes = groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
    for broker, answer in planned(outcomes):
        for entry in answer.messages:
            return StoredMessage(broker, read_message(v2.Message.FromString(entry.message), broker))
    return None


def broker_name(groups: BrokerGroups, stored: StoredMessage) -> str:
    """Return the name of the broker group that has the message. Raises CliError."""
    if stored.broker:
        return stored.broker
    request = v1.DescribeClusterRequest()
    ((_, answer),) = answers(
        groups.each(paths.DESCRIBE_CLUSTER, request, v1.DescribeClusterResponse, [""])
    )
    return next((member.replica.group for member in answer.members), "")


def waiting_place(groups: BrokerGroups, message_id: str) -> str:
    """Return where a message waits that is not in its topic yet; "" if nowhere. Raises CliError."""
    for broker in groups.names:
        timer = newest(groups, broker, _TIMER_TOPIC, message_id)
        if timer is not None:
            at = time_text(timer.deliver_ms, "seconds")
            return f"It waits for its delivery time ({at}), unless it was recalled."
        if newest(groups, broker, _HALF_TOPIC, message_id) is not None:
            return "Its transaction is not committed."
    return ""


def group_names(groups: BrokerGroups, stored: StoredMessage) -> list[str]:
    """Return the consumer groups of the broker group. Raises CliError."""
    outcomes = groups.among([stored.broker]).pages(
        paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse, "groups"
    )
    return [
        config.name for _, pages in answers(outcomes) for page in pages for config in page.groups
    ]


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


def check_found(stored: StoredMessage | None, waits: str, message_id: str) -> StoredMessage:
    """Return the message. Raises CliError with what is known of one that is not in its topic."""
    if stored is not None:
        return stored
    if waits:
        raise CliError(f"Message {message_id} is not in its topic yet. {waits}", Exit.UNHEALTHY)
    raise CliError(
        f"No message {message_id} found: it was not stored, retention has deleted it, or its topic"
        " is another one (--topic).",
        Exit.NOT_FOUND,
    )
