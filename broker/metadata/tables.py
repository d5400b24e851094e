"""Topics, consumer groups, users and quotas: the tables that services read, and their JSON form.

A look-up is one dictionary access. Fields of Apache's files that CometMQ does not interpret are
kept and written back. The log is primary (`log.py`); `config/topics.json` and
`config/subscriptionGroup.json` are written after it, for tools and for Apache
(docs/formats/broker-semantics.md, sections 8.1, 8.3 and 8.5; docs/formats/store-format.md, section
12.3). Losing the tables costs a read of the log at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.json_file import ordered
from ..messages.validation import (
    MIXED,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)

if TYPE_CHECKING:
    from ...auth.model import User
    from ...auth.quota import Quota

PERM_READ = 4
PERM_WRITE = 2
PERM_DEFAULT = PERM_READ | PERM_WRITE
#: Classic producers without a route for a topic take that of this one; no message is in it.
TEMPLATE_TOPIC = "TBW102"
_PERM_INHERIT = 1

TYPE_NAMES: Mapping[str, int] = {
    "NORMAL": v2.NORMAL,
    "FIFO": v2.FIFO,
    "DELAY": v2.DELAY,
    "TRANSACTION": v2.TRANSACTION,
    "LITE": v2.LITE,
    "PRIORITY": v2.PRIORITY,
    "MIXED": MIXED,
}
_NAME_OF_TYPE = {number: name for name, number in TYPE_NAMES.items()}
_TYPE_ATTRIBUTE = "message.type"

#: Of deleted groups that had clients; the oldest is forgotten first.
_REFUSED_GROUPS_MAX = 1_000
#: Deleted topics of which records may be left; the oldest is forgotten first. Each snapshot has
#: them: about 400 KB.
_DELETED_TOPICS_MAX = 10_000
_RETRY_TOPIC_PREFIX = "%RETRY%"
_MAX_ATTEMPTS = 17
# Fields of a group's `extra` that log records carry; absent means default.
_RECORDED_EXTRA = frozenset({"consumeFromMinEnable", "groupRetryPolicy"})
# Default delays between the attempts of a group: 1 s 5 s 10 s 30 s 1-10 m 20 m 30 m 1 h 2 h
# (docs/formats/grpc-api.md, section 7.6).
DEFAULT_BACKOFF_MS: tuple[int, ...] = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minute * 60_000 for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


def is_system_topic(name: str) -> bool:
    """Return whether a topic belongs to the broker."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_internal_topic(name: str) -> bool:
    """Return whether the broker creates the topic on demand. Such topics are not counted against
    the limit and are listed only on request.

    Dead-letter topics are not among them, because operators read them.
    """
    return is_system_topic(name) or name.startswith(_RETRY_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Return whether a group belongs to the broker."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def type_name(message_type: int) -> str:
    """Return the name of a message type, as in the attribute `message.type`."""
    return _NAME_OF_TYPE.get(message_type, "NORMAL")


class Topic(Struct):
    """A topic; `extra` holds fields of topics.json that are kept but not interpreted."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_DEFAULT
    message_type: int = v2.NORMAL
    attributes: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    #: By queue: the first offset of this topic; lower offsets belong to a deleted topic of the same
    #: name.
    first_offsets: dict[int, int] = field(default_factory=dict)
    #: Log offset of its creation; 0: unknown, or a system topic. Only the log holds it.
    since: int = 0

    @property
    def readable(self) -> bool:
        """Whether consumers may read it."""
        return bool(self.perm & PERM_READ) and self.read_queues > 0

    @property
    def writable(self) -> bool:
        """Whether producers may send to it."""
        return bool(self.perm & PERM_WRITE) and self.write_queues > 0

    def inherit(self, known: Topic) -> None:
        """Keep the fields of the former version that log records do not carry."""
        self.extra = {**known.extra, **self.extra}


class Group(Struct):
    """A consumer group; `max_attempts` is RocketMQ's `retryMaxTimes` plus the first delivery."""

    name: str
    orderly: bool = False
    max_attempts: int = _MAX_ATTEMPTS
    consume_enable: bool = True
    retry_queues: int = 1
    attributes: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    #: Log offset at which the group subscribed to every lite topic of its parent; -1: it has not.
    #: Only the log holds it.
    lite_since: int = -1
    #: Log offset and wall time of its creation; 0: unknown. Only the log holds them.
    since: int = 0
    since_ms: int = 0

    def is_younger(self, pop_ms: int, now_ms: int) -> bool:
        """Return whether the group was created after a delivery: it was one of a deleted group of
        this name. While the clock is behind the creation, that is not known."""
        return pop_ms < self.since_ms <= now_ms

    def backoff_ms(self) -> tuple[int, ...]:
        """The delay before each further attempt; the last value repeats."""
        policy = self.extra.get("groupRetryPolicy", {})
        if policy.get("type") == "EXPONENTIAL":
            return _exponential(policy.get("exponentialRetryPolicy") or {})
        custom = (policy.get("customizedRetryPolicy") or {}).get("next")
        return tuple(int(ms) for ms in custom) if custom else DEFAULT_BACKOFF_MS

    def inherit(self, known: Group) -> None:
        """Keep the fields of the former version that log records do not carry."""
        kept = {name: known.extra[name] for name in known.extra if name not in _RECORDED_EXTRA}
        self.extra = {**kept, **self.extra}


def _exponential(policy: Mapping[str, Any]) -> tuple[int, ...]:
    first = int(policy.get("initial", 5_000))
    most = int(policy.get("max", 7_200_000))
    multiplier = max(1, int(policy.get("multiplier", 2)))
    return tuple(min(most, first * multiplier**i) for i in range(len(DEFAULT_BACKOFF_MS)))


class Metadata:
    """The tables as of the log end (leader) or the dispatched log (follower)."""

    def __init__(
        self,
        auto_create_group: bool,
        max_topics: int,
        max_groups: int,
        steady_ns: Callable[[], int],
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.users: dict[str, User] = {}
        #: By subject.
        self.quotas: dict[str, Quota] = {}
        #: Whether producers leave this broker group: no topic of users becomes writable.
        self.drained = False
        #: Increases with every change of a topic; registrations and route caches compare it.
        self.version = 0
        #: Increases with every change of a user; caches of decisions compare it.
        self.users_version = 0
        #: Deleted groups that clients do not create again, with the end in steady time.
        self._refused: dict[str, int] = {}
        #: Deleted topics, each with the log offset of its last deletion, in the order of these.
        self.deleted_topics: dict[str, int] = {}
        self._steady_ns = steady_ns
        self._record_group: Callable[[Group], bool] | None = None
        self._change_listener: Callable[[], None] | None = None
        self._auto_create_group = auto_create_group
        self._max_topics = max_topics
        #: Topics created by users, and dead-letter topics.
        self._counted = 0
        self._max_groups = max_groups

    def set_limits(self, *, auto_create_group: bool, max_topics: int, max_groups: int) -> None:
        """Use other limits; what exists stays."""
        self._auto_create_group = auto_create_group
        self._max_topics, self._max_groups = max_topics, max_groups

    def record_groups(self, record: Callable[[Group], bool] | None) -> None:
        """Write groups that clients bring with `record`, on a leader; None on a follower.

        `record` returns False if the log is not writable.
        """
        self._record_group = record

    def subscribe(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` after every change; None ends it."""
        self._change_listener = listener

    def topic(self, name: str) -> Topic | None:
        """Return the topic or None."""
        return self.topics.get(name)

    def is_older(self, name: str, physical_offset: int) -> bool:
        """Return whether a record that waits for a topic was stored before the topic of this name
        was created, or before the last one was deleted: it belongs to a deleted one."""
        if physical_offset < self.deleted_topics.get(name, 0):
            return True
        topic = self.topics.get(name)
        return topic is not None and physical_offset < topic.since

    def is_of_deleted_group(self, name: str, physical_offset: int) -> bool:
        """Return whether a record about a group was stored before the group of this name was
        created."""
        group = self.groups.get(name)
        return group is not None and physical_offset < group.since

    def group(self, name: str) -> Group | None:
        """Return the consumer group or None."""
        return self.groups.get(name)

    def ensure_group(self, name: str) -> Group:
        """Return the group; create it with defaults if it does not exist and auto-creation is on.
        Raises WireError.
        """
        group = self.groups.get(name)
        if group is not None:
            return group
        if not self._auto_create_group:
            raise WireError(
                v2.CONSUMER_GROUP_NOT_FOUND, f"consumer group does not exist: create {name} first"
            )
        if self._refused.get(name, 0) > self._steady_ns():
            raise WireError(
                v2.CONSUMER_GROUP_NOT_FOUND,
                f"consumer group {name} was deleted while it had clients: create it first",
            )
        group = Group(name)
        if self._record_group is not None:
            self.check_group_limit(name)
            self._record_group(group)
        return group

    def check_topic_limit(self, name: str) -> None:
        """Raise WireError if the number of topics has reached the limit."""
        if name in self.topics or is_internal_topic(name):
            return
        if self._counted >= self._max_topics:
            raise WireError(v2.FORBIDDEN, f"maxTopics={self._max_topics} reached")

    def check_group_limit(self, name: str) -> None:
        """Raise WireError if the number of groups has reached the limit."""
        if name not in self.groups and len(self.groups) >= self._max_groups:
            raise WireError(v2.FORBIDDEN, f"maxGroups={self._max_groups} reached")

    def put_topic(self, topic: Topic) -> None:
        """Create or replace a topic."""
        known = self.topics.get(topic.name)
        if known is not None:
            topic.inherit(known)
        else:
            self._counted += not is_internal_topic(topic.name)
        self.topics[topic.name] = topic
        self._changed(routes=True)

    def put_group(self, group: Group) -> None:
        """Create or replace a group."""
        known = self.groups.get(group.name)
        if known is not None:
            group.inherit(known)
        self._refused.pop(group.name, None)
        self.groups[group.name] = group
        self._changed(routes=False)

    def remove_topic(self, name: str) -> None:
        """Remove a topic if it exists."""
        if self.topics.pop(name, None) is not None:
            self._counted -= not is_internal_topic(name)
            self._changed(routes=True)

    def note_deletion(self, name: str, offset: int, log_start: int) -> None:
        """Remember that a topic was deleted at `offset` of the log, as long as records before it
        may be there: earlier deletions before `log_start` are forgotten."""
        deleted = self.deleted_topics
        deleted.pop(name, None)
        deleted[name] = offset
        while deleted[oldest := next(iter(deleted))] <= log_start or (
            len(deleted) > _DELETED_TOPICS_MAX
        ):
            del deleted[oldest]

    def remove_group(self, name: str) -> None:
        """Remove a group if it exists."""
        if self.groups.pop(name, None) is not None:
            self._changed(routes=False)

    def refuse_group(self, name: str, duration_ms: int) -> None:
        """Do not let clients create a deleted group for some time, unless it is created before."""
        if duration_ms <= 0:
            return
        self._refused.pop(name, None)
        if len(self._refused) >= _REFUSED_GROUPS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = self._steady_ns() + duration_ms * 1_000_000

    def refused_groups(self) -> dict[str, int]:
        """Return the deleted groups that clients do not create again, each with the rest of its
        time, ms."""
        now_ns = self._steady_ns()
        rests = {name: (end - now_ns) // 1_000_000 for name, end in self._refused.items()}
        return {name: rest_ms for name, rest_ms in rests.items() if rest_ms > 0}

    def put_user(self, user: User) -> None:
        """Create or replace a user."""
        self.users[user.name] = user
        self.users_version += 1

    def remove_user(self, name: str) -> None:
        """Remove a user if it exists."""
        self.users.pop(name, None)
        self.users_version += 1

    def put_quota(self, quota: Quota) -> None:
        """Create or replace a quota."""
        self.quotas[quota.subject] = quota

    def remove_quota(self, subject: str) -> None:
        """Remove a quota if it exists."""
        self.quotas.pop(subject, None)

    def replace(
        self,
        topics: Mapping[str, Topic],
        groups: Mapping[str, Group],
        users: Mapping[str, User],
        quotas: Mapping[str, Quota],
    ) -> None:
        """Replace all entries, for example by those of a snapshot."""
        for name in topics.keys() & self.topics.keys():
            topics[name].inherit(self.topics[name])
        for name in groups.keys() & self.groups.keys():
            groups[name].inherit(self.groups[name])
        self.topics = dict(topics)
        self._counted = sum(not is_internal_topic(name) for name in topics)
        self.groups = dict(groups)
        self.users = dict(users)
        self.users_version += 1
        self.quotas = dict(quotas)
        self._changed(routes=True)

    def _changed(self, routes: bool) -> None:
        if routes:
            self.version += 1
        if self._change_listener is not None:
            self._change_listener()


def template_topic(queues: int) -> Topic:
    """Return the template of automatically created topics."""
    return Topic(TEMPLATE_TOPIC, queues, queues, PERM_DEFAULT | _PERM_INHERIT)


def topic_from_json(name: str, bean: Mapping[str, Any]) -> Topic:
    """Decode a topic of `topicConfigTable`; absent fields get Apache's defaults."""
    fields = dict(bean)
    fields.pop("topicName", None)
    attributes = _attributes(fields.pop("attributes", None))
    return Topic(
        name,
        read_queues=int(fields.pop("readQueueNums", 16)),
        write_queues=int(fields.pop("writeQueueNums", 16)),
        perm=int(fields.pop("perm", PERM_DEFAULT)),
        message_type=TYPE_NAMES.get(attributes.get(_TYPE_ATTRIBUTE, "NORMAL"), v2.NORMAL),
        attributes=attributes,
        extra=fields,
    )


def topic_to_json(topic: Topic) -> dict[str, Any]:
    """Encode a topic, its fields in alphabetical order."""
    bean: dict[str, Any] = {
        "order": False,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        **topic.extra,
        "attributes": topic.attributes,
        "perm": topic.perm,
        "readQueueNums": topic.read_queues,
        "topicName": topic.name,
        "writeQueueNums": topic.write_queues,
    }
    return ordered(bean)


def group_from_json(name: str, bean: Mapping[str, Any]) -> Group:
    """Decode a group of `subscriptionGroupTable`; absent fields get Apache's defaults."""
    fields = dict(bean)
    fields.pop("groupName", None)
    return Group(
        name,
        orderly=bool(fields.pop("consumeMessageOrderly", False)),
        max_attempts=int(fields.pop("retryMaxTimes", _MAX_ATTEMPTS - 1)) + 1,
        consume_enable=bool(fields.pop("consumeEnable", True)),
        retry_queues=int(fields.pop("retryQueueNums", 1)),
        attributes=_attributes(fields.pop("attributes", None)),
        extra=fields,
    )


def group_to_json(group: Group) -> dict[str, Any]:
    """Encode a group, its fields in alphabetical order."""
    bean: dict[str, Any] = {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeFromMinEnable": True,
        "consumeTimeoutMinute": 15,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "whichBrokerWhenConsumeSlowly": 1,
        **group.extra,
        "attributes": group.attributes,
        "consumeEnable": group.consume_enable,
        "consumeMessageOrderly": group.orderly,
        "groupName": group.name,
        "retryMaxTimes": group.max_attempts - 1,
        "retryQueueNums": group.retry_queues,
    }
    return ordered(bean)


def _attributes(bean: Mapping[str, Any] | None) -> dict[str, str]:
    # Commands write `+key`. Files should not, but some do.
    return {key.removeprefix("+"): str(value) for key, value in (bean or {}).items()}


def type_attribute(message_type: int) -> dict[str, str]:
    """Return the attributes of a new topic of this type."""
    return {_TYPE_ATTRIBUTE: type_name(message_type)}
