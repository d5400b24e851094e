"""Lite topics by name: the light queue of each, and what topics and groups say about them. Pure.

A lite topic is the light queue `%LMQ%$<parent>$<lite>` of a parent topic of type LITE (broker semantics,
section 12.2). Neither name can hold a `$`. What a group may do is in its attributes: `lite.bind.topic`
names the one parent whose lite topics it consumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...proto import v2
from ...store.format.topic_names import LIGHT_PREFIX

if TYPE_CHECKING:
    from ..metadata.tables import Group, Topic

PROPERTY = "__LITE_TOPIC"
UNLIMITED = 1_000_000
"""Stands for no limit where clients count: they compare, and none of them knows -1."""
_SEPARATOR = "$"
_PREFIX = LIGHT_PREFIX + _SEPARATOR
_QUOTA = 2_000
_EVENTS_MAX = 400
_MINUTE_MS = 60_000


def queue_of(parent: str, lite: str) -> str:
    """The light queue of a lite topic."""
    return f"{_PREFIX}{parent}{_SEPARATOR}{lite}"


def parse_queue(name: str) -> tuple[str, str] | None:
    """Parent and lite topic of a light queue; None for a light queue of somebody else's."""
    if not name.startswith(_PREFIX):
        return None
    parent, _, lite = name[len(_PREFIX) :].partition(_SEPARATOR)
    return (parent, lite) if parent and lite else None


def is_lite_queue(name: str) -> bool:
    """Whether this is the light queue of a lite topic."""
    return name.startswith(_PREFIX)


def is_parent(topic: Topic | None) -> bool:
    """Whether the topic has lite topics."""
    return topic is not None and topic.message_type == v2.LITE


def bound_topic(group: Group | None) -> str:
    """The parent whose lite topics the group consumes; "": it is an ordinary group."""
    return group.attributes.get("lite.bind.topic", "") if group is not None else ""


def is_exclusive(group: Group) -> bool:
    """Whether a lite topic has one subscriber of the group at a time."""
    return group.attributes.get("lite.sub.model") == "Exclusive"


def is_wildcard(group: Group) -> bool:
    """Whether the group's clients receive every lite topic without naming it."""
    return _is_true(group.attributes, "lite.sub.wildcard")


def resets_on_takeover(group: Group) -> bool:
    """Whether a lite topic that changes its exclusive subscriber goes on at its end."""
    return _is_true(group.attributes, "lite.sub.reset.offset.exclusive")


def resets_on_unsubscribe(group: Group) -> bool:
    """Whether a lite topic that is unsubscribed forgets how far the group was."""
    return _is_true(group.attributes, "lite.sub.reset.offset.unsubscribe")


def quota(group: Group) -> int:
    """Lite topics that one client may subscribe to."""
    number = _number(group.attributes, "lite.sub.client.quota", _QUOTA)
    return UNLIMITED if number < 0 else number


def events_max(group: Group) -> int:
    """Lite topics with news that are remembered for one client."""
    return max(1, _number(group.attributes, "lite.sub.client.max.event.cnt", _EVENTS_MAX))


def expiration_ms(topic: Topic) -> int | None:
    """How long after its last message a lite topic ends; None: never (0 would end it at once)."""
    minutes = _number(topic.attributes, "lite.topic.expiration", -1)
    return minutes * _MINUTE_MS if minutes > 0 else None


def _is_true(attributes: Mapping[str, str], key: str) -> bool:
    return attributes.get(key) == "true"


def _number(attributes: Mapping[str, str], key: str, default: int) -> int:
    text = attributes.get(key, "")
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else default
