"""A simulated network: datagrams that may be late, lost, duplicated or reordered, and reliable
streams.

A stream keeps its order and loses nothing while it is open, like TCP: frames that meet a cut wait
for its end. Single requests (heartbeats, proposals, answers) are subject to faults one by one. A
cut is directed; a machine can be cut off in one direction only.
"""

import random
from collections.abc import Callable
from typing import Any

from .scheduler import MS, Scheduler

Edge = tuple[str, str]


class Network:
    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self.cuts: set[Edge] = set()
        self.rejects: set[Edge] = set()  #: a firewall answers connections for the other host
        self.loss = 0.0
        self.doubling = 0.0
        self.slow_share = 0.02  #: of slow messages
        self.slow_ms = 60
        self.slow_edges: dict[Edge, int] = {}  #: extra delay, ms
        self._held: dict[Edge, list[tuple[Channel, Callable[..., None], tuple[Any, ...]]]] = {}

    def delay_ns(self, edge: Edge) -> int:
        rng = self._rng
        delay = int((0.2 + rng.random() ** 3 * 4) * MS)
        if rng.random() < self.slow_share:
            delay += int(rng.random() * self.slow_ms * MS)
        extra = self.slow_edges.get(edge)
        if extra:
            delay += int(rng.random() * extra * MS)
        return delay

    def datagram(self, edge: Edge, action: Callable[..., None], *arguments: Any) -> None:
        if edge in self.cuts or (self.loss and self._rng.random() < self.loss):
            return
        self._scheduler.after(self.delay_ns(edge), action, *arguments)
        if self.doubling and self._rng.random() < self.doubling:
            again = self.delay_ns(edge) * 5 + int(self._rng.random() * self.slow_ms * 5 * MS)
            self._scheduler.after(again, action, *arguments)

    def frame(self, channel: "Channel", action: Callable[..., None], *arguments: Any) -> None:
        if channel.edge in self.cuts:
            self._held.setdefault(channel.edge, []).append((channel, action, arguments))
            return
        due = self._scheduler.now + self.delay_ns(channel.edge)
        channel.last_due = max(due, channel.last_due + 1)
        self._scheduler.at(channel.last_due, action, *arguments)

    def cut(self, *edges: Edge) -> None:
        self.cuts.update(edges)

    def heal(self, *edges: Edge) -> None:
        for edge in sorted(edges):
            self.cuts.discard(edge)
            for channel, action, arguments in self._held.pop(edge, []):
                self.frame(channel, action, *arguments)

    def heal_all(self) -> None:
        self.heal(*sorted(self.cuts))
        self.rejects.clear()
        self.loss = self.doubling = 0.0
        self.slow_edges.clear()


class Channel:
    """One direction of a stream."""

    __slots__ = ("edge", "last_due")

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.last_due = 0
