"""Property of time: messages of every kind under a clock that jumps both ways, with restarts.

Nothing is lost; nothing is hidden for longer than its own time, counted from the last restart; and
nothing comes early by more than the clock has jumped forward.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.proto import v2
from cometmq.tests.broker.base.test_clock_steps import Machine, leveled, machine
from cometmq.tests.broker.desk import message
from cometmq.tests.broker.lite_desk import ADD, Lite
from cometmq.tests.broker.live import until
from cometmq.tests.broker.stepping import DAY, HOUR, SECOND, YEAR
from cometmq.tests.broker.timing import delayed, stored
from cometmq.tests.broker.transacting import end_transaction, prepared

#: Topic and group of each kind of consumption; the third is lite.
POP, FIFO, LITE = ("t", "g"), ("ordered", "fifo"), ("chats", "g-lite")
TIMERS, HALVES = "timers", "halves"
INVISIBLE_MS = 20 * SECOND
#: The longest time of its own that a message has here: level 4.
OWN_MS = 30 * SECOND
#: Half messages of this age are given up.
GIVEN_UP_MS = 3 * DAY
STEPS = (SECOND, 5 * SECOND, 8 * HOUR, 9 * DAY, YEAR)
ACTIONS = (
    *("send", "fifo", "lite", "level", "timer", "half", "end"),
    *("receive", "receive", "ack", "change", "pass", "forward", "back", "back", "restart"),
)


@dataclass
class Model:
    """What was sent and is not acknowledged, and since when each is hidden."""

    one: Machine
    source: random.Random
    number: int = 0
    #: By body: not before the last of these was it visible, in passed time and forward steps.
    hidden: dict[bytes, int] = field(default_factory=dict)
    waiting: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    #: By ordered group: its batch, and until when each message of it that is not acknowledged locks
    #: the queue.
    locked: dict[tuple[str, str], dict[bytes, int]] = field(default_factory=dict)
    #: Acknowledged after its time: after a restart it may lie in the retry topic already, where the
    #: acknowledgement does not reach it.
    late: set[bytes] = field(default_factory=set)
    handles: list[tuple[tuple[str, str], bytes, str]] = field(default_factory=list)
    #: Body, transaction id, and when it was sent.
    halves: list[tuple[bytes, str, int]] = field(default_factory=list)
    committed: set[bytes] = field(default_factory=set)
    timers: dict[bytes, int] = field(default_factory=dict)
    #: Time that has passed, and all forward steps.
    elapsed_ms: int = 0
    latest_wall_ms: int = 0

    def body(self) -> bytes:
        self.number += 1
        return b"m%d" % self.number

    def add(self, pair: tuple[str, str], own_ms: int = 0) -> bytes:
        body = self.body()
        self.waiting.setdefault(pair, set()).add(body)
        self.hidden[body] = self.elapsed_ms + own_ms
        return body

    async def open(self) -> None:
        k = self.one.k
        k.group(POP[1])
        k.group(FIFO[1], orderly=True)
        k.topic(POP[0])
        k.topic(FIFO[0], message_type=v2.FIFO)
        k.topic(TIMERS, message_type=v2.DELAY)
        k.topic(HALVES, message_type=v2.TRANSACTION)
        self.lite.parent()
        self.lite.bind(LITE[1])
        self.subscribe()

    @property
    def lite(self) -> Lite:
        return Lite(self.one.k, LITE[1])

    def subscribe(self) -> None:
        assert self.lite.sync(ADD, "a") == v2.OK

    async def act(self, action: str) -> None:
        await getattr(self, f"do_{action}")()
        self.latest_wall_ms = max(self.latest_wall_ms, self.one.clock.wall_ms())

    async def do_send(self) -> None:
        await self.one.k.sent(POP[0], self.add(POP))

    async def do_fifo(self) -> None:
        sent = message(FIFO[0], self.add(FIFO), message_type=v2.FIFO, message_group="one")
        assert (await self.one.k.send(sent)).status.code == v2.OK

    async def do_lite(self) -> None:
        await self.lite.send("a", self.add(LITE))

    async def do_level(self) -> None:
        level, own_ms = self.source.choice(((1, SECOND), (3, 10 * SECOND), (4, OWN_MS)))
        await leveled(self.one.k, self.add(POP, own_ms), level)

    async def do_timer(self) -> None:
        body = self.body()
        due_ms = self.one.clock.wall_ms() + self.source.choice((SECOND, OWN_MS, HOUR))
        assert (await self.one.k.send(delayed(body, due_ms, topic=TIMERS))).status.code == v2.OK
        self.timers[body] = due_ms

    async def do_half(self) -> None:
        body = self.body()
        (ident,) = await prepared(self.one.k, HALVES, body.decode())
        self.halves.append((body, ident, self.elapsed_ms))

    async def do_end(self) -> None:
        if self.halves:
            body, ident, since_ms = self.halves.pop(self.source.randrange(len(self.halves)))
            code = await end_transaction(self.one.k, HALVES, ident)
            if self.elapsed_ms - since_ms <= GIVEN_UP_MS:
                assert code == v2.OK, f"{body!r} was given up early"
                self.committed.add(body)

    async def do_receive(self) -> None:
        await self.receive(self.source.choice((POP, FIFO, LITE)))

    async def receive(self, pair: tuple[str, str]) -> int:
        k = self.one.k
        batch = self.source.choice((1, 2, 32))
        ctx = k.context(remaining_ms=60)  # no long poll
        got = await k.receive(*pair, ctx, invisible_ms=INVISIBLE_MS, batch=batch)
        for body, handle in zip(got.bodies, got.handles, strict=True):
            assert self.elapsed_ms >= self.hidden[body], f"{body!r} came early"
            # A FIFO batch comes again as a whole: some of it may be acknowledged.
            known = self.waiting[pair] | self.late
            assert body in known or pair != POP, f"{body!r} was acknowledged"
            self.hidden[body] = self.elapsed_ms + INVISIBLE_MS if pair == POP else 0
            self.handles.append((pair, body, handle))
        if got.bodies and pair != POP:
            until_ms = max(self.locked.get(pair, {}).values(), default=0)
            assert self.elapsed_ms >= until_ms, f"{pair} was locked"
            self.locked[pair] = dict.fromkeys(got.bodies, self.elapsed_ms + INVISIBLE_MS)
        return len(got.bodies)

    async def do_ack(self) -> None:
        if self.handles:
            pair, body, handle = self.handles.pop()
            if pair == LITE:
                answer = self.lite.ack(handle, lite="a")
            else:
                answer = self.one.k.ack(*pair, handle)
            if answer.entries[0].status.code == v2.OK:
                self.waiting[pair].discard(body)
                self.locked.get(pair, {}).pop(body, None)
                if self.elapsed_ms >= self.hidden[body]:
                    self.late.add(body)

    async def do_change(self) -> None:
        if self.handles:
            pair, body, handle = self.handles.pop()
            ms = self.source.choice((SECOND, INVISIBLE_MS))
            more = {"lite_topic": "a"} if pair == LITE else {}
            answer = self.one.k.change(*pair, handle, ms, **more)
            if answer.status.code == v2.OK:
                self.hidden[body] = self.elapsed_ms + ms if pair == POP else 0
                if body in (batch := self.locked.get(pair, {})):
                    batch[body] = self.elapsed_ms + ms
                # Clients use the one or the other.
                both = (handle, answer.receipt_handle)
                self.handles.append((pair, body, self.source.choice(both)))

    async def do_pass(self) -> None:
        await self.passes(self.source.choice((SECOND, 10 * SECOND, OWN_MS)))

    async def passes(self, ms: int) -> None:
        self.one.passes(ms)
        self.elapsed_ms += ms
        await asyncio.sleep(0)

    async def do_forward(self) -> None:
        ms = self.source.choice(STEPS)
        self.elapsed_ms += ms
        await self.one.step(ms)

    async def do_back(self) -> None:
        await self.one.step(-self.source.choice(STEPS))

    async def do_restart(self) -> None:
        await self.one.k.dispatched()
        ms = self.source.choice((0, *STEPS)) * self.source.choice((-1, 1))
        self.elapsed_ms += max(ms, 0)
        await self.one.step(ms, stopped=True)
        self.subscribe()

    async def check(self) -> None:
        """Check that messages arrive within their own duration, and timers at their wall time."""
        await self.one.k.dispatched()
        await asyncio.sleep(0.01)
        await self.passes(OWN_MS)
        while self.halves:
            await self.do_end()
        for pair in (POP, FIFO, LITE):
            left = set(self.waiting.get(pair, ()))
            async with asyncio.timeout(30):
                while left:
                    if not await self.receive(pair):
                        await asyncio.sleep(0.005)
                    while self.handles:
                        _, body, _ = self.handles[-1]
                        await self.do_ack()
                        left.discard(body)
        await until(lambda: self.committed <= self.came(HALVES), 30)
        now_ms = self.one.clock.wall_ms()
        due = {body for body, due_ms in self.timers.items() if due_ms <= now_ms}
        await until(lambda: due <= self.came(TIMERS), 30)
        early = self.came(TIMERS) - due
        assert all(self.timers[body] <= self.latest_wall_ms for body in early), "timer came early"
        await self.one.step(max([now_ms, *self.timers.values()]) - now_ms + SECOND)
        await until(lambda: set(self.timers) <= self.came(TIMERS), 30)

    def came(self, topic: str) -> set[bytes]:
        if topic == HALVES:
            return {one.properties_dict["UNIQ_KEY"].encode() for one in stored(self.one.k, topic)}
        return {one.body for one in stored(self.one.k, topic)}


@given(st.lists(st.sampled_from(ACTIONS), min_size=8, max_size=30), st.randoms())
@settings(max_examples=40, deadline=None)
def test_nothing_is_lost_hidden_longer_or_early_by_more_than_the_jump(
    tmp_path_factory: object, actions: list[str], source: random.Random
) -> None:
    root: Path = tmp_path_factory.mktemp("clock")  # type: ignore[attr-defined]

    async def run() -> None:
        async with machine(root) as one:
            model = Model(one, source)
            await model.open()
            for action in actions:
                await model.act(action)
            await model.check()

    try:
        asyncio.run(run())
    finally:
        shutil.rmtree(root)  # 60 MB an example
