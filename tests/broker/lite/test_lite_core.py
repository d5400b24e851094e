"""Lite subscriptions against a model of plain sets."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.broker.lite.core import Eviction, LiteTable

QUEUES = [f"q{n}" for n in range(6)]
GROUPS = ["g", "h"]
KEYS = st.tuples(st.sampled_from(GROUPS), st.sampled_from(["c1", "c2", "c3"]))
SOME = st.lists(st.sampled_from(QUEUES), max_size=4, unique=True)
PARENT = "p"
REFERENCES_MAX = 14


class Subscriptions(RuleBasedStateMachine):
    """The model: a set of queues per client, and the queues that each client has to read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LiteTable(REFERENCES_MAX)
        self.sets: dict[tuple[str, str], set[str]] = {}
        self.owed: dict[tuple[str, str], set[str]] = {}
        self.seen: dict[tuple[str, str], int] = {}
        self.now = 0

    @initialize(events_max=st.integers(1, 3), exclusive=st.booleans(), wildcard=st.booleans())
    def begin(self, events_max: int, exclusive: bool, wildcard: bool) -> None:
        """Group `h` may have wildcard clients; both groups may be exclusive."""
        self.events_max, self.exclusive, self.wildcard = events_max, exclusive, wildcard

    def is_wild(self, key: tuple[str, str]) -> bool:
        return self.wildcard and key[0] == "h"

    def open(self, key: tuple[str, str]):  # type: ignore[no-untyped-def]
        self.now += 1
        self.seen[key] = self.now
        if key not in self.sets:
            self.sets[key], self.owed[key] = set(), set()
        return self.table.open(key, PARENT, self.events_max, self.now, wildcard=self.is_wild(key))

    def lose(self, key: tuple[str, str], queues: set[str]) -> None:
        self.sets[key] -= queues
        self.owed[key] -= queues

    @rule(key=KEYS, queues=SOME)
    def add(self, key: tuple[str, str], queues: list[str]) -> None:
        client = self.open(key)
        if self.is_wild(key):
            return
        room = sum(map(len, self.sets.values())) + len(set(queues) - self.sets[key])
        assert self.table.has_capacity(client, queues) == (room <= REFERENCES_MAX)
        if room > REFERENCES_MAX:
            return
        evicted = set(self.table.add(client, queues, exclusive=self.exclusive))
        expected = set()
        if self.exclusive:
            for other in self.sets:
                if other != key and other[0] == key[0]:
                    lost = self.sets[other] & set(queues)
                    expected |= {Eviction(other[1], queue) for queue in lost}
                    self.lose(other, lost)
        assert evicted == expected
        self.sets[key] |= set(queues)

    @rule(key=KEYS, queues=SOME)
    def refresh(self, key: tuple[str, str], queues: list[str]) -> None:
        client = self.open(key)
        if self.is_wild(key) or not self.table.has_capacity(client, queues):
            return
        refused = {
            one.queue for one in self.table.replace(client, queues, exclusive=self.exclusive)
        }
        taken = set()
        if self.exclusive:
            for other, held in self.sets.items():
                if other != key and other[0] == key[0]:
                    taken |= held & set(queues)
        assert refused == taken
        self.lose(key, self.sets[key] - set(queues))
        self.sets[key] |= set(queues) - taken

    @rule(key=KEYS, queues=SOME)
    def remove(self, key: tuple[str, str], queues: list[str]) -> None:
        client = self.table.get(key)
        if client is None:
            return
        assert set(self.table.remove(client, queues)) == self.sets[key] & set(queues)
        self.lose(key, set(queues) & self.sets[key])

    @rule(key=KEYS)
    def drop(self, key: tuple[str, str]) -> None:
        assert self.table.drop(key) == (key in self.sets)
        self.gone(key)

    def gone(self, key: tuple[str, str]) -> None:
        for table in (self.sets, self.owed, self.seen):
            table.pop(key, None)

    @rule(age=st.integers(0, 10))
    def expire(self, age: int) -> None:
        cut = self.now - age
        expected = {key for key, seen in self.seen.items() if seen < cut}
        assert set(self.table.expire(cut)) == expected
        for key in expected:
            self.gone(key)

    @rule(queue=st.sampled_from(QUEUES), group=st.sampled_from([None, *GROUPS]))
    def ready(self, queue: str, group: str | None) -> None:
        reported = {client.key for client in self.table.ready(queue, PARENT, group)}
        wanted = {
            key
            for key, queues in self.sets.items()
            if group in (None, key[0]) and (self.is_wild(key) or queue in queues)
        }
        assert reported == wanted
        for key in wanted:
            self.owed[key].add(queue)

    @rule(key=KEYS)
    def drain(self, key: tuple[str, str]) -> None:
        """A client that takes until nothing is left has read every queue it should."""
        client = self.table.get(key)
        if client is None:
            return
        looked = set()
        for _ in range(3 * len(QUEUES) + 3):
            queue = self.table.take(client, lambda: QUEUES)
            if queue is None:
                break
            looked.add(queue)
        else:
            raise AssertionError("it never ends")
        assert looked >= self.owed[key]
        assert self.is_wild(key) or looked <= self.sets[key]
        self.owed[key].clear()

    @invariant()
    def holds(self) -> None:
        self.table.validate()
        assert {c.key: set(c.queues) for c in self.table} == {
            key: (set() if self.is_wild(key) else queues) for key, queues in self.sets.items()
        }


TestSubscriptions = Subscriptions.TestCase
TestSubscriptions.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
