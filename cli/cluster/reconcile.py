"""Differences between the broker groups of a cluster, and the calls that mend them.

Compared are topics, consumer groups, users with their policies, and quotas; not what brokers create
on demand (system, retry and dead-letter topics). An object that one group has is wanted in all:
nothing is deleted, except policies and attributes of objects that differ. If settings differ, those
of the source count, by default the first group by name that has the object; a topic keeps its
highest numbers of queues, because it cannot lose queues in one step. A drained group stays drained.
Secret keys cannot be read, so a missing user is reported with the command that creates it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...auth.quota import LIMITS
from ...operations.broker_groups import BrokerGroups, Outcome
from ...operations.errors import CliError
from ...operations.group_settings import group_settings
from ...operations.policies import policy_rows
from ...proto import paths, v1
from ..access.quota import quota_row
from ..access.user import user_row
from ..metadata import MESSAGE_TYPE_ATTRIBUTE
from ..topic import topic_settings

#: Path, request, class of the answer.
Call = tuple[str, Any, type[Any]]

#: The bit of `TopicConfig.perm` for producers.
PERM_WRITE = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that a group lacks, or has with other settings."""

    broker: str
    kind: str
    name: str
    #: create, change or delete
    action: str
    #: What changes: `write_queues 4 -> 8`.
    settings: str
    #: The calls that mend it; none if a command must do it.
    calls: tuple[Call, ...]
    #: Why the group will refuse them, as far as it is known without asking.
    refused: str = ""

    def row(self) -> dict[str, object]:
        """Return the difference as a table row."""
        names = ("broker", "kind", "name", "action", "settings")
        return {name: getattr(self, name) for name in names}

    def sentence(self) -> str:
        """Return what was done: `Created topic orders.`"""
        return f"{self.action.title()}d {self.kind} {self.name}."

    def refusal(self, groups: BrokerGroups) -> str:
        """Return why the group would refuse the calls; empty if it would carry them out."""
        if self.refused or not self.calls:
            return self.refused or self._needs_command()
        for path, request, answer in self.calls:
            if "dry_run" not in request.DESCRIPTOR.fields_by_name:
                continue
            asked = type(request)()
            asked.CopyFrom(request)
            asked.dry_run = True
            (outcome,) = groups.each(path, asked, answer, (self.broker,))
            if outcome.error is not None:
                return str(outcome.error)
            if self.action == "delete" and (why := _kept(asked, outcome.answer)):
                return why
        return ""

    def _needs_command(self) -> str:
        where = f" --broker {self.broker}" if self.broker else ""
        return (
            f"A secret key cannot be read. Run `cometmq user create {self.name} --secret "
            f"SECRET_KEY{where}`, then this command again."
        )

    def mend(self, groups: BrokerGroups) -> None:
        """Make the calls. Raises CliError."""
        if not self.calls:
            raise CliError(self._needs_command())
        for path, request, answer in self.calls:
            (outcome,) = groups.each(path, request, answer, (self.broker,))
            if outcome.error is not None:
                raise outcome.error


def _kept(request: Any, plan: Any) -> str:
    """Return why a topic or group is not deleted, from the plan of its deletion."""
    clients = getattr(plan, "clients", 0)
    if clients and not request.force:
        return f"it has {clients} connected clients: stop them, or give --force"
    if plan.messages and not request.accept_loss:
        return f"it holds {plan.messages} messages: give --accept-loss"
    return ""


@dataclass(frozen=True, slots=True)
class Kind:
    """How objects of one kind are read, compared and changed."""

    name: str
    #: The name of their section in a document of definitions.
    title: str
    read: Callable[[BrokerGroups], Sequence[Outcome[list[Any]]]]
    key: Callable[[Any], str]
    facts: Callable[[Any], Mapping[str, object]]
    #: The wanted object; the first of the present ones is the source's.
    wanted: Callable[[Sequence[Any]], Any]
    #: The calls to get the wanted object (first) from the present one (None: create it).
    calls: Callable[[Any, Any], Iterable[Call]]


def differences(
    groups: BrokerGroups, source: str = ""
) -> tuple[list[Difference], list[tuple[str, CliError]]]:
    """Compare the groups; return the differences, and by kind and group what cannot be read.

    A kind is compared between the groups that can be read. `source` is the group whose settings
    count; empty: the first one.
    """
    found: list[Difference] = []
    unread: list[tuple[str, CliError]] = []
    for kind in KINDS:
        present: dict[str, list[Any]] = {}
        for one in kind.read(groups):
            if one.answer is not None:
                present[one.broker] = one.answer
            elif one.error is not None:
                unread.append((f"{kind.name}s of {one.broker}", one.error))
        found += compared(kind, present, source)
    return found, unread


def compared(kind: Kind, present: Mapping[str, Sequence[Any]], source: str) -> list[Difference]:
    """Return the differences between the objects of the groups."""
    objects: dict[str, dict[str, Any]] = {}
    drained = drained_groups(present) if kind is TOPICS else frozenset[str]()
    for broker in sorted(present, key=lambda name: (name in drained, name != source, name)):
        for each in present[broker]:
            objects.setdefault(kind.key(each), {})[broker] = each
    found = []
    for name, having in sorted(objects.items()):
        usual = kind.wanted(list(having.values()))
        for broker in sorted(present):
            known = having.get(broker)
            wanted = _read_only(usual) if broker in drained else usual
            if known is not None and kind.facts(known) == kind.facts(wanted):
                continue
            calls = tuple(kind.calls(wanted, known))
            action = "create" if known is None else "change"
            text = "" if known is None else changed(kind.facts(known), kind.facts(wanted))
            found.append(Difference(broker, kind.name, name, action, text, calls))
    return found


def drained_groups(topics: Mapping[str, Sequence[v1.TopicConfig]]) -> frozenset[str]:
    """Return the groups that `cometmq cluster drain` drains: no topic takes messages there, but
    some do in another group. Their permissions are no differences. A new group without topics is
    not drained."""
    writing = {
        broker for broker, found in topics.items() if any(t.perm & PERM_WRITE for t in found)
    }
    silent = frozenset(broker for broker, found in topics.items() if found) - writing
    return silent if writing else frozenset()


def _read_only(topic: v1.TopicConfig) -> v1.TopicConfig:
    found = v1.TopicConfig()
    found.CopyFrom(topic)
    found.perm &= ~PERM_WRITE
    return found


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {before[name]} -> {value}"
        for name, value in after.items()
        if before[name] != value
    )


def _first(present: Sequence[Any]) -> Any:
    return present[0]


def _attributes(wanted: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """Return the changes of attributes; the message type is a field of its own."""
    added = [f"+{key}={value}" for key, value in wanted.items() if known.get(key) != value]
    removed = [f"-{key}" for key in known if key not in wanted]
    return [
        text for text in added + removed if text[1:].partition("=")[0] != MESSAGE_TYPE_ATTRIBUTE
    ]


def _read_topics(groups: BrokerGroups) -> Sequence[Outcome[list[Any]]]:
    request = v1.ListTopicsRequest()
    pages = groups.pages(paths.LIST_TOPICS, request, v1.ListTopicsResponse, "topics")
    return _listed(
        pages, lambda all_: [t for page in all_ for t in page.topics if not t.name.startswith("%")]
    )


def _most_queues(present: Sequence[v1.TopicConfig]) -> v1.TopicConfig:
    wanted = v1.TopicConfig()
    wanted.CopyFrom(present[0])
    wanted.read_queues = max(topic.read_queues for topic in present)
    wanted.write_queues = max(topic.write_queues for topic in present)
    return wanted


def _put_topic(wanted: v1.TopicConfig, known: v1.TopicConfig | None) -> Iterable[Call]:
    request = v1.CreateTopicRequest(
        name=wanted.name,
        message_type=wanted.message_type,
        perm=wanted.perm,
        read_queues=wanted.read_queues,
        write_queues=wanted.write_queues,
        attributes=_attributes(wanted.attributes, known.attributes if known else {}),
    )
    yield paths.CREATE_TOPIC, request, v1.CreateTopicResponse


def _read_groups(groups: BrokerGroups) -> Sequence[Outcome[list[Any]]]:
    request = v1.ListGroupsRequest()
    pages = groups.pages(paths.LIST_GROUPS, request, v1.ListGroupsResponse, "groups")
    return _listed(pages, lambda all_: [each for page in all_ for each in page.groups])


def _put_group(wanted: v1.GroupConfig, known: v1.GroupConfig | None) -> Iterable[Call]:
    request = v1.CreateGroupRequest(
        name=wanted.name,
        orderly=wanted.orderly,
        max_attempts=wanted.max_attempts,
        consume_enable=wanted.consume_enable,
        retry=wanted.retry,
        retry_queues=wanted.retry_queues,
        attributes=_attributes(wanted.attributes, known.attributes if known else {}),
    )
    yield paths.CREATE_GROUP, request, v1.CreateGroupResponse


def _read_users(groups: BrokerGroups) -> Sequence[Outcome[list[Any]]]:
    users = groups.each(paths.LIST_USERS, v1.ListUsersRequest(), v1.ListUsersResponse)
    return _listed(users, lambda answer: list(answer.users))


def _user_facts(user: v1.UserConfig) -> dict[str, object]:
    policies = [
        f"{row['decision']} {row['actions']} on {row['resource']} from {row['from']}"
        for row in policy_rows(user)
    ]
    return {**user_row(user), "policies": sorted(policies)}


def _put_user(wanted: v1.UserConfig, known: v1.UserConfig | None) -> Iterable[Call]:
    if known is None:
        return
    if (wanted.is_super, wanted.disabled) != (known.is_super, known.disabled):
        user = v1.PutUserRequest(
            name=wanted.name,
            is_super=wanted.is_super,
            enabled=not wanted.disabled,
            must_exist=True,
        )
        yield paths.PUT_USER, user, v1.UserResponse
    kept = {(policy.resource, policy.allow) for policy in wanted.policies}
    for policy in known.policies:
        if (policy.resource, policy.allow) not in kept:
            gone = v1.DeletePolicyRequest(
                user=wanted.name, resource=policy.resource, allow=policy.allow
            )
            yield paths.DELETE_POLICY, gone, v1.UserResponse
    for policy in wanted.policies:
        if policy not in known.policies:
            put = v1.PutPolicyRequest(user=wanted.name, policy=policy)
            yield paths.PUT_POLICY, put, v1.UserResponse


def _read_quotas(groups: BrokerGroups) -> Sequence[Outcome[list[Any]]]:
    quotas = groups.each(paths.LIST_QUOTAS, v1.ListQuotasRequest(), v1.ListQuotasResponse)
    return _listed(quotas, lambda answer: list(answer.quotas))


def _put_quota(wanted: v1.QuotaConfig, _known: v1.QuotaConfig | None) -> Iterable[Call]:
    request = v1.PutQuotaRequest(subject=wanted.subject)
    for limit in LIMITS:
        setattr(request, limit, getattr(wanted, limit))
    yield paths.PUT_QUOTA, request, v1.QuotaResponse


def _listed(
    outcomes: Sequence[Outcome[Any]], objects: Callable[[Any], list[Any]]
) -> list[Outcome[list[Any]]]:
    return [
        Outcome(one.broker, None if one.answer is None else objects(one.answer), one.error)
        for one in outcomes
    ]


def _name(config: Any) -> str:
    return str(config.name)


TOPICS = Kind("topic", "topics", _read_topics, _name, topic_settings, _most_queues, _put_topic)
GROUPS = Kind("group", "groups", _read_groups, _name, group_settings, _first, _put_group)
USERS = Kind("user", "users", _read_users, _name, _user_facts, _first, _put_user)
QUOTAS = Kind(
    "quota", "quotas", _read_quotas, lambda quota: str(quota.subject), quota_row, _first, _put_quota
)
KINDS = (TOPICS, GROUPS, USERS, QUOTAS)
