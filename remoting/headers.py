"""Typed headers of clients' requests: one dataclass for each layout of `Command.fields`.

Source: docs/formats/remoting.md, sections 8 to 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from .header_fields import boolean, integer, long, text


@dataclass(frozen=True, slots=True)
class SendMessage:
    """SEND_MESSAGE and SEND_REPLY_MESSAGE by name; their V2 and SEND_BATCH_MESSAGE by letter."""

    producer_group: str = text("producerGroup", letter="a")
    topic: str = text("topic", letter="b")
    default_topic: str = text("defaultTopic", letter="c")
    default_topic_queues: int = integer("defaultTopicQueueNums", letter="d")
    #: Below 0: the broker chooses.
    queue_id: int = integer("queueId", letter="e")
    sys_flag: int = integer("sysFlag", letter="f")
    born_timestamp_ms: int = long("bornTimestamp", letter="g")
    #: The user's number of the message.
    flag: int = integer("flag", letter="h")
    #: `name 0x01 value 0x02` repeated.
    properties: str = text("properties", "", "i")
    reconsume_times: int = integer("reconsumeTimes", 0, "j")
    max_reconsume_times: int | None = integer("maxReconsumeTimes", None, "l")
    batch: bool = boolean("batch", False, "m")


@dataclass(frozen=True, slots=True)
class PullMessage:
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    queue_offset: int = long("queueOffset")
    max_messages: int = integer("maxMsgNums")
    #: 1 commit the offset, 2 wait for a message, 4 the request has the subscription.
    sys_flag: int = integer("sysFlag")
    commit_offset: int = long("commitOffset")
    suspend_timeout_ms: int = long("suspendTimeoutMillis")
    #: Milliseconds at which the client last changed its subscription.
    sub_version: int = long("subVersion")
    subscription: str | None = text("subscription", None)
    expression_type: str = text("expressionType", "TAG")


@dataclass(frozen=True, slots=True)
class QueueOfTopic:
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str = text("topic")
    queue_id: int = integer("queueId")


@dataclass(frozen=True, slots=True)
class SearchOffset:
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str = text("topic")
    queue_id: int = integer("queueId")
    timestamp_ms: int = long("timestamp")
    #: `lower` or `upper`.
    boundary: str = text("boundaryType", "lower")


@dataclass(frozen=True, slots=True)
class QueryConsumerOffset:
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    set_zero_if_not_found: bool = boolean("setZeroIfNotFound", True)


@dataclass(frozen=True, slots=True)
class UpdateConsumerOffset:
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    commit_offset: int = long("commitOffset")


@dataclass(frozen=True, slots=True)
class QueryMessage:
    """QUERY_MESSAGE."""

    topic: str = text("topic")
    key: str = text("key")
    max_messages: int = integer("maxNum")
    begin_timestamp_ms: int = long("beginTimestamp")
    end_timestamp_ms: int = long("endTimestamp")
    #: The key is the unique id of a message.
    unique: bool = boolean("_UNIQUE_KEY_QUERY", False)
    #: `K` or `U`, from 5.5 on.
    index_type: str = text("indexType", "K")


@dataclass(frozen=True, slots=True)
class ViewMessage:
    """VIEW_MESSAGE_BY_ID."""

    #: Position of the record in the log.
    offset: int = long("offset")


@dataclass(frozen=True, slots=True)
class UnregisterClient:
    """UNREGISTER_CLIENT: one of the groups is set."""

    client_id: str = text("clientID")
    producer_group: str | None = text("producerGroup", None)
    consumer_group: str | None = text("consumerGroup", None)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str = text("consumerGroup")


@dataclass(frozen=True, slots=True)
class SendBack:
    """CONSUMER_SEND_MSG_BACK."""

    #: Position of the record in the log.
    offset: int = long("offset")
    group: str = text("group")
    #: Below 0: to the dead letters; 0: by the number of attempts.
    delay_level: int = integer("delayLevel")
    origin_message_id: str | None = text("originMsgId", None)
    origin_topic: str | None = text("originTopic", None)
    max_reconsume_times: int | None = integer("maxReconsumeTimes", None)


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """END_TRANSACTION."""

    producer_group: str = text("producerGroup")
    #: Position of the half message: its queue offset, and that of its record in the log.
    half_offset: int = long("tranStateTableOffset")
    physical_offset: int = long("commitLogOffset")
    #: 8 commit, 12 roll back, 0 unknown.
    outcome: int = integer("commitOrRollback")
    #: The unique id.
    message_id: str = text("msgId")
    from_check: bool = boolean("fromTransactionCheck", False)


@dataclass(frozen=True, slots=True)
class PopMessage:
    """POP_MESSAGE."""

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    #: -1: any.
    queue_id: int = integer("queueId")
    max_messages: int = integer("maxMsgNums")
    invisible_ms: int = long("invisibleTime")
    #: Time for which the request may wait.
    poll_ms: int = long("pollTime")
    expression_type: str = text("expType", "TAG")
    expression: str = text("exp", "*")


@dataclass(frozen=True, slots=True)
class AckMessage:
    """ACK_MESSAGE."""

    consumer_group: str = text("consumerGroup")
    #: The retry topic for a message from there.
    topic: str = text("topic")
    handle: str = text("extraInfo")


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTime:
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str = text("consumerGroup")
    topic: str = text("topic")
    handle: str = text("extraInfo")
    invisible_ms: int = long("invisibleTime")
    suspend: bool = boolean("suspend", False)


@dataclass(frozen=True, slots=True)
class RecallMessage:
    """RECALL_MESSAGE."""

    topic: str = text("topic")
    handle: str = text("recallHandle")
    producer_group: str = text("producerGroup", "")


@dataclass(frozen=True, slots=True)
class ConsumerOfGroup:
    """GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY: forwarded to a consumer."""

    consumer_group: str = text("consumerGroup")
    client_id: str = text("clientId")
    #: Of the message, with its position in the log.
    message_id: str | None = text("msgId", None)


@dataclass(frozen=True, slots=True)
class RouteOfTopic:
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str = text("topic")
    standard_json_only: bool = boolean("acceptStandardJsonOnly", False)


@dataclass(frozen=True, slots=True)
class TopicsOfCluster:
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str = text("cluster")
