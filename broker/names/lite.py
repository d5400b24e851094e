"""Lite topic names and the lite attributes of topics and groups. Pure.

A lite topic is the queue (LMQ) `%LMQ%$<parent>$<lite>` of a parent topic of type LITE
(docs/formats/broker-semantics.md, section 12.2). Neither name can contain a `$`. The group
attribute `lite.bind.topic` names the one parent whose lite topics the group consumes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.topic_names import LMQ_PREFIX

if TYPE_CHECKING:
    from ..metadata.tables import Group, Metadata, Topic

PROPERTY = "__LITE_TOPIC"
#: Attributes of a group.
BOUND_TOPIC, WILDCARD = "lite.bind.topic", "lite.sub.wildcard"
#: No limit, as sent to clients: they compare numbers and do not support -1.
UNLIMITED = 1_000_000
_SEPARATOR = "$"
_PREFIX = LMQ_PREFIX + _SEPARATOR
_QUOTA = 2_000
_EVENTS_MAX = 400
_MINUTE_MS = 60_000
#: Of one list or reset: the answer has a row for each, or for each of its groups; below 4 MiB.
LITE_TOPICS_MAX = 10_000


def queue_of(parent: str, lite: str) -> str:
    """Return the queue (LMQ) of a lite topic."""
    return f"{_PREFIX}{parent}{_SEPARATOR}{lite}"


def parse_queue(name: str) -> tuple[str, str] | None:
    """Return parent and lite topic of an LMQ; None for an LMQ that is not a lite topic."""
    if not name.startswith(_PREFIX):
        return None
    parent, _, lite = name[len(_PREFIX) :].partition(_SEPARATOR)
    return (parent, lite) if parent and lite else None


def lite_topics(queues: Iterable[str], parent: str, wanted: str) -> Iterator[tuple[str, str]]:
    """Yield name and queue of the lite topics of a parent that a glob matches. Raises WireError."""
    count = 0
    for queue in queues if wanted else ():
        found, lite = parse_queue(queue) or ("", "")
        if found == parent and fnmatchcase(lite, wanted):
            count += 1
            check_rows(count)
            yield lite, queue


def check_rows(count: int) -> None:
    """Raise WireError for more rows of lite topics than an answer has."""
    if count > LITE_TOPICS_MAX:
        text = f"over {LITE_TOPICS_MAX} lite topics: name fewer by a pattern"
        raise WireError(v2.TOO_MANY_REQUESTS, text)


def is_lite_queue(name: str) -> bool:
    """Return whether this is the LMQ of a lite topic."""
    return name.startswith(_PREFIX)


def is_parent(topic: Topic | None) -> bool:
    """Return whether the topic has lite topics."""
    return topic is not None and topic.message_type == v2.LITE


def bound_topic(group: Group | None) -> str:
    """Return the parent whose lite topics the group consumes; "" for an ordinary group."""
    return group.attributes.get(BOUND_TOPIC, "") if group is not None else ""


def is_lite_group(metadata: Metadata, name: str) -> bool:
    """Return whether the group consumes lite topics."""
    group = metadata.groups.get(name)
    return group is not None and bool(group.attributes) and bool(bound_topic(group))


def is_exclusive(group: Group) -> bool:
    """Return whether a lite topic has one subscriber of the group at a time."""
    return group.attributes.get("lite.sub.model") == "Exclusive"


def is_wildcard(group: Group) -> bool:
    """Return whether the group's clients receive every lite topic without naming it."""
    return _is_true(group.attributes, WILDCARD)


def resets_on_takeover(group: Group) -> bool:
    """Return whether a lite topic that changes its exclusive subscriber continues at its end."""
    return _is_true(group.attributes, "lite.sub.reset.offset.exclusive")


def resets_on_unsubscribe(group: Group) -> bool:
    """Return whether unsubscribing from a lite topic removes the group's offset."""
    return _is_true(group.attributes, "lite.sub.reset.offset.unsubscribe")


def quota(group: Group) -> int:
    """Return how many lite topics one client may subscribe to."""
    number = _number(group.attributes, "lite.sub.client.quota", _QUOTA)
    return UNLIMITED if number < 0 else number


def events_max(group: Group) -> int:
    """Return how many events are stored for one client."""
    return max(1, _number(group.attributes, "lite.sub.client.max.event.cnt", _EVENTS_MAX))


def expiration_ms(topic: Topic) -> int | None:
    """Return how long after its last message a lite topic is removed; None: never (0 would be at
    once).
    """
    minutes = _number(topic.attributes, "lite.topic.expiration", -1)
    return minutes * _MINUTE_MS if minutes > 0 else None


def _is_true(attributes: Mapping[str, str], key: str) -> bool:
    return attributes.get(key) == "true"


def _number(attributes: Mapping[str, str], key: str, default: int) -> int:
    text = attributes.get(key, "")
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else default
