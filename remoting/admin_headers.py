"""Typed headers of administrative requests (docs/formats/remoting.md, sections 8 and 16)."""

from __future__ import annotations

from dataclasses import dataclass

from .header_fields import boolean, integer, long, text


@dataclass(frozen=True, slots=True)
class KvEntry:
    """PUT_KV_CONFIG."""

    namespace: str = text("namespace")
    key: str = text("key")
    value: str = text("value")


@dataclass(frozen=True, slots=True)
class KvKey:
    """GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str = text("namespace")
    key: str = text("key")


@dataclass(frozen=True, slots=True)
class KvNamespace:
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str = text("namespace")


@dataclass(frozen=True, slots=True)
class BrokerName:
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker: str = text("brokerName")


@dataclass(frozen=True, slots=True)
class TopicName:
    """DELETE_TOPIC_IN_BROKER, DELETE_TOPIC_IN_NAMESRV, GET_TOPIC_CONFIG, GET_TOPIC_STATS_INFO and
    QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str = text("topic")


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str = text("topic")
    read_queues: int = integer("readQueueNums")
    write_queues: int = integer("writeQueueNums")
    perm: int = integer("perm")
    #: `+message.type=FIFO,-other`.
    attributes: str = text("attributes", "")
    order: bool = boolean("order", False)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """GET_CONSUME_STATS, GET_CONSUMER_CONNECTION_LIST."""

    group: str = text("consumerGroup")
    topic: str = text("topic", "")
    #: Names with `;` between them.
    topics: str = text("topicList", "")


@dataclass(frozen=True, slots=True)
class GroupName:
    """DELETE_SUBSCRIPTIONGROUP."""

    group: str = text("groupName")
    clean_offset: bool = boolean("cleanOffset", False)


@dataclass(frozen=True, slots=True)
class GroupOfTopic:
    """QUERY_TOPICS_BY_CONSUMER, QUERY_CONSUME_TIME_SPAN, GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str = text("group")
    topic: str = text("topic", "")


@dataclass(frozen=True, slots=True)
class Page:
    """GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG: a page from 5.4 on."""

    topic_from: int = integer("topicSeq", 0)
    topics_max: int | None = integer("maxTopicNum", None)
    group_from: int = integer("groupSeq", 0)
    groups_max: int | None = integer("maxGroupNum", None)


@dataclass(frozen=True, slots=True)
class ResetOffset:
    """INVOKE_BROKER_TO_RESET_OFFSET."""

    group: str = text("group")
    topic: str = text("topic")
    #: -1: the end of the queues.
    timestamp_ms: int = long("timestamp")
    #: Below 0: all.
    queue_id: int = integer("queueId", -1)
    #: Below 0: by time.
    offset: int = long("offset", -1)


@dataclass(frozen=True, slots=True)
class CloneOffset:
    """CLONE_GROUP_OFFSET."""

    source: str = text("srcGroup")
    target: str = text("destGroup")
    topic: str = text("topic", "")


@dataclass(frozen=True, slots=True)
class ViewStats:
    """VIEW_BROKER_STATS_DATA."""

    name: str = text("statsName")
    key: str = text("statsKey")


@dataclass(frozen=True, slots=True)
class ConsumeQueue:
    """QUERY_CONSUME_QUEUE."""

    topic: str = text("topic")
    queue_id: int = integer("queueId")
    index: int = long("index")
    count: int = integer("count")
    group: str = text("consumerGroup", "")


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """GET_PRODUCER_CONNECTION_LIST."""

    group: str = text("producerGroup")


@dataclass(frozen=True, slots=True)
class UserName:
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    name: str = text("username")


@dataclass(frozen=True, slots=True)
class UserFilter:
    """AUTH_LIST_USER."""

    part: str = text("filter", "")


@dataclass(frozen=True, slots=True)
class AclSubject:
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_DELETE_ACL, AUTH_GET_ACL."""

    #: `User:NAME`.
    subject: str = text("subject")
    resource: str = text("resource", "")


@dataclass(frozen=True, slots=True)
class AclFilter:
    """AUTH_LIST_ACL."""

    subject: str = text("subjectFilter", "")
    resource: str = text("resourceFilter", "")
