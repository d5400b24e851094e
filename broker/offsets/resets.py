"""Resets of consumer offsets: the parts that are notified of them.

Consumers that keep their position in their own memory go on from it, whatever the broker has
stored. The classic port tells those that are connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

#: Group, topic, and the new offset of each queue.
Listener: TypeAlias = Callable[[str, str, Mapping[int, int]], object]


class OffsetResets:
    """The listeners of one broker."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    def done(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Report that an operator has set the offsets of a group on a topic."""
        for listener in self.listeners:
            listener(group, topic, offsets)
