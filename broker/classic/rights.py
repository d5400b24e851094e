"""Rights that the requests of classic clients need, by request code.

They are those of the gRPC protocol for the same effect: to send to a topic, to consume a topic in a
group. A retry topic belongs to its group: its consumers read it and send to it. A request that
names a message by its position needs the right on the topic of that message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...auth.model import GROUP, TOPIC, Action
from ...remoting.codes import Request
from ...store.format.properties import whole_number
from ..delay.recall_handle import decode_recall_handle
from ..pop.retry import is_retry_topic, origin_topic
from .bodies import items_of, json_object, name_of
from .clients import heard
from .queries import clients_record

if TYPE_CHECKING:
    from ...remoting.command import Command
    from ...store.message_store import MessageStore
    from ..access.rights import Need, Needs
    from ..transactions.service import Transactions

_PUB, _SUB, _GET = int(Action.PUB), int(Action.SUB), int(Action.GET)


def rights(
    store: MessageStore, transactions: Transactions
) -> dict[int, Callable[[Command], Needs]]:
    """Return the functions that read the needs of a request; `store` and `transactions` find the
    topic of what it names by position."""

    def view(command: Command) -> Needs:
        return _of_record(store, command.fields.get("offset", ""))

    def send_back(command: Command) -> Needs:
        group = _group(command.fields.get("group", ""))
        return (group, *_of_record(store, command.fields.get("offset", "")))

    def end(command: Command) -> Needs:
        fields = command.fields
        topic = transactions.topic_of(
            fields.get("tranStateTableOffset", ""), fields.get("msgId", "")
        )
        return (_send_to(topic),) if topic else ()

    return {
        **_BY_FIELDS,
        **{
            Request.VIEW_MESSAGE_BY_ID: view,
            Request.CONSUMER_SEND_MSG_BACK: send_back,
            Request.END_TRANSACTION: end,
        },
    }


def _group(name: str) -> Need:
    return GROUP, name, _SUB


def _read(topic: str) -> Need:
    return TOPIC, topic, _SUB


def _send_to(topic: str) -> Need:
    # Consumers send what they could not process to the retry topic of their group.
    return TOPIC, topic, _SUB if is_retry_topic(topic) else _PUB


def _of_record(store: MessageStore, offset: str) -> Needs:
    at = whole_number(offset)
    record = clients_record(store, at) if at is not None else None
    return (_read(record.topic),) if record is not None else ()


def _send(command: Command) -> Needs:
    return (_send_to(command.fields.get("topic", "")),)


def _send_by_letter(command: Command) -> Needs:
    return (_send_to(command.fields.get("b", "")),)


def _recall(command: Command) -> Needs:
    topic = command.fields.get("topic", "")
    handle = decode_recall_handle(command.fields.get("recallHandle", ""))
    named = {topic: None, **({} if handle is None else {handle.topic: None})}
    return tuple((TOPIC, each, _PUB) for each in named)


def _consume(command: Command) -> Needs:
    fields = command.fields
    return _group(fields.get("consumerGroup", "")), _read(fields.get("topic", ""))


def _consume_asked(command: Command) -> Needs:
    return _popped(command.fields.get("consumerGroup", ""), command.fields.get("topic", ""))


def _popped(group: str, topic: str) -> Needs:
    """Return the needs for a message that a group has popped from a topic or its retry topic."""
    return _group(group), _read(origin_topic(topic, group) if is_retry_topic(topic) else topic)


def _acknowledge(command: Command) -> Needs:
    needs: dict[Need, None] = {}
    for item in items_of(json_object(command.body), "acks"):
        needs.update(dict.fromkeys(_popped(name_of(item, "c"), name_of(item, "t"))))
    return tuple(needs)


def _read_topic(command: Command) -> Needs:
    return (_read(command.fields.get("topic", "")),)


def _member(command: Command) -> Needs:
    group = command.fields.get("consumerGroup")
    return (_group(group),) if group else ()


def _inspect(command: Command) -> Needs:
    return ((GROUP, command.fields.get("consumerGroup", ""), _GET),)


def _by_body(command: Command) -> Needs:
    """Return the groups and topics that a document names."""
    groups, topics = heard(command.body)
    return (*map(_group, groups), *map(_read, topics))


_BY_FIELDS: dict[int, Any] = {
    Request.SEND_MESSAGE: _send,
    Request.SEND_MESSAGE_V2: _send_by_letter,
    Request.SEND_BATCH_MESSAGE: _send_by_letter,
    Request.SEND_REPLY_MESSAGE: _send,
    Request.SEND_REPLY_MESSAGE_V2: _send_by_letter,
    Request.RECALL_MESSAGE: _recall,
    Request.PULL_MESSAGE: _consume,
    Request.LITE_PULL_MESSAGE: _consume,
    Request.QUERY_CONSUMER_OFFSET: _consume,
    Request.UPDATE_CONSUMER_OFFSET: _consume,
    Request.SEARCH_OFFSET_BY_TIMESTAMP: _read_topic,
    Request.GET_MAX_OFFSET: _read_topic,
    Request.GET_MIN_OFFSET: _read_topic,
    Request.GET_EARLIEST_MSG_STORETIME: _read_topic,
    Request.QUERY_MESSAGE: _read_topic,
    Request.UNREGISTER_CLIENT: _member,
    Request.GET_CONSUMER_LIST_BY_GROUP: _member,
    Request.HEART_BEAT: _by_body,
    Request.CHECK_CLIENT_CONFIG: _by_body,
    Request.LOCK_BATCH_MQ: _by_body,
    Request.UNLOCK_BATCH_MQ: _by_body,
    Request.GET_CONSUMER_RUNNING_INFO: _inspect,
    Request.POP_MESSAGE: _consume,
    Request.ACK_MESSAGE: _consume_asked,
    Request.CHANGE_MESSAGE_INVISIBLETIME: _consume_asked,
    Request.BATCH_ACK_MESSAGE: _acknowledge,
    Request.QUERY_ASSIGNMENT: _by_body,
}
