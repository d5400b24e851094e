"""Typed headers of requests: one dataclass for each layout of `Command.fields`.

Every value travels as text. `read` converts the fields of a request; it raises `HeaderError`, whose
text is the remark of the SYSTEM_ERROR response, for a missing or malformed value. Fields that a
class does not name are ignored: clients send many (docs/formats/remoting.md, sections 8 to 13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

_Header = TypeVar("_Header")
_LONG_DIGITS_MAX = 20


class HeaderError(ValueError):
    """A required field is missing, or a value does not have the type of its field."""


def _number(bits: int) -> Callable[[str], int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def parse(text: str) -> int:
        # Java's parser: digits with a sign; Python's would accept blanks and underscores.
        digits = text[1:] if text[:1] in ("-", "+") else text
        if digits.isascii() and digits.isdigit() and len(text) <= _LONG_DIGITS_MAX:
            value = int(text)
            if low <= value <= high:
                return value
        raise HeaderError(f'For input string: "{text[:100]}"')

    return parse


def _text(name: str, default: Any = MISSING, letter: str = "") -> Any:
    return field(default=default, metadata={"name": name, "letter": letter, "parse": str})


def _int(name: str, default: Any = MISSING, letter: str = "") -> Any:
    return field(default=default, metadata={"name": name, "letter": letter, "parse": _number(32)})


def _long(name: str, default: Any = MISSING, letter: str = "") -> Any:
    return field(default=default, metadata={"name": name, "letter": letter, "parse": _number(64)})


def _bool(name: str, default: Any = MISSING, letter: str = "") -> Any:
    def parse(text: str) -> bool:
        return text.lower() == "true"

    return field(default=default, metadata={"name": name, "letter": letter, "parse": parse})


def read(header: type[_Header], found: Mapping[str, str], *, letters: bool = False) -> _Header:
    """Return the header that the fields of a request hold; `letters` takes the short names (V2).

    Raises HeaderError.
    """
    values = {}
    layout: Any = header
    for attribute, name, parse, required in _plan(layout, letters):
        text = found.get(name)
        if text is not None:
            values[attribute] = parse(text)
        elif required:
            raise HeaderError(f"the custom field <{name}> is null")
    return header(**values)


@lru_cache(maxsize=256)
def _plan(header: Any, letters: bool) -> list[tuple[str, str, Callable[[str], Any], bool]]:
    name = "letter" if letters else "name"
    return [
        (each.name, each.metadata[name], each.metadata["parse"], each.default is MISSING)
        for each in fields(header)
    ]


@dataclass(frozen=True, slots=True)
class SendMessage:
    """SEND_MESSAGE and SEND_REPLY_MESSAGE by name; their V2 and SEND_BATCH_MESSAGE by letter."""

    producer_group: str = _text("producerGroup", letter="a")
    topic: str = _text("topic", letter="b")
    default_topic: str = _text("defaultTopic", letter="c")
    default_topic_queues: int = _int("defaultTopicQueueNums", letter="d")
    #: Below 0: the broker chooses.
    queue_id: int = _int("queueId", letter="e")
    sys_flag: int = _int("sysFlag", letter="f")
    born_timestamp_ms: int = _long("bornTimestamp", letter="g")
    #: The user's number of the message.
    flag: int = _int("flag", letter="h")
    #: `name 0x01 value 0x02` repeated.
    properties: str = _text("properties", "", "i")
    reconsume_times: int = _int("reconsumeTimes", 0, "j")
    max_reconsume_times: int | None = _int("maxReconsumeTimes", None, "l")
    batch: bool = _bool("batch", False, "m")


@dataclass(frozen=True, slots=True)
class PullMessage:
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str = _text("consumerGroup")
    topic: str = _text("topic")
    queue_id: int = _int("queueId")
    queue_offset: int = _long("queueOffset")
    max_messages: int = _int("maxMsgNums")
    #: 1 commit the offset, 2 wait for a message, 4 the request has the subscription.
    sys_flag: int = _int("sysFlag")
    commit_offset: int = _long("commitOffset")
    suspend_timeout_ms: int = _long("suspendTimeoutMillis")
    #: Milliseconds at which the client last changed its subscription.
    sub_version: int = _long("subVersion")
    subscription: str | None = _text("subscription", None)
    expression_type: str = _text("expressionType", "TAG")


@dataclass(frozen=True, slots=True)
class QueueOfTopic:
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str = _text("topic")
    queue_id: int = _int("queueId")


@dataclass(frozen=True, slots=True)
class SearchOffset:
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str = _text("topic")
    queue_id: int = _int("queueId")
    timestamp_ms: int = _long("timestamp")
    #: `lower` or `upper`.
    boundary: str = _text("boundaryType", "lower")


@dataclass(frozen=True, slots=True)
class QueryConsumerOffset:
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str = _text("consumerGroup")
    topic: str = _text("topic")
    queue_id: int = _int("queueId")
    set_zero_if_not_found: bool = _bool("setZeroIfNotFound", True)


@dataclass(frozen=True, slots=True)
class UpdateConsumerOffset:
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str = _text("consumerGroup")
    topic: str = _text("topic")
    queue_id: int = _int("queueId")
    commit_offset: int = _long("commitOffset")


@dataclass(frozen=True, slots=True)
class QueryMessage:
    """QUERY_MESSAGE."""

    topic: str = _text("topic")
    key: str = _text("key")
    max_messages: int = _int("maxNum")
    begin_timestamp_ms: int = _long("beginTimestamp")
    end_timestamp_ms: int = _long("endTimestamp")
    #: The key is the unique id of a message.
    unique: bool = _bool("_UNIQUE_KEY_QUERY", False)
    #: `K` or `U`, from 5.5 on.
    index_type: str = _text("indexType", "K")


@dataclass(frozen=True, slots=True)
class ViewMessage:
    """VIEW_MESSAGE_BY_ID."""

    #: Position of the record in the log.
    offset: int = _long("offset")


@dataclass(frozen=True, slots=True)
class UnregisterClient:
    """UNREGISTER_CLIENT: one of the groups is set."""

    client_id: str = _text("clientID")
    producer_group: str | None = _text("producerGroup", None)
    consumer_group: str | None = _text("consumerGroup", None)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str = _text("consumerGroup")


@dataclass(frozen=True, slots=True)
class SendBack:
    """CONSUMER_SEND_MSG_BACK."""

    #: Position of the record in the log.
    offset: int = _long("offset")
    group: str = _text("group")
    #: Below 0: to the dead letters; 0: by the number of attempts.
    delay_level: int = _int("delayLevel")
    origin_message_id: str | None = _text("originMsgId", None)
    origin_topic: str | None = _text("originTopic", None)
    max_reconsume_times: int | None = _int("maxReconsumeTimes", None)


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """END_TRANSACTION."""

    producer_group: str = _text("producerGroup")
    #: Position of the half message: its queue offset, and that of its record in the log.
    half_offset: int = _long("tranStateTableOffset")
    physical_offset: int = _long("commitLogOffset")
    #: 8 commit, 12 roll back, 0 unknown.
    outcome: int = _int("commitOrRollback")
    #: The unique id.
    message_id: str = _text("msgId")
    from_check: bool = _bool("fromTransactionCheck", False)


@dataclass(frozen=True, slots=True)
class PopMessage:
    """POP_MESSAGE."""

    consumer_group: str = _text("consumerGroup")
    topic: str = _text("topic")
    #: -1: any.
    queue_id: int = _int("queueId")
    max_messages: int = _int("maxMsgNums")
    invisible_ms: int = _long("invisibleTime")
    #: Time for which the request may wait.
    poll_ms: int = _long("pollTime")
    expression_type: str = _text("expType", "TAG")
    expression: str = _text("exp", "*")


@dataclass(frozen=True, slots=True)
class AckMessage:
    """ACK_MESSAGE."""

    consumer_group: str = _text("consumerGroup")
    #: The retry topic for a message from there.
    topic: str = _text("topic")
    handle: str = _text("extraInfo")


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTime:
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str = _text("consumerGroup")
    topic: str = _text("topic")
    handle: str = _text("extraInfo")
    invisible_ms: int = _long("invisibleTime")
    suspend: bool = _bool("suspend", False)


@dataclass(frozen=True, slots=True)
class RecallMessage:
    """RECALL_MESSAGE."""

    topic: str = _text("topic")
    handle: str = _text("recallHandle")
    producer_group: str = _text("producerGroup", "")


@dataclass(frozen=True, slots=True)
class ConsumerOfGroup:
    """GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY: forwarded to a consumer."""

    consumer_group: str = _text("consumerGroup")
    client_id: str = _text("clientId")
    #: Of the message, with its position in the log.
    message_id: str | None = _text("msgId", None)


@dataclass(frozen=True, slots=True)
class RouteOfTopic:
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str = _text("topic")
    standard_json_only: bool = _bool("acceptStandardJsonOnly", False)


@dataclass(frozen=True, slots=True)
class TopicsOfCluster:
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str = _text("cluster")
