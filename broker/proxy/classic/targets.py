"""The broker group that a classic client's request belongs to. Pure.

A proxy serves all groups, so it takes the group from the request. Java clients from 4.9 on name the
broker in almost every request (`bname`, `n` in the short layout). For other requests the queues or
the handle that they name determine the group, or their topic, if only one group has it. With one
group in the cluster every request belongs to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto.errors import absent_topic
from ....remoting.admin_codes import Admin
from ....remoting.bare_json import as_text
from ....remoting.codes import BY_LETTER, Reply, Request
from ....remoting.connection import RemotingError
from ....remoting.passing import unavailable
from ...classic.base.bodies import items_of, json_object
from ...names.recall_handle import decode_recall_handle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....remoting.command import Command
    from ...base.cluster_view import GroupView

#: To every replica: members of groups are known where they have sent a heartbeat.
EVERYWHERE = frozenset((Request.HEART_BEAT, Request.UNREGISTER_CLIENT))
#: To any group: every broker has the members of groups, and can check a subscription.
ANYWHERE = frozenset(
    (
        Request.GET_CONSUMER_LIST_BY_GROUP,
        Request.CHECK_CLIENT_CONFIG,
        Request.GET_CONSUMER_RUNNING_INFO,
        Admin.GET_CONSUMER_CONNECTION_LIST,
    )
)
_WITH_HANDLE = frozenset((Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME))
_LOCKS = frozenset((Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ))
#: Of a receipt handle: start offset, time, invisible time, revive queue, retry flag, broker, ...
_HANDLE_BROKER = 5


def named_broker(command: Command) -> str:
    """Return the name of the broker in a request; empty without one. Raises RemotingError."""
    fields, code = command.fields, command.code
    name = fields.get("n" if code in BY_LETTER else "bname") or fields.get("brokerName")
    if name:
        return name
    if code in _WITH_HANDLE:
        parts = fields.get("extraInfo", "").split(" ")
        return parts[_HANDLE_BROKER] if len(parts) > _HANDLE_BROKER else ""
    if code == Request.RECALL_MESSAGE:
        handle = decode_recall_handle(fields.get("recallHandle", ""))
        return handle.broker if handle is not None else ""
    if code in _LOCKS:
        names = {_text(item, "brokerName") for item in items_of(_body(command), "mqSet")}
        return names.pop() if len(names) == 1 else ""
    if code == Request.BATCH_ACK_MESSAGE:
        return _text(_body(command), "brokerName")
    return ""


def topic_of(command: Command) -> str:
    """Return the topic of a request; empty without one."""
    if command.code in BY_LETTER:
        return command.fields.get("b", "")
    return command.fields.get("topic") or command.fields.get("originTopic", "")


def group_of(
    command: Command, groups: Sequence[GroupView], absent: Sequence[str] = ()
) -> GroupView | None:
    """Return the group of a request; None if it is not known (yet). Raises RemotingError.

    `absent` are the names of groups that are not up: a request that names none may be theirs.
    """
    if name := named_broker(command):
        return next((group for group in groups if group.name == name), None)
    if len(groups) == 1 and not absent:
        return groups[0]
    topic = topic_of(command)
    # A group without any topic has not registered with the nameservers again.
    holding = [group for group in groups if topic in group.topics or not group.topics]
    if len(holding) == 1:
        return holding[0]
    if command.code in ANYWHERE or not groups:
        return next(iter(groups), None)
    if topic and absent and not holding:
        raise unavailable(absent_topic(topic[:255], absent).message)
    where = f"{len(holding)} of them have the topic {topic[:255]!r}" if topic else "and no topic"
    raise RemotingError(
        Reply.VERSION_NOT_SUPPORTED,
        f"request type {command.code} names no broker (bname), but this proxy serves "
        f"{len(groups)} broker groups, {where}: use a Java client from 4.9.8 on, or connect to the "
        "nameservers and brokers",
    )


def _body(command: Command) -> dict[str, object]:
    return json_object(command.body)


def _text(document: object, name: str) -> str:
    return (as_text(document.get(name)) or "") if isinstance(document, dict) else ""
