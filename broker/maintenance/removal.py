"""Removal of a topic or a group: its retry topics, dead letters, offsets and messages in flight.

Source: docs/formats/broker-semantics.md, section 8.7. A retry topic belongs to a group and a topic.
Its name in the first form is ambiguous; such a topic is removed only if no other existing pair can
own it.
Promises: names are computed from the metadata alone (pure functions); offsets and pop state are
removed on every replica when the record of the removal is dispatched.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from ..names.retry import queue_topics
from ..pop.dead_letter import dead_letter_topic
from ..pop.group import PopGroup

if TYPE_CHECKING:
    from ..delay.timer_service import TimerService
    from ..metadata.tables import Group, Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..pop.receive import PopService

_PREFIX = "%RETRY%"


def retry_topics_of_topic(metadata: Metadata, topic: str, groups: Container[str]) -> list[str]:
    """Return the existing retry topics of a topic and any of `groups` that no other pair can
    own."""
    ends = (f"_{topic}", f"+{topic}")
    # Costs a look at each topic; there may be as many groups, with names to make.
    candidates = [n for n in metadata.topics if n.startswith(_PREFIX) and n.endswith(ends)]
    return sorted(
        name
        for name in candidates
        if (group := name[len(_PREFIX) : -len(topic) - 1]) in groups
        and name in queue_topics(topic, group)
        and all(of_topic == topic for of_topic, _ in _pairs(metadata, name))
    )


def topics_of_group(metadata: Metadata, group: str) -> list[str]:
    """Return the group's existing retry topics that no other group can own, and its dead-letter
    topic."""
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
    """Return every existing (topic, group) that the name of a retry topic can stand for."""
    rest = name.removeprefix(_PREFIX)
    if "+" in rest or rest == name:
        return []  # unambiguous
    return [
        (rest[at + 1 :], rest[:at])
        for at, character in enumerate(rest)
        if character == "_" and rest[:at] in metadata.groups and rest[at + 1 :] in metadata.topics
    ]


class Removal:
    """Removes the state that depends on a deleted topic or group; runs on every replica."""

    def __init__(
        self, metadata: Metadata, offsets: ConsumerOffsets, pop: PopService, timers: TimerService
    ) -> None:
        self._metadata = metadata
        self._offsets = offsets
        self._pop = pop
        self._timers = timers

    def rewind_to_unacknowledged(self, group: Group) -> None:
        """Set a group's offsets back to its first message in flight.

        Offsets may pass messages that the journal holds, and the journal forgets a deleted group.
        """
        own = {topic for topic, name, _, _ in self._offsets if name == group.name}
        for topic in own & self._metadata.topics.keys():
            core = self._pop.core(topic, group)
            if not isinstance(core, PopGroup):
                continue
            for queue in core.queues.values():
                first = min(queue.unacked, default=queue.committed)
                if first < queue.committed:
                    self._offsets.commit(queue.topic, group.name, queue.queue_id, first)

    def topic_removed(self, topic: str) -> None:
        """A topic was deleted: drop its pop state, its offsets, and the number of its timers."""
        self._timers.topic_removed(topic)
        self._pop.forget(topic=topic)
        self._offsets.forget_topic(topic)

    def group_removed(self, group: str, keep_offsets: bool) -> None:
        """A group was deleted: drop its pop state and, unless they are kept, its offsets."""
        self._pop.forget(group=group)
        if not keep_offsets:
            self._offsets.forget_group(group)
