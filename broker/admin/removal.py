"""What goes when a topic or a group goes: retry topics, dead letters, offsets, messages in flight.

Source: broker semantics, section 8.7. A retry topic belongs to a group and a topic; under the first
form of its name the two cannot always be told apart, and then it goes only when no other pair that
exists could mean it. Promises: the names are computed from the metadata alone (pure); the offsets and
the state of pops go on every replica, where the record of the removal comes in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from ..pop.dead_letter import dead_letter_topic
from ..pop.group import PopGroup
from ..pop.retry import queue_topics

if TYPE_CHECKING:
    from ..metadata.tables import Group, Metadata
    from ..node import Node

_PREFIX = "%RETRY%"


def retry_topics_of_topic(metadata: Metadata, topic: str, groups: Iterable[str]) -> list[str]:
    """The retry topics that there are for a topic and any of the groups, and for no other pair."""
    names = {name for group in groups for name in queue_topics(topic, group)[1:]}
    return sorted(
        name
        for name in names & metadata.topics.keys()
        if all(of_topic == topic for of_topic, _ in _pairs(metadata, name))
    )


def topics_of_group(metadata: Metadata, group: str) -> list[str]:
    """The group's retry topics, for no other group, and its dead-letter topic, as far as they exist."""
    first, second = f"{_PREFIX}{group}_", f"{_PREFIX}{group}+"
    names = {
        name
        for name in metadata.topics
        if name.startswith(second) or (name.startswith(first) and "+" not in name)
    }
    # Apache's classic retry topic is of the group alone.
    names |= {_PREFIX + group, dead_letter_topic(group)} & metadata.topics.keys()
    return sorted(
        name for name in names if all(of_group == group for _, of_group in _pairs(metadata, name))
    )


def _pairs(metadata: Metadata, name: str) -> list[tuple[str, str]]:
    """Every topic and group, both known, that the name of a retry topic can mean."""
    rest = name.removeprefix(_PREFIX)
    if "+" in rest or rest == name:
        return []  # it can mean one thing only
    return [
        (rest[at + 1 :], rest[:at])
        for at, character in enumerate(rest)
        if character == "_" and rest[:at] in metadata.groups and rest[at + 1 :] in metadata.topics
    ]


def offer_again(node: Node, group: Group) -> None:
    """Set a group's offsets back to the first message in flight.

    They may have passed it while the journal had it, and with the group the journal forgets it.
    """
    own = {topic for topic, name, _, _ in node.offsets if name == group.name}
    for topic in own & node.metadata.topics.keys():
        core = node.pop.core(topic, group)
        if not isinstance(core, PopGroup):
            continue
        for queue in core.queues.values():
            first = min(queue.unacked, default=queue.committed)
            if first < queue.committed:
                node.offsets.commit(queue.topic, group.name, queue.queue_id, first)


def watch(node: Node) -> None:
    """From now on what hangs on a topic or a group goes with it."""
    node.meta_log.on_topic_removed = partial(_topic_removed, node)
    node.meta_log.on_group_removed = partial(_group_removed, node)


def _topic_removed(node: Node, topic: str) -> None:
    node.pop.forget(topic=topic)
    node.offsets.forget_topic(topic)


def _group_removed(node: Node, group: str, keep_offsets: bool) -> None:
    node.pop.forget(group=group)
    if not keep_offsets:
        node.offsets.forget_group(group)
