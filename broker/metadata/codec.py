"""Codec for topics, groups, users, quotas as log record bodies, and parts of a snapshot. Pure.

Decoding returns what was encoded. Each part of a snapshot has at most `part_bytes` and belongs to
one version; a snapshot is complete only when all its parts follow each other (docs/formats/ha.md,
rule R11). Fields of Apache's JSON files that only Apache interprets are not in the records: they
stay in the files of their directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from ...auth.model import Action, Policy, ResourcePattern, User, parse_source
from ...auth.quota import LIMITS, Quota
from ...proto import v1, v2
from .tables import Group, Topic, type_attribute

# Far below every size limit of the log; a snapshot of 10,000 topics needs about six parts.
PART_BYTES = 256 * 1024


def topic_message(topic: Topic) -> v1.TopicConfig:
    """Encode a topic."""
    return v1.TopicConfig(
        name=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        perm=topic.perm,
        message_type=topic.message_type,
        attributes=topic.attributes,
        first_offsets=topic.first_offsets,
        since=topic.since,
    )


def topic_of(message: v1.TopicConfig) -> Topic:
    """Decode a topic."""
    return Topic(
        message.name,
        message.read_queues,
        message.write_queues,
        message.perm,
        message.message_type,
        dict(message.attributes) or _attributes(message.message_type),
        first_offsets=dict(message.first_offsets),
        since=message.since,
    )


def _attributes(message_type: int) -> dict[str, str]:
    # A topic of Apache's without attributes is a NORMAL topic and keeps no attributes.
    return {} if message_type == v2.NORMAL else type_attribute(message_type)


def group_message(group: Group) -> v1.GroupConfig:
    """Encode a group."""
    return v1.GroupConfig(
        name=group.name,
        orderly=group.orderly,
        max_attempts=group.max_attempts,
        consume_enable=group.consume_enable,
        consume_from_min=bool(group.extra.get("consumeFromMinEnable", True)),
        retry_queues=group.retry_queues,
        retry=_retry_message(group),
        attributes=group.attributes,
        lite_since=group.lite_since if group.lite_since >= 0 else None,
        since=group.since,
        since_ms=group.since_ms,
    )


def group_of(message: v1.GroupConfig) -> Group:
    """Decode a group."""
    extra: dict[str, object] = {}
    if not message.consume_from_min:
        extra["consumeFromMinEnable"] = False
    policy = retry_policy(message.retry)
    if policy:
        extra["groupRetryPolicy"] = policy
    return Group(
        message.name,
        message.orderly,
        message.max_attempts,
        message.consume_enable,
        message.retry_queues,
        dict(message.attributes),
        extra,
        message.lite_since if message.HasField("lite_since") else -1,
        message.since,
        message.since_ms,
    )


def _retry_message(group: Group) -> v1.GroupRetry:
    policy = group.extra.get("groupRetryPolicy") or {}
    if policy.get("type") == "EXPONENTIAL":
        exponential = policy.get("exponentialRetryPolicy") or {}
        return v1.GroupRetry(
            initial_ms=int(exponential.get("initial", 5_000)),
            max_ms=int(exponential.get("max", 7_200_000)),
            multiplier=float(exponential.get("multiplier", 2)),
        )
    custom = policy.get("customizedRetryPolicy") or {}
    return v1.GroupRetry(delays_ms=[int(ms) for ms in custom.get("next") or ()])


def retry_policy(retry: v1.GroupRetry) -> dict[str, object]:
    """Return the field `groupRetryPolicy` of Apache's bean; empty for the broker's default
    delays.
    """
    if retry.delays_ms:
        return {"customizedRetryPolicy": {"next": list(retry.delays_ms)}, "type": "CUSTOMIZED"}
    if retry.initial_ms:
        exponential = {
            "initial": retry.initial_ms,
            "max": retry.max_ms,
            "multiplier": int(retry.multiplier),
        }
        return {"exponentialRetryPolicy": exponential, "type": "EXPONENTIAL"}
    return {}


def user_message(user: User, *, with_secret: bool) -> v1.UserConfig:
    """Encode a user; answers to clients are without the secrets."""
    return v1.UserConfig(
        name=user.name,
        secret=user.secret if with_secret else b"",
        is_super=user.is_super,
        disabled=not user.enabled,
        policies=map(policy_message, user.policies),
        former_secret=user.former if with_secret else b"",
        former_until_ms=user.former_until_ms,
    )


def user_of(message: v1.UserConfig) -> User:
    """Decode a user."""
    policies = tuple(map(policy_of, message.policies))
    return User(
        message.name,
        message.secret,
        message.is_super,
        not message.disabled,
        policies,
        message.former_secret,
        message.former_until_ms,
    )


def policy_message(policy: Policy) -> v1.AclPolicy:
    """Encode a policy."""
    return v1.AclPolicy(
        resource=str(policy.resource),
        actions=policy.actions,
        allow=policy.allow,
        sources=map(str, policy.sources),
    )


def policy_of(message: v1.AclPolicy) -> Policy:
    """Decode a policy. Raises ValueError."""
    return Policy(
        ResourcePattern.parse(message.resource),
        Action(message.actions) & Action.ALL,
        message.allow,
        tuple(map(parse_source, message.sources)),
    )


def quota_message(quota: Quota) -> v1.QuotaConfig:
    """Encode a quota."""
    limits = {name: getattr(quota, name) for name in LIMITS}
    return v1.QuotaConfig(subject=quota.subject, **limits)


def quota_of(message: v1.QuotaConfig) -> Quota:
    """Decode a quota."""
    limits = {name: getattr(message, name) for name in LIMITS}
    return Quota(message.subject, **limits)


def snapshot_parts(
    version: int,
    topics: Iterable[Topic],
    groups: Iterable[Group],
    users: Iterable[User],
    quotas: Iterable[Quota],
    *,
    deleted_groups: Mapping[str, int],
    drained: bool = False,
    part_bytes: int = PART_BYTES,
) -> list[v1.MetaSnapshot]:
    """Return all topics, groups, users and quotas of a version in one or more parts.

    `deleted_groups`: how long each stays deleted, ms.
    """
    parts = [v1.MetaSnapshot(version=version, drained=drained)]
    size = 0
    for item in _messages(topics, groups, users, quotas, deleted_groups):
        item_size = item.ByteSize()
        if size and size + item_size > part_bytes:
            parts.append(v1.MetaSnapshot(version=version))
            size = 0
        size += item_size
        if isinstance(item, v1.TopicConfig):
            parts[-1].topics.append(item)
        elif isinstance(item, v1.GroupConfig):
            parts[-1].groups.append(item)
        elif isinstance(item, v1.UserConfig):
            parts[-1].users.append(item)
        elif isinstance(item, v1.DeletedGroup):
            parts[-1].deleted_groups.append(item)
        else:
            parts[-1].quotas.append(item)
    for index, part in enumerate(parts):
        part.part_index = index
        part.part_count = len(parts)
    return parts


def _messages(
    topics: Iterable[Topic],
    groups: Iterable[Group],
    users: Iterable[User],
    quotas: Iterable[Quota],
    deleted_groups: Mapping[str, int],
) -> Iterator[v1.TopicConfig | v1.GroupConfig | v1.UserConfig | v1.QuotaConfig | v1.DeletedGroup]:
    yield from (topic_message(topic) for topic in topics)
    yield from (group_message(group) for group in groups)
    yield from (user_message(user, with_secret=True) for user in users)
    yield from map(quota_message, quotas)
    for name, rest_ms in deleted_groups.items():
        yield v1.DeletedGroup(name=name, stays_deleted_ms=rest_ms)


class Assembly(Struct):
    """Collects the parts of a snapshot; a part out of order discards the parts before it."""

    parts: list[v1.MetaSnapshot] = field(default_factory=list)

    def add(self, part: v1.MetaSnapshot) -> list[v1.MetaSnapshot] | None:
        """Add a part; return all parts after the last one."""
        if part.part_index == 0:
            self.parts = []
        elif not self._continues(part):
            self.parts = []
            return None
        self.parts.append(part)
        if len(self.parts) < part.part_count:
            return None
        parts, self.parts = self.parts, []
        return parts

    def _continues(self, part: v1.MetaSnapshot) -> bool:
        if not self.parts:
            return False
        first = self.parts[0]
        return (part.part_index, part.part_count, part.version) == (
            len(self.parts),
            first.part_count,
            first.version,
        )
