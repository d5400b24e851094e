"""Rights that the requests of classic clients need, by request code.

They are those of the gRPC protocol for the same effect: to send to a topic, to consume a topic in a
group. A retry topic belongs to its group: its consumers read it and send to it. A request that
names a message by its position needs the right on the topic of that message. The needs are read
from the object that the handler gets, so that both understand a request in the same way; a request
that cannot be read, or names nothing that exists, is refused here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...auth.model import GROUP, TOPIC, Action
from ...remoting.codes import Reply, Request
from ...remoting.connection import RemotingError
from ...remoting.headers import (
    AckMessage,
    ChangeInvisibleTime,
    ConsumerGroup,
    ConsumerOfGroup,
    EndTransaction,
    PopMessage,
    PullMessage,
    QueryConsumerOffset,
    QueryMessage,
    QueueOfTopic,
    RecallMessage,
    SearchOffset,
    SendBack,
    UnregisterClient,
    UpdateConsumerOffset,
    ViewMessage,
)
from ...store.format.properties import decode_properties
from ..names.recall_handle import decode_recall_handle
from ..names.retry import ORIGIN_GROUP, is_retry_topic
from .base.bodies import (
    asked_assignment,
    batch_ack,
    checked_subscription,
    heartbeat,
    queue_list,
    sent_header,
)
from .pop import asked_topic
from .queries import clients_record, shown_record

if TYPE_CHECKING:
    from ...remoting.command import Command
    from ...store.format.record import Record
    from ...store.message_store import MessageStore
    from ..access.rights import Need, Needs
    from ..transactions.service import Transactions

_PUB, _SUB, _GET = int(Action.PUB), int(Action.SUB), int(Action.GET)

#: Requests that may need no right: they concern the members that the client's own user has entered
#: (`base/members.py`), and a client without consumer groups names none.
PUBLIC = frozenset((Request.HEART_BEAT, Request.UNREGISTER_CLIENT))
#: Name a message or a transaction by its offset or id. A denial does not tell its topic, or whether
#: there is one: the answer would show any user the topics of a log, and where their messages lie.
BY_OFFSET = frozenset(
    (Request.VIEW_MESSAGE_BY_ID, Request.CONSUMER_SEND_MSG_BACK, Request.END_TRANSACTION)
)
#: The right that a request needs whose message does not exist: the one on every topic.
NOT_FOUND: Need = (TOPIC, "", int(Action.SUB))


def rights(
    store: MessageStore, transactions: Transactions
) -> dict[int, Callable[[Command], Needs]]:
    """Return the functions that read the needs of a request; `store` and `transactions` find the
    topic of what it names by position. They raise HeaderError, RemotingError, WireError."""

    def view(command: Command) -> Needs:
        return (_of_record(shown_record, store, command.header(ViewMessage).offset),)

    def send_back(command: Command) -> Needs:
        header = command.header(SendBack)
        return _group(header.group), _of_record(clients_record, store, header.offset)

    def end(command: Command) -> Needs:
        header = command.header(EndTransaction)
        return (_send_to(transactions.topic_of(header.half_offset, header.message_id)),)

    return {
        **BY_FIELDS,
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


def _of_record(
    read: Callable[[MessageStore, int], Record | None], store: MessageStore, offset: int
) -> Need:
    record = read(store, offset)
    return NOT_FOUND if record is None else _read(record.topic)


def _send(command: Command) -> Needs:
    header = sent_header(command)
    need = _send_to(header.topic)
    if not is_retry_topic(header.topic):
        return (need,)
    # The property may name the group whose retry topic of pops, or dead letters, get the message.
    origin = decode_properties(header.properties.encode()).get(ORIGIN_GROUP)
    return (need, _group(origin)) if origin else (need,)


def _recall(command: Command) -> Needs:
    header = command.header(RecallMessage)
    handle = decode_recall_handle(header.handle)
    named = {header.topic: None, **({} if handle is None else {handle.topic: None})}
    return tuple((TOPIC, each, _PUB) for each in named)


def _consume(layout: Any) -> Callable[[Command], Needs]:
    def needs(command: Command) -> Needs:
        header = command.header(layout)
        return _group(header.consumer_group), _read(header.topic)

    return needs


def _consume_asked(layout: Any) -> Callable[[Command], Needs]:
    def needs(command: Command) -> Needs:
        header = command.header(layout)
        return _popped(header.consumer_group, header.topic)

    return needs


def _popped(group: str, topic: str) -> Needs:
    """Return the needs for a message that a group has popped from a topic or its retry topic."""
    return _group(group), _read(asked_topic(topic, group))


def _acknowledge(command: Command) -> Needs:
    needs: dict[Need, None] = {}
    for group, topic in command.document(batch_ack).handles:
        needs.update(dict.fromkeys(_popped(group, topic)))
    if not needs:
        raise RemotingError(Reply.NO_MESSAGE, "no message to acknowledge")
    return tuple(needs)


def _read_topic(layout: Any) -> Callable[[Command], Needs]:
    return lambda command: (_read(command.header(layout).topic),)


def _unregister(command: Command) -> Needs:
    group = command.header(UnregisterClient).consumer_group
    return (_group(group),) if group is not None else ()


def _members(command: Command) -> Needs:
    return (_group(command.header(ConsumerGroup).consumer_group),)


def _inspect(command: Command) -> Needs:
    return ((GROUP, command.header(ConsumerOfGroup).consumer_group, _GET),)


def _heartbeat(command: Command) -> Needs:
    needs: dict[Need, None] = {}
    for data in command.document(heartbeat).consumers:
        needs[_group(data.group)] = None
        needs.update((_read(each.topic), None) for each in data.subscriptions or ())
    return tuple(needs)


def _check(command: Command) -> Needs:
    asked = command.document(checked_subscription)
    topic = _read(asked.subscription.topic)
    return (_group(asked.group), topic) if asked.group else (topic,)


def _queues(command: Command) -> Needs:
    asked = command.document(queue_list)
    topics = dict.fromkeys(queue.topic for queue in asked.queues)
    return _group(asked.group), *map(_read, topics)


def _assignment(command: Command) -> Needs:
    asked = command.document(asked_assignment)
    return _group(asked.group), _read(asked.topic)


BY_FIELDS: dict[int, Callable[[Command], Needs]] = {
    Request.SEND_MESSAGE: _send,
    Request.SEND_MESSAGE_V2: _send,
    Request.SEND_BATCH_MESSAGE: _send,
    Request.SEND_REPLY_MESSAGE: _send,
    Request.SEND_REPLY_MESSAGE_V2: _send,
    Request.RECALL_MESSAGE: _recall,
    Request.PULL_MESSAGE: _consume(PullMessage),
    Request.LITE_PULL_MESSAGE: _consume(PullMessage),
    Request.QUERY_CONSUMER_OFFSET: _consume(QueryConsumerOffset),
    Request.UPDATE_CONSUMER_OFFSET: _consume(UpdateConsumerOffset),
    Request.SEARCH_OFFSET_BY_TIMESTAMP: _read_topic(SearchOffset),
    Request.GET_MAX_OFFSET: _read_topic(QueueOfTopic),
    Request.GET_MIN_OFFSET: _read_topic(QueueOfTopic),
    Request.GET_EARLIEST_MSG_STORETIME: _read_topic(QueueOfTopic),
    Request.QUERY_MESSAGE: _read_topic(QueryMessage),
    Request.UNREGISTER_CLIENT: _unregister,
    Request.GET_CONSUMER_LIST_BY_GROUP: _members,
    Request.HEART_BEAT: _heartbeat,
    Request.CHECK_CLIENT_CONFIG: _check,
    Request.LOCK_BATCH_MQ: _queues,
    Request.UNLOCK_BATCH_MQ: _queues,
    Request.GET_CONSUMER_RUNNING_INFO: _inspect,
    Request.POP_MESSAGE: _consume(PopMessage),
    Request.ACK_MESSAGE: _consume_asked(AckMessage),
    Request.CHANGE_MESSAGE_INVISIBLETIME: _consume_asked(ChangeInvisibleTime),
    Request.BATCH_ACK_MESSAGE: _acknowledge,
    Request.QUERY_ASSIGNMENT: _assignment,
}
