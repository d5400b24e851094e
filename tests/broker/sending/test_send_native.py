"""The native path of SendMessage gives the same records, units, answers and counters as Python."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.auth.quota import Quota
from cometmq.broker.base.late_request import decoded_late
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.sending.grpc_send import GrpcRow, SendRequest
from cometmq.front.clock import Clock
from cometmq.front.context import RequestContext
from cometmq.front.service import Method, methods_of, read_request
from cometmq.proto import native, v2
from cometmq.proto.errors import RpcFailure, WireError
from cometmq.store.format.record import pack_host
from cometmq.store.format.record_layout import (
    BLANK,
    UNIT,
)
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.tests.broker.desk import Desk, desk
from cometmq.tests.broker.desk import message as sent_message
from cometmq.tests.broker.live import settings as settings_of
from cometmq.tests.broker.sending.send_cases import TOPICS, Case, Cases, check

CRATE: Any = native.load()
Requests: Any = CRATE and CRATE.requests
pytestmark = pytest.mark.skipif(CRATE is None, reason="requires the native crate")
SEEDS = st.integers(0, 1 << 62)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_both_paths_make_the_same_of_the_requests_of_a_turn(seed: int) -> None:
    source = random.Random(seed)
    cases = Cases(source)
    check(CRATE, [cases.case() for _ in range(source.randrange(1, 40))])


def test_many_common_requests_are_accepted() -> None:
    cases = Cases(random.Random(3))
    turns = [[cases.case() for _ in range(20)] for _ in range(100)]
    assert sum(check(CRATE, turn) for turn in turns) > 500


class _StillClock(Clock):
    """Both brokers store the same times."""

    now_ms = 1_795_255_684_123

    def wall_ms(self) -> int:
        return self.now_ms

    def ahead_ms(self) -> int:
        return 0

    def forward_ms(self) -> int:
        return self.wall_ms()


@dataclass(slots=True)
class Side:
    """A broker, and its SendMessage as the client port calls it."""

    desk: Desk
    method: Method
    base: int
    #: Requests of the last `send` that were taken together.
    taken: int = 0

    async def send(self, cases: list[Case], *, together: bool = False) -> list[object]:
        """Send requests in one turn of the loop; return bytes, or the kind and text of failures.

        `together`: as a row of calls, like the native door.
        """
        answers: list[Any] = self.take(cases) if together else []
        self.taken = len(answers)
        for case in cases[len(answers) :]:
            ctx = RequestContext("c@1", peer=_peer(case), request_bytes=len(case.raw))
            try:
                request = read_request(self.method, case.raw, ctx)
                answers.append(self.method.handler(request, ctx))
            except (RpcFailure, WireError) as error:
                answers.append(asyncio.get_running_loop().create_future())
                answers[-1].set_exception(error)
        return [await _outcome(answer) for answer in answers]

    def take(self, cases: list[Case]) -> list[Any]:
        """Return the futures of the requests that are taken together."""
        contexts = {_peer(case): RequestContext("c@1", peer=_peer(case)) for case in cases}
        runs = groupby(cases, key=_peer)
        taken = self.desk.node.sender.take(
            Requests([case.raw for case in cases]),
            [(contexts[peer], len(list(own))) for peer, own in runs],
        )
        if taken is None:
            return []
        futures = [asyncio.get_running_loop().create_future() for _ in range(taken.count)]

        def answer(answers: list[bytes]) -> None:
            for future, content in zip(futures, answers, strict=True):
                future.set_result(content)

        taken.then(answer)
        return futures

    def state(self) -> object:
        """Return the log since the start, the queues and the counters."""
        node = self.desk.node
        node.pump.run_to_limit()
        store = node.store
        log = b""
        while self.base + len(log) < store.log_end:
            log += store.read_log(self.base + len(log), 1 << 24)
        queues = {
            name: _units(queue)
            for name, queue in store.queue_table.queues.items()
            if name[0] in TOPICS
        }
        self.base = store.log_end
        sent = {key: total for key, total in node.runtime.counters.sent.items() if key[0] in TOPICS}
        refused = node.runtime.counters.refused_sends
        return len(log), _records(log), queues, sent, refused


def _peer(case: Case) -> str:
    return f"{case.peer[0]}:50001" if case.peer[0] != "::1" else "[::1]:50001"


def _records(log: bytes) -> list[bytes]:
    """Return the records, without the copies of the metadata: they name the broker's ports."""
    found, at = [], 0
    while at < len(log):
        size, _ = BLANK.unpack_from(log, at)
        found.append(log[at : at + size])
        at += size
    return [record for record in found if META_TOPIC.encode() not in record]


def _units(queue: ConsumeQueue) -> bytes:
    units = b""
    while len(units) < queue.max_offset * UNIT.size:
        units += queue.read(len(units) // UNIT.size, queue.max_offset)
    return units


async def _outcome(answer: Any) -> object:
    try:
        return await answer
    except (RpcFailure, WireError) as error:
        return type(error), error.message


@dataclass(slots=True)
class Pair:
    """A broker with the crate and one without, in one event loop."""

    loop: asyncio.AbstractEventLoop
    native: Side
    python: Side

    def compare(self, cases: list[Case], *, together: bool = False) -> int:
        """Send the requests to both and compare everything; return how many were accepted.

        `together`: the broker with the crate gets them as a row of calls.
        """
        accepted = []
        path = self.native.desk.node.sender._native
        assert path is not None and self.python.desk.node.sender._native is None
        append = path.plan

        def counting(batch: Any, at: int) -> Any:
            plan = append(batch, at)
            accepted.append(0 if plan is None else len(plan.ends))
            return plan

        path.plan = counting  # type: ignore[method-assign]
        try:
            sent = self.native.send(cases, together=together)
            answers = self.loop.run_until_complete(sent)
        finally:
            path.plan = append  # type: ignore[method-assign]
        assert answers == self.loop.run_until_complete(self.python.send(cases))
        assert self.native.state() == self.python.state()
        return sum(accepted)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def side(name: str, switch: str) -> Side:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(native.SWITCH, switch)
            directory: Path = tmp_path_factory.mktemp(name)
            # A new topic is written to the log before or after the requests ahead of its own.
            opened = await stack.enter_async_context(
                desk(directory, clock=_StillClock(), auto_create_topic_enable=False)
            )
        node = opened.node
        node.sender.set_store_host(pack_host("10.0.0.1", 8081))
        for topic in TOPICS.values():
            node.meta_log.write_topic(
                Topic(topic.name, topic.read_queues, topic.write_queues, topic.perm,
                      message_type=topic.message_type)
            )  # fmt: skip
        # The first message of a type creates its system topic.
        later = v2.Timestamp(seconds=_StillClock.now_ms // 1_000 + 60)
        await opened.send(sent_message("mixed", delivery_timestamp=later))
        await opened.send(sent_message("mixed", message_type=v2.TRANSACTION))
        await opened.send(sent_message("mixed", lite_topic="lite"))
        return Side(opened, _method(opened), node.store.log_end)

    async def both() -> Pair:
        return Pair(loop, await side("native", ""), await side("python", "off"))

    opened = loop.run_until_complete(both())
    yield opened
    loop.run_until_complete(stack.aclose())
    loop.close()


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.booleans())
def test_both_brokers_store_and_answer_the_same(pair: Pair, seed: int, together: bool) -> None:
    source = random.Random(seed)
    cases = Cases(source)
    pair.compare([cases.case() for _ in range(source.randrange(1, 30))], together=together)


def _request(body: int, topic: str = "normal", count: int = 1, **system: Any) -> Case:
    messages = [
        sent_message(topic, bytes(body), message_id=f"ID-{n}", **system) for n in range(count)
    ]
    raw = v2.SendMessageRequest(messages=messages).SerializeToString()
    return Case(raw, ("10.0.0.2", pack_host("10.0.0.2", 50001)), as_sent=True)


@pytest.mark.parametrize("together", [False, True])
def test_requests_that_cross_a_segment_are_stored_the_same(pair: Pair, together: bool) -> None:
    before = pair.native.base
    for _ in range(6):
        pair.compare([_request(30_000, count=4) for _ in range(4)], together=together)
    assert pair.native.base - before > 2 << 20, "several segments of 1 MiB"


def test_a_refused_request_between_common_ones_keeps_the_order(pair: Pair) -> None:
    delayed = _request(10, delivery_timestamp=v2.Timestamp(seconds=1))
    pair.compare([_request(10)])
    common = [_request(10) for _ in range(3)]
    mixed = [*common, delayed, *common, delayed, delayed, *common]
    assert pair.compare(mixed) == 9
    assert pair.compare(mixed, together=True) == 9
    assert pair.native.taken == 3


def test_damaged_requests_fail_as_in_the_door(pair: Pair) -> None:
    damaged = Case(b"\x0a\xff\x01", ("10.0.0.2", b""), as_sent=False)
    many = _request(1, count=1_001)
    assert pair.compare([damaged, many, damaged]) == 0


def test_many_requests_are_taken_in_one_step(pair: Pair) -> None:
    taken = []
    for _ in range(2):  # a segment may end in one of both rows
        pair.compare([_request(900) for _ in range(300)], together=True)
        taken.append(pair.native.taken)
    assert max(taken) == 300


def test_requests_are_not_taken_before_collected_ones(pair: Pair) -> None:
    side = pair.native

    async def send() -> None:
        ctx = RequestContext("c@1", peer="10.0.0.2:50001")
        first = side.method.handler(read_request(side.method, _request(10).raw, ctx), ctx)
        assert not side.take([_request(10)])
        await first
        assert len(side.take([_request(10)])) == 1

    pair.loop.run_until_complete(send())
    pair.loop.run_until_complete(pair.python.send([_request(10), _request(10)]))
    assert side.state() == pair.python.state()


@pytest.mark.parametrize("client_id", ["", " "])
def test_a_request_without_a_client_id_is_not_taken(pair: Pair, client_id: str) -> None:
    sender = pair.native.desk.node.sender
    known, unknown = RequestContext("c@1"), RequestContext(client_id)
    raw = _request(10).raw
    requests = Requests([raw, raw, raw])
    taken = sender.take(requests, [(known, 1), (unknown, 1), (known, 1)])
    assert taken is not None and taken.count == 1
    assert sender.take(requests, [(unknown, 3)]) is None
    pair.loop.run_until_complete(pair.python.send([_request(10)]))
    pair.native.state()
    pair.python.state()


def test_a_request_to_a_topic_that_a_client_may_not_send_to_is_not_taken(pair: Pair) -> None:
    sender = pair.native.desk.node.sender
    raws = [_request(10).raw, _request(10, "one").raw, _request(10).raw]
    row = Requests(raws), [(RequestContext("c@1", peer="10.0.0.2:50001"), 3)]
    taken = sender.take(*row, lambda topic: topic != "one")
    assert taken is not None and taken.count == 1
    assert sender.take(*row, lambda topic: topic != "normal") is None
    pair.loop.run_until_complete(pair.python.send([_request(10)]))
    assert pair.native.state() == pair.python.state()


def test_an_error_in_the_middle_leaves_the_stored_requests_answered(pair: Pair) -> None:
    side = pair.native
    path = side.desk.node.sender._native
    assert path is not None
    append = path.plan

    def broken(batch: Any, at: int) -> Any:
        if at and isinstance(batch, GrpcRow):
            raise ZeroDivisionError
        return append(batch, at)

    path.plan = broken  # type: ignore[method-assign]
    large = [_request(60_000) for _ in range(3)]  # two fill a plan
    taken = []
    try:
        for _ in range(2):  # a segment may end before the first request, but not twice
            answers = pair.loop.run_until_complete(side.send(large, together=True))
            taken.append(side.taken)
            assert answers == pair.loop.run_until_complete(pair.python.send(large))
            assert side.state() == pair.python.state()
    finally:
        path.plan = append  # type: ignore[method-assign]
    assert 0 < max(taken) < 3


def test_requests_above_the_capacity_are_not_taken(pair: Pair) -> None:
    queue = pair.native.desk.node.sender._queue
    before, queue._capacity = queue._capacity, 2
    try:
        assert not pair.native.take([_request(10)] * 3)
    finally:
        queue._capacity = before


def test_a_quota_counts_each_request(pair: Pair) -> None:
    both = (pair.native, pair.python)
    for side in both:
        side.desk.node.metadata.put_quota(Quota("Topic:normal", messages=1_000))
    assert pair.compare([_request(10)]) == 1
    assert pair.compare([_request(10)], together=True) == 1
    assert pair.native.taken == 0
    for side in both:
        side.desk.node.metadata.remove_quota("Topic:normal")
    assert pair.compare([_request(10)]) == 1


async def test_requests_taken_together_are_answered_when_the_log_is_flushed(tmp_path: Path) -> None:
    chosen = settings_of(tmp_path)
    store = replace(chosen.store, flush_disk_type="SYNC_FLUSH")
    async with desk(tmp_path, replace(chosen, store=store)) as opened:
        opened.topic("normal")
        await opened.sent("normal", b"the first record of the log")
        sender, gate = opened.node.sender, opened.node.durability
        ctx = RequestContext("c@1", peer="10.0.0.2:50001")
        taken = sender.take(Requests([_request(10).raw] * 3), [(ctx, 3)])
        assert taken is not None
        answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        taken.then(answered.set_result)
        assert not answered.done()
        assert len(gate) == 3, "each request counts for sendThreadPoolQueueCapacity"
        answers = [v2.SendMessageResponse.FromString(each) for each in await answered]
        assert [answer.status.code for answer in answers] == [v2.OK] * 3
        assert len(gate) == 0
        assert opened.node.store.flushed_offset >= taken._end


async def test_requests_taken_together_have_an_unknown_outcome_when_the_leader_stops(
    tmp_path: Path,
) -> None:
    chosen = settings_of(tmp_path)
    store = replace(chosen.store, flush_disk_type="SYNC_FLUSH")
    async with desk(tmp_path, replace(chosen, store=store)) as opened:
        opened.topic("normal")
        await opened.sent("normal", b"the first record of the log")
        ctx = RequestContext("c@1", peer="10.0.0.2:50001")
        taken = opened.node.sender.take(Requests([_request(10).raw] * 2), [(ctx, 2)])
        assert taken is not None
        answers: list[bytes] = []
        taken.then(answers.extend)
        opened.node.durability.abandon()
        codes = [v2.SendMessageResponse.FromString(each).status.code for each in answers]
        assert codes == [v2.MASTER_PERSISTENCE_TIMEOUT] * 2
        refused = opened.node.runtime.counters.refused_sends
        assert refused["master_persistence_timeout"] == 2


async def test_a_follower_takes_no_requests(tmp_path: Path) -> None:
    async with desk(tmp_path) as opened:
        opened.topic("normal")
        await opened.sent("normal", b"the first record of the log")
        clients = [(RequestContext("c@1", peer="10.0.0.2:50001"), 1)]
        requests = Requests([_request(10).raw])
        opened.node.leadership.draining = "the leader is about to change"
        assert opened.node.sender.take(requests, clients) is None
        opened.node.leadership.draining = None
        opened.node.leadership.is_leader = False
        assert opened.node.sender.take(requests, clients) is None
        opened.node.leadership.is_leader = True
        assert opened.node.sender.take(requests, clients) is not None


async def test_deduplication_takes_the_python_path(tmp_path: Path) -> None:
    async with desk(tmp_path, message_deduplication_enable=True) as opened:
        assert not opened.node.sender.takes_bytes


def _method(one: Desk) -> Method:
    """Return SendMessage as the client port calls it."""
    sender = one.node.sender
    (row,) = methods_of("apache.rocketmq.v2.MessagingService", {"SendMessage": sender.send})
    return decoded_late(row, SendRequest) if sender.takes_bytes else row


async def test_messages_of_the_crate_are_traced_as_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []
    for switch in ("", "off"):
        monkeypatch.setenv(native.SWITCH, switch)
        opened = desk(tmp_path / f"_{switch}", clock=_StillClock(), trace_topic_enable=True)
        async with opened as one:
            one.node.sender.set_store_host(pack_host("10.0.0.1", 8081))
            for name in ("normal", "fifo"):
                one.topic(name, message_type=TOPICS[name].message_type)
                await one.sent(name, b"creates the queue", message_group="g" * (name == "fifo"))
            assert one.node.trace is not None
            one.node.trace.flush()
            plain = _request(10, count=2, tag="x", keys=["k"])
            cases = [plain, _request(7, "fifo", message_group="g")]
            side = Side(one, _method(one), 0)
            await side.send(cases)
            assert (one.node.sender._native is None) == (switch == "off")
            rows = [row.split("\x01") for row in one.node.trace._batch.rows]
            traced.append([[*row[:12], *row[13:]] for row in rows])  # not the place in the log
    assert len(traced[0]) == 3
    assert traced[0] == traced[1]


async def test_a_request_that_may_have_spans_is_left_to_python(tmp_path: Path) -> None:
    context = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    async with desk(tmp_path, trace_spans_enable=True) as one:
        one.topic("normal")
        await one.sent("normal", b"creates the queue")
        planner = one.node.sender._native
        assert planner is not None
        append, planned = planner.plan, []

        def counting(batch: Any, at: int) -> Any:
            plan = append(batch, at)
            planned.append(0 if plan is None else len(plan.ends))
            return plan

        planner.plan = counting  # type: ignore[method-assign]
        side = Side(one, _method(one), 0)
        plain, spanned = _request(10), _request(10, trace_context=context)
        assert not side.take([plain]), "each request of a row is looked at"
        await side.send([plain, spanned, plain])
        assert sum(planned) == 2


async def test_the_switch_selects_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.SWITCH, "off")
    async with desk(tmp_path) as opened:
        assert not opened.node.sender.takes_bytes
