"""Generated SendMessage requests, common and odd, and what the Python path makes of them.

    python -m cometmq.tests.broker.sending.send_cases --requests 10000000 [--seed 1]

compares the native path with the Python path (`check`), and prints the rate.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from cometmq.broker.base.counters import SIZE_BOUNDS, Counters
from cometmq.broker.messages.stored_properties import frame
from cometmq.broker.messages.validation import MIXED, check_messages
from cometmq.broker.messages.wire import receipt
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.sending.answer import ANSWER_OK
from cometmq.broker.sending.grpc_records import prepare
from cometmq.broker.sending.send import Prepared
from cometmq.broker.sending.topic_template import Origin, TopicTemplate
from cometmq.front.context import RequestContext
from cometmq.proto import native, v2
from cometmq.proto.errors import WireError
from cometmq.proto.native import Native
from cometmq.store.format.record import encode, pack_host, tags_code
from cometmq.store.format.record_layout import UNIT

NOW_MS = 1_795_255_684_123
STORED_MS = NOW_MS + 5
MAX_BODY = 300
#: Characters of id, tag, keys, group, trace context and host together.
TEXT_MAX = 4_096
ORIGIN = Origin("region", "cluster", MAX_BODY, pack_host("10.0.0.1", 8081))
PEERS = [("10.0.0.2", pack_host("10.0.0.2", 50001)), ("::1", pack_host("::1", 50001))]
LONG_TOPIC = "t" * 127
TOPICS = {
    topic.name: topic
    for topic in (
        Topic("normal", 4, 4),
        Topic("one", 1, 1),
        Topic("fifo", 8, 8, message_type=v2.FIFO),
        Topic("mixed", 4, 4, message_type=MIXED),
        Topic("delay", 4, 4, message_type=v2.DELAY),
        Topic("closed", 4, 0),
        Topic("%RETRY%g", 1, 1),
        Topic(LONG_TOPIC, 4, 4),
    )
}
_NAMES = [*TOPICS, "normal", "normal", "normal", "normal", "mixed", "mixed", "unknown", ""]
_TEXTS = ["", "a", "TagA", "key-1", "a|b", "a b", " ", "\x01", "\x02x", "\x7f", "é", "😀", "\t"]
_LONG = ["x" * 62, "g" * 63, "g" * 64, "y" * 1_000, "z" * 4_089, "z" * 4_100]
_NUMBERS = [0, 1, 2, -1, 7, 1 << 31, (1 << 63) - 1, -(1 << 63), 253_402_300_799, -62_135_596_800]
_NANOS = [0, 1, 999_999_999, -1, 8_999_999, (1 << 31) - 1, -(1 << 31)]


@dataclass(slots=True)
class Case:
    """An encoded request; `as_sent`: no byte was changed after it was encoded."""

    raw: bytes
    peer: tuple[str, bytes]
    as_sent: bool


class Cases:
    """Makes requests from a source of numbers."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def case(self) -> Case:
        """Return one request."""
        source = self._source
        names = [self._name()]
        count = 1 if source.random() < 0.6 else source.randrange(0, 6)
        odd = source.random() < 0.4
        messages = [self._message(source.choice(names), odd) for _ in range(count)]
        if odd and source.random() < 0.1:
            messages.append(self._message(self._name(), odd))
        raw = v2.SendMessageRequest(messages=messages).SerializeToString()
        changed = raw
        if source.random() < 0.15:
            changed = self._change(raw)
        peer = PEERS[source.random() < 0.02]
        return Case(changed, peer, changed == raw)

    def _name(self) -> str:
        return self._source.choice(_NAMES)

    def _text(self) -> str:
        source = self._source
        if source.random() < 0.05:
            return source.choice(_LONG)
        return source.choice(_TEXTS)

    def _plain(self) -> str:
        return f"{self._source.getrandbits(64):016X}"

    def _message(self, name: str, odd: bool) -> v2.Message:
        source = self._source
        system = v2.SystemProperties(
            message_id=self._plain(),
            message_type=v2.NORMAL,
            born_timestamp=v2.Timestamp(seconds=1_795_255_684, nanos=source.randrange(10**9)),
            born_host="client",
            body_encoding=source.choice((v2.IDENTITY, v2.GZIP)),
        )
        if source.random() < 0.4:
            system.tag = source.choice(("TagA", "TagB", "x"))
        if source.random() < 0.4:
            system.keys.append(self._plain())
        if source.random() < 0.2:
            system.trace_context = self._plain()
        if name == "fifo" or source.random() < 0.1:
            system.message_group = f"group-{source.randrange(50)}"
        message = v2.Message(
            topic=v2.Resource(name=name),
            system_properties=system,
            body=source.randbytes(source.randrange(1, 90)),
        )
        if odd:
            for _ in range(source.randrange(3)):
                self._spoil(message)
        return message

    def _spoil(self, message: v2.Message) -> None:
        """Change one field."""
        source, system = self._source, message.system_properties
        number = source.choice(_NUMBERS)
        small = max(min(number, (1 << 31) - 1), -(1 << 31))
        changes: list[Any] = [
            lambda: setattr(system, "tag", self._text()),
            lambda: system.keys.append(self._text()),
            lambda: setattr(system, "message_id", self._text()),
            lambda: setattr(system, "message_group", self._text()),
            lambda: setattr(system, "trace_context", self._text()),
            lambda: setattr(system, "born_host", self._text()),
            lambda: setattr(system, "store_host", self._text()),
            lambda: setattr(system, "receipt_handle", self._text()),
            lambda: setattr(system, "lite_topic", source.choice(("", "lite"))),
            lambda: setattr(system, "queue_id", small),
            lambda: setattr(system, "queue_offset", number),
            lambda: setattr(system, "delivery_attempt", small),
            lambda: setattr(system, "priority", small),
            lambda: setattr(system, "message_type", source.randrange(8)),
            lambda: setattr(system, "body_encoding", source.randrange(8)),
            lambda: setattr(system.born_timestamp, "seconds", number),
            lambda: setattr(system.born_timestamp, "nanos", source.choice(_NANOS)),
            lambda: system.ClearField("born_timestamp"),
            lambda: system.ClearField("born_host"),
            lambda: system.store_timestamp.FromMilliseconds(5),
            lambda: system.delivery_timestamp.FromMilliseconds(5),
            lambda: system.invisible_duration.FromMilliseconds(5),
            lambda: setattr(system.body_digest, "checksum", self._text()),
            lambda: setattr(system.body_digest, "type", source.randrange(5)),
            lambda: system.orphaned_transaction_recovery_duration.FromSeconds(small),
            lambda: setattr(system.dead_letter_queue, "topic", self._text()),
            lambda: message.user_properties.update({self._text(): self._text()}),
            lambda: setattr(message.topic, "resource_namespace", self._text()),
            lambda: setattr(message.topic, "name", self._name()),
            lambda: setattr(message, "body", b""),
            lambda: setattr(message, "body", bytes(source.randrange(290, 310))),
            lambda: message.ClearField("system_properties"),
            lambda: message.ClearField("topic"),
        ]
        source.choice(changes)()

    def _change(self, raw: bytes) -> bytes:
        """Change encoded bytes: repeated messages, unknown fields, damage."""
        source = self._source
        kind = source.randrange(6)
        at = source.randrange(len(raw) + 1)
        if kind == 0:
            return raw + raw
        if kind == 1:
            return raw + source.choice((b"\x10\x01", b"\x7a\x01x", b"\x0d1234", b"\x0b\x0c", b"\0"))
        if kind == 2:
            return raw[:at]
        if kind == 3:
            return raw[:at] + source.randbytes(source.randrange(1, 4)) + raw[at:]
        if kind == 4:
            return raw[:at] + source.randbytes(1) + raw[at + 1 :]
        return _repeated_fields(raw)


def _repeated_fields(raw: bytes) -> bytes:
    """Return the request with every message merged from two copies of itself."""
    request = v2.SendMessageRequest.FromString(raw)
    out = b""
    for message in request.messages:
        twice = 2 * message.SerializeToString()
        size = len(twice)
        out += b"\x0a" + bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14)) + twice
    return out


@dataclass(slots=True)
class World:
    """The state that both paths see."""

    templates: dict[str, TopicTemplate] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    end: int = 1 << 40

    def template(self, name: str) -> TopicTemplate | None:
        """Return the template of a topic, if it exists."""
        topic = TOPICS.get(name)
        if topic is not None and name not in self.templates:
            self.templates[name] = TopicTemplate(topic)
        return self.templates.get(name)


@dataclass(slots=True)
class Made:
    """What the Python path makes of one accepted request."""

    ready: Prepared
    records: list[bytes] = field(default_factory=list)
    units: list[tuple[str, int, int, bytes]] = field(default_factory=list)
    answer: bytes = ANSWER_OK


def _decoded(case: Case) -> list[v2.Message]:
    """Return the messages; none if the request cannot be decoded."""
    try:
        return list(v2.SendMessageRequest.FromString(case.raw).messages)
    except DecodeError:
        return []


def is_common(sent: list[v2.Message], template: TopicTemplate) -> bool:
    """Return whether the crate should accept valid messages (`native/src/broker/sent.rs`)."""
    return template.common and all(_is_common(each.system_properties, each) for each in sent)


def _is_common(system: v2.SystemProperties, message: v2.Message) -> bool:
    texts = (system.message_id, system.tag, *system.keys, system.message_group)
    text = "".join((*texts, system.trace_context, system.born_host))
    return (
        text.isascii()
        and text.isprintable()
        and " " not in text
        and len(text) < TEXT_MAX
        and len(system.keys) <= 1
        and not system.lite_topic
        and not message.user_properties
        and not system.HasField("delivery_timestamp")
        and not system.HasField("priority")
        and system.message_type != v2.TRANSACTION
    )


def python_path(world: World, case: Case) -> Made | None:
    """Append the request in Python; None if it is refused, or needs another part."""
    sent = _decoded(case)
    template = world.template(sent[0].topic.name) if sent else None
    if template is None or not template.topic.writable or len(case.peer[1]) > 8:
        return None
    ctx = RequestContext("c@1", peer=f"{case.peer[0]}:50001")
    try:
        drafts = check_messages(sent, NOW_MS, MAX_BODY)
        ready = prepare(drafts, template, ORIGIN, {}, ctx=ctx, now_ms=NOW_MS)
    except WireError:
        return None
    made = Made(ready)
    for message, message_id in zip(ready.messages, ready.ids, strict=True):
        queue = (message.topic, message.queue_id)
        number = world.offsets.setdefault(queue, 1_000 * message.queue_id)
        record = encode(message, number, world.end, STORED_MS)
        code = tags_code(message.topic, message.properties, STORED_MS)
        made.records.append(record)
        made.units.append((*queue, number, UNIT.pack(world.end, len(record), code)))
        made.answer += b"".join(receipt(message_id, number))
        world.offsets[queue] = number + 1
        world.end += len(record)
    return made


def new_planner(crate: Native) -> Any:
    """Return the crate's planner with the limits of these cases."""
    return crate.send_planner(MAX_BODY, ANSWER_OK, SIZE_BOUNDS)


@dataclass(slots=True)
class NativeSide:
    """Plans requests with the crate."""

    crate: Native
    planner: Any
    world: World = field(default_factory=World)
    natives: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, crate: Native) -> NativeSide:
        """Return a new side."""
        return cls(crate, new_planner(crate))

    def topic(self, name: str) -> tuple[Any, int] | None:
        """See `crate_planner.py`."""
        template = self.world.template(name)
        if template is None or not template.common:
            return None
        if name not in self.natives:
            topic = template.topic
            parts = [part.encode() for part in frame(ORIGIN.region, ORIGIN.cluster, name)]
            self.natives[name] = self.crate.send_template(
                name, topic.message_type, topic.write_queues, *parts
            )
        return self.natives[name], template.turn

    def next_number(self, topic: str, queue_id: int) -> int:
        """See `StoreWriter.next_number`."""
        return self.world.offsets.setdefault((topic, queue_id), 1_000 * queue_id)

    def plan(self, cases: list[Case], first: int) -> Any:
        """Plan the requests from number `first` on, and move the world."""
        world = self.world
        requests = [(case.raw, *case.peer, False) for case in cases]
        place = (world.end, 1 << 62, STORED_MS, NOW_MS, ORIGIN.store_host)
        plan = self.planner.plan(requests, first, place, self.topic, self.next_number)
        world.end += len(plan.data)
        for topic, queue_id, number, data in plan.units:
            world.offsets[topic, queue_id] = number + len(data) // UNIT.size
        for topic, count in plan.turns:
            world.templates[topic].turn += count
        return plan


def check(crate: Native, cases: list[Case]) -> int:
    """Compare both paths for the requests of one turn; return how many the crate accepted."""
    side, world, counters = NativeSide.of(crate), World(), Counters()
    counted = Counters()
    at = accepted = 0
    while at < len(cases):
        plan = side.plan(cases, at)
        planned = cases[at : at + len(plan.ends)]
        made = [python_path(world, case) for case in planned]
        _compare(plan, made, counters)
        for topic, kind, messages, size, sizes in plan.counts:
            counted.add_sent_requests(topic, kind, messages, size, sizes)
        at += len(planned)
        accepted += len(planned)
        for case in cases[at : plan.resume]:
            _check_refused(world, case)
        at = plan.resume
    assert counted.sent == counters.sent
    assert side.world.offsets == world.offsets
    assert {n: t.turn for n, t in side.world.templates.items() if t.turn} == {
        n: t.turn for n, t in world.templates.items() if t.turn
    }
    return accepted


def _compare(plan: Any, made: list[Made | None], counters: Counters) -> None:
    everything = [each for each in made if each is not None]
    assert len(everything) == len(made), "a request was accepted that Python refuses"
    assert plan.data == b"".join(record for each in everything for record in each.records)
    assert plan.answers == [each.answer for each in everything]
    assert plan.records == sum(len(each.records) for each in everything)
    units: dict[tuple[str, int], list[Any]] = {}
    for each in everything:
        for topic, queue_id, number, data in each.units:
            known = units.setdefault((topic, queue_id), [number, b""])
            known[1] += data
        counters.add_sent(
            each.ready.topic, each.ready.message_type, len(each.records), each.ready.size
        )
    assert {(t, q): [n, d] for t, q, n, d in plan.units} == units
    if everything:
        end = plan.ends[-1]
        assert plan.last == end - len(everything[-1].records[-1])


def _check_refused(world: World, case: Case) -> None:
    """Check that the crate refused only what Python refuses, or bytes that no encoder makes."""
    if not case.as_sent:
        return
    turns = {name: template.turn for name, template in world.templates.items()}
    offsets, end = dict(world.offsets), world.end
    made = python_path(world, case)
    sent = _decoded(case)
    template = world.template(sent[0].topic.name) if sent else None
    if made is not None and template is not None and is_common(sent, template):
        assert len(made.records) > 1 and len(case.raw) > MAX_BODY, case.raw
    world.offsets, world.end = offsets, end
    for name, template in world.templates.items():
        template.turn = turns.get(name, 0)


class Outcome(NamedTuple):
    """Requests that were compared, those that the native path accepted, and the CPU time."""

    compared: int
    equal: int
    cpu_s: float


def run(least: int, seed: int) -> Outcome:
    """Compare at least `least` requests. Raises AssertionError at the first difference."""
    crate = native.load()
    assert crate is not None, "the native crate is not available"
    source = random.Random(seed)
    cases = Cases(source)
    begin = time.process_time()
    done = accepted = 0
    while done < least:
        turn = [cases.case() for _ in range(source.randrange(1, 40))]
        accepted += check(crate, turn)
        done += len(turn)
    return Outcome(done, accepted, time.process_time() - begin)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare the native send path with Python's")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    done, accepted, cpu_s = run(options.requests, options.seed)
    print(f"{done} requests, {accepted} accepted, all equal; {done / cpu_s:.0f} per CPU second")


if __name__ == "__main__":
    main()
