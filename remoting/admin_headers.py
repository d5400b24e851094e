"""Typed headers of administrative requests (docs/formats/remoting.md, sections 8 and 16)."""

from __future__ import annotations

from dataclasses import dataclass

from .headers import _bool, _int, _long, _text


@dataclass(frozen=True, slots=True)
class KvEntry:
    """PUT_KV_CONFIG."""

    namespace: str = _text("namespace")
    key: str = _text("key")
    value: str = _text("value")


@dataclass(frozen=True, slots=True)
class KvKey:
    """GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str = _text("namespace")
    key: str = _text("key")


@dataclass(frozen=True, slots=True)
class KvNamespace:
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str = _text("namespace")


@dataclass(frozen=True, slots=True)
class BrokerName:
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker: str = _text("brokerName")


@dataclass(frozen=True, slots=True)
class TopicName:
    """DELETE_TOPIC_IN_BROKER, DELETE_TOPIC_IN_NAMESRV, GET_TOPIC_CONFIG, GET_TOPIC_STATS_INFO and
    QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str = _text("topic")


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str = _text("topic")
    read_queues: int = _int("readQueueNums")
    write_queues: int = _int("writeQueueNums")
    perm: int = _int("perm")
    #: `+message.type=FIFO,-other`.
    attributes: str = _text("attributes", "")
    order: bool = _bool("order", False)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """GET_CONSUME_STATS, GET_CONSUMER_CONNECTION_LIST."""

    group: str = _text("consumerGroup")
    topic: str = _text("topic", "")
    #: Names with `;` between them.
    topics: str = _text("topicList", "")


@dataclass(frozen=True, slots=True)
class GroupName:
    """DELETE_SUBSCRIPTIONGROUP."""

    group: str = _text("groupName")
    clean_offset: bool = _bool("cleanOffset", False)


@dataclass(frozen=True, slots=True)
class GroupOfTopic:
    """QUERY_TOPICS_BY_CONSUMER, QUERY_CONSUME_TIME_SPAN, GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str = _text("group")
    topic: str = _text("topic", "")


@dataclass(frozen=True, slots=True)
class Page:
    """GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG: a page from 5.4 on."""

    topic_from: int = _int("topicSeq", 0)
    topics_max: int | None = _int("maxTopicNum", None)
    group_from: int = _int("groupSeq", 0)
    groups_max: int | None = _int("maxGroupNum", None)


@dataclass(frozen=True, slots=True)
class ResetOffset:
    """INVOKE_BROKER_TO_RESET_OFFSET."""

    group: str = _text("group")
    topic: str = _text("topic")
    #: -1: the end of the queues.
    timestamp_ms: int = _long("timestamp")
    #: Below 0: all.
    queue_id: int = _int("queueId", -1)
    #: Below 0: by time.
    offset: int = _long("offset", -1)


@dataclass(frozen=True, slots=True)
class CloneOffset:
    """CLONE_GROUP_OFFSET."""

    source: str = _text("srcGroup")
    target: str = _text("destGroup")
    topic: str = _text("topic", "")


@dataclass(frozen=True, slots=True)
class ViewStats:
    """VIEW_BROKER_STATS_DATA."""

    name: str = _text("statsName")
    key: str = _text("statsKey")


@dataclass(frozen=True, slots=True)
class ConsumeQueue:
    """QUERY_CONSUME_QUEUE."""

    topic: str = _text("topic")
    queue_id: int = _int("queueId")
    index: int = _long("index")
    count: int = _int("count")
    group: str = _text("consumerGroup", "")


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """GET_PRODUCER_CONNECTION_LIST."""

    group: str = _text("producerGroup")


@dataclass(frozen=True, slots=True)
class UserName:
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    name: str = _text("username")


@dataclass(frozen=True, slots=True)
class UserFilter:
    """AUTH_LIST_USER."""

    part: str = _text("filter", "")


@dataclass(frozen=True, slots=True)
class AclSubject:
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_DELETE_ACL, AUTH_GET_ACL."""

    #: `User:NAME`.
    subject: str = _text("subject")
    resource: str = _text("resource", "")


@dataclass(frozen=True, slots=True)
class AclFilter:
    """AUTH_LIST_ACL."""

    subject: str = _text("subjectFilter", "")
    resource: str = _text("resourceFilter", "")
