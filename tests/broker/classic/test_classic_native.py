"""Classic clients' sends by the native path: records, units, answers and counters of Python."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cometmq.auth.quota import Quota
from cometmq.broker.classic.send import _DROPPED
from cometmq.broker.metadata.tables import Topic
from cometmq.front.clock import Clock
from cometmq.proto import native
from cometmq.remoting.codec import FrameReader, encode
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import pack_host
from cometmq.store.format.record_layout import (
    BLANK,
    UNIT,
)
from cometmq.store.format.results import PutStatus
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.tests.broker.classic_wire import NOW_MS, message
from cometmq.tests.broker.live import Live, running, settings

pytestmark = pytest.mark.skipif(not native.is_available(), reason="requires the native crate")

WAIT_S = 60
TOPICS = {
    "orders": Topic("orders", 4, 4),
    "fewer": Topic("fewer", 4, 2),
    "closed": Topic("closed", 4, 4, 4),
    "x" * 127: Topic("x" * 127, 1, 1),
}
#: Born host of a record: it has the port of the client.
BORN_HOST = slice(48, 56)


@pytest.fixture(scope="module", autouse=True)
def same_marks() -> Iterator[None]:
    """Both brokers give delayed messages the same mark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbelow", lambda _limit: 6)
        yield


class _StillClock(Clock):
    """Both brokers store the same times."""

    def wall_ms(self) -> int:
        return NOW_MS

    def ahead_ms(self) -> int:
        return 0

    def forward_ms(self) -> int:
        return self.wall_ms()


@dataclass(slots=True)
class Side:
    """A broker and a connection of a client."""

    live: Live
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    base: int
    #: Here the comparison begins: a broker that starts writes records of its own between the first
    #: messages.
    start: int = 0
    frames: FrameReader = field(default_factory=FrameReader)

    async def send(self, commands: list[Command]) -> list[Command]:
        """Send requests in one write; return the answers by their numbers."""
        for number, command in enumerate(commands):
            command.opaque = number
        self.writer.write(b"".join(map(encode, commands)))
        found: dict[int, Command] = {}
        async with asyncio.timeout(WAIT_S):
            while len(found) < len(commands):
                data = await self.reader.read(1 << 20)
                assert data, "the broker closed the connection"
                for answer in self.frames.feed(data):
                    found[answer.opaque] = answer
        return [found[number] for number in range(len(commands))]

    def state(self) -> object:
        """Return the records since the last call, the queues and the counters."""
        node = self.live.node
        node.pump.run_to_limit()
        store = node.store
        log = b""
        while self.base + len(log) < store.log_end:
            log += store.read_log(self.base + len(log), 1 << 24)
        self.base = store.log_end
        queues = {
            name: _units(queue, self.start)
            for name, queue in store.queue_table.queues.items()
            if name[0] in TOPICS
        }
        counters = node.runtime.counters
        sent = {key: total for key, total in counters.sent.items() if key[0] in TOPICS}
        return len(log), _records(log), queues, sent


def _units(queue: ConsumeQueue, start: int) -> list[tuple[int, ...]]:
    """Return the units of records from a place in the log on."""
    units = b""
    while len(units) < queue.max_offset * UNIT.size:
        units += queue.read(len(units) // UNIT.size, queue.max_offset)
    return [unit for unit in UNIT.iter_unpack(units) if unit[0] >= start]


def _records(log: bytes) -> list[bytes]:
    """Return the records without the clients' ports, and without the broker's own."""
    found, at = [], 0
    while at < len(log):
        size, _ = BLANK.unpack_from(log, at)
        record = bytearray(log[at : at + size])
        record[BORN_HOST] = bytes(8)
        if META_TOPIC.encode() not in record:
            found.append(bytes(record))
        at += size
    return found


@dataclass(slots=True)
class Pair:
    """A broker with the crate and one without."""

    loop: asyncio.AbstractEventLoop
    native: Side
    python: Side

    def compare(self, commands: list[Command]) -> tuple[int, list[Command]]:
        """Send the requests to both and compare everything; return how many the native path
        accepted, and the answers."""
        path = self.native.live.node.sender._native
        assert path is not None and self.python.live.node.sender._native is None
        accepted = []
        append = path.plan

        def counting(batch: Any, at: int) -> Any:
            plan = append(batch, at)
            accepted.append(0 if plan is None else len(plan.ends))
            return plan

        path.plan = counting  # type: ignore[method-assign]
        try:
            answers = self.loop.run_until_complete(self.native.send(commands))
        finally:
            path.plan = append  # type: ignore[method-assign]
        assert answers == self.loop.run_until_complete(self.python.send(commands))
        assert self.native.state() == self.python.state()
        return sum(accepted), answers


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def side(name: str, switch: str) -> Side:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(native.SWITCH, switch)
            directory: Path = tmp_path_factory.mktemp(name)
            chosen = settings(directory, remoting_listen_port=-1, recall_message_enable=False)
            live = await stack.enter_async_context(running(chosen, clock=_StillClock()))
        node = live.node
        node.sender.set_store_host(pack_host("10.0.0.1", 8081))
        for topic in TOPICS.values():
            node.meta_log.write_topic(topic)
        host, _, port = live.bound.remoting.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        stack.callback(writer.close)
        opened = Side(live, reader, writer, 0)
        # The first message of a kind creates its system topic, the first one of a queue the queue.
        more = "UNIQ_KEY\x01a\x02"
        kinds = ("", "TRAN_MSG\x01true\x02", "DELAY\x013\x02", "TIMER_DELAY_SEC\x019\x02")
        await opened.send([message(properties=more + kind) for kind in kinds])
        opened.base = node.store.log_end
        return opened

    async def both() -> Pair:
        return Pair(loop, await side("native", ""), await side("python", "off"))

    opened = loop.run_until_complete(both())
    begin = max(opened.native.base, opened.python.base)
    for each in (opened.native, opened.python):
        each.base = each.start = begin
    yield opened
    loop.run_until_complete(stack.aclose())
    loop.close()


class Cases:
    """Random requests, most of them common."""

    NAMES = (
        "KEYS",
        "TAGS",
        "WAIT",
        "INSTANCE_ID",
        "color",
        "größe",
        "PGROUP",
        "a b",
        "__STARTDELIVERTIME",
    )
    VALUES = ("1", "true", "TagA", "a b", "schön", "\u4e2d", "\U0001f600", 'q"\\/', "\t", "x" * 300)
    RARE = (*sorted(_DROPPED), "DELAY", "TIMER_DELAY_SEC", "TRAN_MSG", "CLUSTER", "MSG_REGION")
    MALFORMED = ("n\x01\x02", "n\x02", "\x02", "n\x01a\x01b\x02", "TAGS\x01again\x02")

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def _rarely(self, usual: Any, *others: Any) -> Any:
        return self._source.choice(others) if self._source.random() < 0.06 else usual

    def properties(self) -> str:
        source = self._source
        names = source.sample(self.NAMES, source.randrange(len(self.NAMES)))
        pairs = [f"{name}\x01{source.choice(self.VALUES)}\x02" for name in names]
        pairs.append(f"UNIQ_KEY\x01id{source.randrange(1 << 40):X}\x02")
        pairs.append(self._rarely("", f"{source.choice(self.RARE)}\x012\x02"))
        pairs.append(self._rarely("", *self.MALFORMED))
        source.shuffle(pairs)
        text = "".join(pairs)
        return text if source.random() < 0.9 else text.removesuffix("\x02")

    def command(self) -> Command:
        source = self._source
        body = self._rarely(source.randbytes(source.randrange(1, 400)), b"", b"x" * 5_000)
        changed = {
            "b": self._rarely(source.choice(["orders", "fewer"]), *TOPICS, "none", "%RETRY%none"),
            "d": self._rarely(4, "x"),
            "e": self._rarely(source.randrange(2), -1, 2, 3, 4, 99),
            "f": self._rarely(0, 1, 0x703, 0x7FFF, -1),
            "g": self._rarely(NOW_MS, 0, -1, 1 << 62),
            "h": self._rarely(0, 7, -7, 1 << 30),
            "j": self._rarely(0, 3),
            "l": self._rarely(16, "x"),
            "m": self._rarely("false", "FALSE"),
            "unknown": "\u0001",
        }
        sent = message(body, self.properties(), **changed)
        for name in ("j", "l", "m", "i", "a"):
            if source.random() < (0.02 if name in "ia" else 0.2):
                del sent.fields[name]
        if "i" not in sent.fields:
            sent.fields["b"] = "none"  # a random id is made for it
        sent.binary = source.random() < 0.3
        sent.code = self._rarely(sent.code, Request.GET_MAX_OFFSET)
        return sent


@examples(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 62))
def test_both_paths_store_and_answer_the_same(pair: Pair, seed: int) -> None:
    source = random.Random(seed)
    cases = Cases(source)
    pair.compare([cases.command() for _ in range(source.randrange(1, 40))])


def test_common_sends_take_the_native_path(pair: Pair) -> None:
    common = [message(properties=f"KEYS\x01k{n}\x02UNIQ_KEY\x01id{n}\x02") for n in range(50)]
    for command in common[::2]:
        command.binary = True
    accepted, answers = pair.compare(common)
    assert accepted == 50
    assert {answer.code for answer in answers} == {Reply.SUCCESS}
    assert answers[7].fields["transactionId"] == "id7"


@pytest.mark.parametrize("name", sorted({*_DROPPED, "DELAY", "TIMER_DELAY_MS", "TRAN_MSG"}))
def test_a_property_of_the_broker_is_left_to_python(pair: Pair, name: str) -> None:
    value = "true" if name == "TRAN_MSG" else "1"
    accepted, _ = pair.compare([message(properties=f"UNIQ_KEY\x01id\x02{name}\x01{value}\x02")])
    assert accepted == 0


def test_sends_that_cross_a_segment_are_stored_and_answered_the_same(pair: Pair) -> None:
    before = pair.native.base
    for _ in range(6):
        pair.compare([message(bytes(100_000), f"UNIQ_KEY\x01i{n}\x02") for n in range(4)])
    assert pair.native.base - before > 2 << 20, "several segments of 1 MiB"


def test_a_delayed_message_between_common_ones_keeps_the_order(pair: Pair) -> None:
    common = [message(properties=f"UNIQ_KEY\x01id{n}\x02") for n in range(6)]
    delayed = message(properties="UNIQ_KEY\x01late\x02DELAY\x012\x02")
    accepted, _ = pair.compare([*common[:3], delayed, *common[3:]])
    assert accepted == 6


def test_a_quota_counts_sends_in_python(pair: Pair) -> None:
    both = (pair.native, pair.python)
    for side in both:
        side.live.node.metadata.put_quota(Quota("Topic:orders", messages=1_000))
    assert pair.compare([message()])[0] == 0
    for side in both:
        side.live.node.metadata.remove_quota("Topic:orders")
    assert pair.compare([message()])[0] == 1


@pytest.mark.parametrize("outcome", [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT])
def test_a_message_that_is_not_safe_in_time_is_answered_with_its_position(
    pair: Pair, outcome: PutStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in (pair.native, pair.python):

        def wait(end: int, done: Callable[[PutStatus], None], requests: int) -> None:
            done(outcome)

        monkeypatch.setattr(side.live.node.durability, "wait", wait)
    accepted, (answer,) = pair.compare([message()])
    assert accepted == 1
    assert answer.code in (Reply.FLUSH_DISK_TIMEOUT, Reply.FLUSH_SLAVE_TIMEOUT)
    assert len(answer.fields["msgId"]) == 32


def test_a_refused_append_answers_taken_sends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in (pair.native, pair.python):
        monkeypatch.setattr(side.live.node.leadership, "write_refusal", partial(str, "no replica"))
    accepted, answers = pair.compare([message(), message()])
    assert accepted == 0
    assert [answer.code for answer in answers] == [Reply.SERVICE_NOT_AVAILABLE] * 2
    assert answers[0].remark == "no replica"
