"""Queues of a topic that one member of a group reads, as the broker assigns them. Pure.

In the mode PULL the queues are divided among the members in contiguous parts of equal size, which
differ by one at most; all members compute the same parts, because both are sorted. In the mode POP
every member reads all queues: the entry has queue id -1. The modes of a group are an attribute of
the group, so they are replicated and survive a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Attribute of a group: the topics that it pops, with commas between them.
POP_TOPICS = "classic.pop.topics"
#: Queue id of an assignment of all queues.
ANY_QUEUE = -1
#: One group consumes a few topics; the attribute is part of its record.
TOPICS_MAX = 100


class TooManyTopicsError(ValueError):
    """A group cannot pop more topics."""


def pops(attributes: Mapping[str, str], topic: str) -> bool:
    """Return whether a group pops a topic."""
    return topic in attributes.get(POP_TOPICS, "").split(",")


def with_mode(attributes: Mapping[str, str], topic: str, *, pop: bool) -> dict[str, str]:
    """Return the attributes after a change of the mode. Raises TooManyTopicsError."""
    names = {name: None for name in attributes.get(POP_TOPICS, "").split(",") if name}
    if pop:
        names[topic] = None
    else:
        names.pop(topic, None)
    if len(names) > TOPICS_MAX:
        raise TooManyTopicsError(f"a group pops at most {TOPICS_MAX} topics")
    others = {name: attributes[name] for name in attributes if name != POP_TOPICS}
    return {**others, POP_TOPICS: ",".join(names)} if names else others


def share(queues: int, members: Sequence[str], own: str) -> range:
    """Return the queues of one member; empty for a client that is none."""
    ordered = sorted(members)
    if own not in ordered:
        return range(0)
    place, count = ordered.index(own), len(ordered)
    least, rest = divmod(queues, count)
    first = place * least + min(place, rest)
    return range(first, first + least + (place < rest))
