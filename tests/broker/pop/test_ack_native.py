"""AckMessage read by the native crate: the same state and answers as the Python path."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.base.late_request import decoded_late
from cometmq.broker.names.delivery import Delivery
from cometmq.broker.pop.ack_request import AckRequest, common_acks
from cometmq.broker.pop.group import PopGroup
from cometmq.broker.pop.queue import PopQueue
from cometmq.front.clock import Clock
from cometmq.front.service import Method, methods_of, read_request
from cometmq.proto import native, v2
from cometmq.proto.errors import RpcFailure, WireError
from cometmq.proto.request_limits import ACKS_MAX
from cometmq.tests.broker.desk import Desk, desk, resource
from cometmq.tests.broker.pop.ack_cases import BROKER, check, run

CRATE = native.load()
READ = common_acks(CRATE, BROKER)
pytestmark = pytest.mark.skipif(READ is None, reason="requires the native crate")
SEEDS = st.integers(0, 1 << 62)
QUEUES = 3


def test_the_crate_reads_what_python_decodes() -> None:
    assert run(2_000, seed=1).equal > 1_000


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_other_bytes_are_not_read_unless_python_decodes_them(raw: bytes) -> None:
    assert READ is not None
    check(READ, raw)


def test_more_entries_than_the_limit_take_the_python_path() -> None:
    assert READ is not None
    request = v2.AckMessageRequest(group=resource("g"), topic=resource("t"))
    for offset in range(ACKS_MAX + 1):
        request.entries.add(receipt_handle=f"0 1 2 0 0 {BROKER} 0 {offset} 9")
    assert READ(request.SerializeToString()) is None
    del request.entries[-1]
    assert READ(request.SerializeToString()) is not None


@given(
    st.sets(st.integers(0, 12)),
    st.sets(st.integers(0, 12)),
    st.integers(0, 6),
    st.integers(0, 7),
    st.randoms(use_true_random=False),
)
def test_many_acknowledgements_leave_the_state_of_one_after_another(
    in_flight: set[int], moving: set[int], committed: int, read: int, source: random.Random
) -> None:
    def queue() -> PopQueue:
        made = PopQueue((0, 0), "t", committed, committed + read)
        made.moving = dict.fromkeys(moving - in_flight, True)
        for offset in in_flight:
            stored = offset % 3 == 0
            made.unacked[offset] = Delivery(offset, 5, 9, 1, "c", 5, stored=stored)
        return made

    one, other = queue(), queue()
    chosen = source.sample(sorted(in_flight), source.randrange(len(in_flight) + 1))
    assert one.holds(chosen, [5] * len(chosen))
    one.ack_all(chosen)
    assert all(other.ack(offset, 5) for offset in chosen)
    assert _state(one) == _state(other)
    assert not one.holds([*one.unacked, 99], [5] * (len(one.unacked) + 1))


def _state(queue: PopQueue) -> object:
    return queue.committed, queue.next_read, sorted(queue.unacked), queue.skips, queue.moving


class _StillClock(Clock):
    """Both brokers deliver at the same times, and no delivery expires or is stored: how far that
    has come would differ."""

    def wall_ms(self) -> int:
        return 1_795_255_684_123

    def ahead_ms(self) -> int:
        return 0

    def forward_ms(self) -> int:
        return self.wall_ms()


@dataclass(slots=True)
class Side:
    """A broker, and its AckMessage as the client port calls it."""

    desk: Desk
    method: Method
    #: How many requests the native path took.
    taken: int = 0
    handles: list[str] = field(default_factory=list)

    async def ack(self, raw: bytes) -> object:
        """Acknowledge; return the answer, or kind and text of the failure."""
        ctx = self.desk.context()
        try:
            return self.method.handler(read_request(self.method, raw, ctx), ctx)
        except (RpcFailure, WireError) as error:
            return type(error), error.message

    async def send(self, count: int) -> None:
        """Send messages."""
        await self.desk.sent("t", *(b"%d" % number for number in range(count)))

    async def receive(self, batch: int) -> None:
        """Receive what is there; note the handles."""
        self.desk.node.pump.run_to_limit()
        ctx = self.desk.context(remaining_ms=50)
        found = await self.desk.receive("t", "g", ctx, batch=batch, invisible_ms=10_000)
        self.handles += found.handles

    def state(self) -> object:
        """Return the pop state, the counter and the open messages of the journal."""
        node = self.desk.node
        core = node.pop.existing_core("t", "g")
        if not isinstance(core, PopGroup):
            return None
        queues = {key: _state(queue) for key, queue in sorted(core.queues.items())}
        journal: Any = self.desk.acks._journal
        opened = {
            (book.topic, book.queue_id): sorted(book.open)
            for book in journal.core.all_books()
            if book.open
        }
        return queues, node.runtime.counters.acked, opened


@dataclass(slots=True)
class Pair:
    """A broker with the crate and one without, in one event loop."""

    loop: asyncio.AbstractEventLoop
    native: Side
    python: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both."""
        return self.native, self.python

    def run(self, source: random.Random, steps: int) -> None:
        """Run a generated program on both; compare every answer and state."""
        for _ in range(steps):
            draw = source.random()
            if draw < 0.2:
                count = source.randrange(1, 9)
                self.both(lambda side, count=count: side.send(count))
            elif draw < 0.5:
                batch = source.randrange(1, 7)
                self.both(lambda side, batch=batch: side.receive(batch))
                assert self.native.handles == self.python.handles
            else:
                self.compare(_request(source, self.native.handles[-30:]))

    def both(self, step: Any) -> None:
        """Run a step on both."""
        for side in self.sides:
            self.loop.run_until_complete(step(side))

    def compare(self, raw: bytes) -> Any:
        """Acknowledge on both; return the answer."""
        one, other = (self.loop.run_until_complete(side.ack(raw)) for side in self.sides)
        assert one == other
        assert self.native.state() == self.python.state()
        return one


def _request(source: random.Random, handles: list[str]) -> bytes:
    names = ("t", "g") if source.random() < 0.9 else source.choice((("t", "other"), ("u", "g")))
    request = v2.AckMessageRequest(topic=resource(names[0]), group=resource(names[1]))
    chosen = source.sample(handles, source.randrange(min(6, len(handles)) + 1))
    if source.random() < 0.1:
        chosen += chosen[:1]
    for handle in chosen:
        text = handle
        if source.random() < 0.03:
            text = handle.replace(" 0 ", " 1 ", 1)
        if source.random() < 0.03:
            text = handle + " "
        request.entries.add(message_id=source.choice(("m", "")), receipt_handle=text)
    return request.SerializeToString()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def side(name: str, switch: str) -> Side:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(native.SWITCH, switch)
            directory: Path = tmp_path_factory.mktemp(name)
            opened = await stack.enter_async_context(desk(directory, clock=_StillClock()))
        opened.topic("t", QUEUES)
        opened.topic("u", QUEUES)
        opened.group("g")
        assert opened.acks.takes_bytes == (switch == "")
        (row,) = methods_of("apache.rocketmq.v2.MessagingService", {"AckMessage": opened.acks.ack})
        method = decoded_late(row, AckRequest) if opened.acks.takes_bytes else row
        made = Side(opened, method)
        common = opened.acks._ack_common

        def counting(raw: bytes, ctx: Any) -> bytes | None:
            answer = common(raw, ctx)
            made.taken += answer is not None
            return answer

        opened.acks._ack_common = counting  # type: ignore[method-assign]
        return made

    sides = [loop.run_until_complete(side(*terms)) for terms in (("native", ""), ("python", "off"))]
    yield Pair(loop, *sides)
    loop.run_until_complete(stack.aclose())
    loop.close()


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_both_paths_answer_the_same_and_leave_the_same_state(pair: Pair, seed: int) -> None:
    pair.run(random.Random(seed), 12)


def test_common_requests_take_the_native_path(pair: Pair) -> None:
    pair.both(lambda side: side.send(6))
    known = len(pair.native.handles)
    for _ in range(QUEUES):
        pair.both(lambda side: side.receive(32))
    request = v2.AckMessageRequest(topic=resource("t"), group=resource("g"))
    for handle in pair.native.handles[known:]:
        request.entries.add(message_id="m", receipt_handle=handle)
    before = pair.native.taken
    answer = pair.compare(request.SerializeToString())
    assert isinstance(answer, bytes)
    assert v2.AckMessageResponse.FromString(answer).status.code == v2.OK
    assert (pair.native.taken - before, pair.python.taken) == (1, 0)


def test_requests_with_a_delivery_that_has_ended_take_the_python_path(pair: Pair) -> None:
    pair.both(lambda side: side.send(1))
    for _ in range(QUEUES):
        pair.both(lambda side: side.receive(32))
    request = v2.AckMessageRequest(topic=resource("t"), group=resource("g"))
    request.entries.add(message_id="m", receipt_handle=pair.native.handles[-1])
    before = pair.native.taken
    for _ in range(2):
        pair.compare(request.SerializeToString())
    assert pair.native.taken - before == 1


def test_undecodable_requests_fail_as_without_the_crate(pair: Pair) -> None:
    kind, text = pair.compare(b"\x0a\x05x")
    assert kind is RpcFailure and "cannot decode the request" in text
