"""Requests that try to cost more than their bytes, for every request code and RPC, and their cost.

Each request is a usual one with some of it made large: a number, a text, a list, a map, the body.
What it costs is measured in the calls that the interpreter makes, which repeat, in memory, and in
processor time, which also has what a single call does (a regular expression, arithmetic of long
numbers).
"""

from __future__ import annotations

import asyncio
import base64
import cProfile
import dataclasses
import json
import struct
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from msgspec import Struct

from cometmq.auth.model import User
from cometmq.auth.signature import authorization
from cometmq.broker.access.rights import RIGHTS
from cometmq.broker.metadata.tables import Group, Topic
from cometmq.front.context import RequestContext
from cometmq.front.service import Kind
from cometmq.proto.errors import RpcFailure, WireError
from cometmq.proto.methods import rpc_methods
from cometmq.remoting import admin_headers, headers
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codec import FIELDS_MAX, FrameError, decode, encode
from cometmq.remoting.codes import BY_LETTER
from cometmq.remoting.codes import Request as Code
from cometmq.remoting.command import Command
from cometmq.remoting.connection import RemotingError
from cometmq.remoting.header_fields import HeaderError
from cometmq.tests.auth.comparison import TIME, Peer, World, recall_handle, settled
from cometmq.tests.broker.classic.test_classic_access import SECRET, signed

#: Bounds of one request: a fixed part, and that of each byte. In the fixed part of calls and time
#: is room for one turn of the event loop (50 ms on a quiet machine).
CALLS, CALLS_A_BYTE = 60_000, 4.0
MEMORY, MEMORY_A_BYTE = 8 << 20, 40.0
CPU_S, CPU_S_A_BYTE = 0.1, 0.4e-6

#: What texts consist of: separators of lists, filters, handles, properties, numbers.
_TEXTS = ("x", "x;", "x,", "%RETRY%", " 1", "a\x01b\x02", "9", "(", "a||", "a=1 AND ", "[{")
_FEW_TEXTS = ("x;", "%RETRY%")
_PARTS = (b"[", b"9", b"k=v\n", b"{a:1,", b"x", b"\0", b'{"a":', b"'", b" ", b"\xff")
_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
_NUMBERS = (_INT_MAX, _LONG_MAX, -1, -_LONG_MAX)
#: Of the entries of lists in bodies.
_VALUES = (10**4_000, "x" * 200, 10**30, _LONG_MAX, -1, "/" * 86, [1] * 500)
_USER = "victim"
_REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
_TEXT_CHARS, _BODY_BYTES = 30_000, 500_000
#: Requests of up to `SCAN_FROM` bytes are decoded without a check of their elements.
GRPC_SIZES = (16_000, 250_000)
_LISTS = {
    "acks": ("so", "b", "c", "t", "q"),
    "mqSet": ("topic", "queueId"),
    "producerDataSet": ("groupName",),
    "consumerDataSet": ("groupName", "subscriptionDataSet"),
    "policies": ("entries",),
    "topicConfigList": ("topicName", "attributes"),
    "groupConfigList": ("groupName", "attributes"),
}

#: Processor time may be measured as often as this.
_TIMES = 3

Change = Callable[[Command], None]
#: The size of a request, and what serves it.
Request = tuple[int, Callable[[], Awaitable[None]]]


class Cost(Struct):
    """What one request has cost."""

    what: str
    size: int
    calls: int = 0
    memory: int = 0
    cpu_s: float = 0.0

    def excess(self) -> str:
        """Return the bound that the request exceeds; empty without one."""
        over = []
        if self.calls > CALLS + CALLS_A_BYTE * self.size:
            over.append(f"{self.calls} calls")
        if self.memory > MEMORY + MEMORY_A_BYTE * self.size:
            over.append(f"{self.memory >> 20} MiB")
        if self.cpu_s > CPU_S + CPU_S_A_BYTE * self.size:
            over.append(f"{self.cpu_s:.2f} s")
        return f"{', '.join(over)} for {self.size} bytes: {self.what[:300]}" if over else ""


class _Fields(dict[str, str]):
    """Fields that note which of them are read."""

    def __init__(self, found: dict[str, str]) -> None:
        super().__init__(found)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


class _Watched(Command):
    """A command that counts how often its body is read."""

    reads = 0

    @property
    def body(self) -> bytes:
        self.reads += 1
        return self._body

    @body.setter
    def body(self, found: bytes) -> None:
        self._body = found


class Costs:
    """Makes requests of the user of type Super, who passes every check of rights, and measures
    them."""

    def __init__(self, world: World, *, thorough: bool = True) -> None:
        """Not `thorough`: some of the texts and values."""
        self._texts = _TEXTS if thorough else _FEW_TEXTS
        self._values = _VALUES if thorough else _VALUES[:2]
        self._world = world
        self._topic, self._group = world.names["own"]["topic"], world.names["own"]["group"]
        #: By code: the fields that its handler reads, and whether it reads the body.
        self._read: dict[int, set[str]] = {}
        self._reads_body: set[int] = set()

    def restore(self) -> None:
        """Create what requests have deleted."""
        log, metadata = self._world.live.node.meta_log, self._world.live.node.metadata
        if metadata.topic(self._topic) is None:
            log.write_topic(Topic(self._topic, 2, 2))
        if metadata.group(self._group) is None:
            log.write_group(Group(self._group))
        if _USER not in metadata.users:
            log.write_user(User(_USER, self._world.live.node.keys.key.seal(_USER, SECRET)))

    @cached_property
    def _large_bodies(self) -> list[tuple[str, bytes]]:
        return list(self._bodies())

    # -- remoting ---------------------------------------------------------------------------------

    @property
    def codes(self) -> list[int]:
        """The codes that the broker serves."""
        return sorted(self._world.handlers)

    async def learn(self, code: int) -> None:
        """Note which fields a handler reads, and whether it reads the body."""
        self.restore()
        usual = self._usual(code)
        usual.fields = {name: str(value) for name, value in usual.fields.items()}
        signed(usual, "admin")
        fields = _Fields(usual.fields)
        command = _Watched(code, fields, usual.body)
        peer: Any = Peer()
        with suppress(RemotingError, HeaderError, WireError, FrameError):
            await settled(self._world.handlers[code](command, peer))
        self._read[code] = fields.read
        if command.reads > 1:  # the first one is that of the signature
            self._reads_body.add(code)

    @property
    def paths(self) -> list[str]:
        """The methods that the broker serves."""
        return sorted(path for path in REQUESTS if path in self._world.methods)

    def changes(self, code: int) -> Iterator[tuple[str, Change]]:
        """Yield what can be made large in a request of a code, which was learned."""
        usual = self._usual(code)
        for name, value in usual.fields.items():
            if name not in self._read[code]:
                continue
            if isinstance(value, int):
                yield from ((f"{name}={each}", _put(name, each)) for each in _NUMBERS)
            else:
                for part in self._texts:
                    text = (part * _TEXT_CHARS)[:_TEXT_CHARS]
                    yield f"{name}={part!r}...", _put(name, text)
        yield "all numbers", self._all_numbers
        yield "many fields", _many_fields
        if code in self._reads_body:
            yield from ((what, _put_body(body)) for what, body in self._large_bodies)

    def frame(self, code: int, user: str, *changes: Change, peer: Any = None) -> Request:
        """Return a changed request of a code, which `peer` sends."""
        command = self._usual(code)
        for change in changes:
            change(command)
        command.fields = {name: str(value) for name, value in command.fields.items()}
        try:
            frame = encode(signed(command, user))[4:]
        except FrameError:
            return 0, _nothing
        handler = self._world.handlers[code]
        sender: Any = peer or Peer()

        async def serve() -> None:
            with suppress(RemotingError, HeaderError, WireError, FrameError):
                await settled(handler(decode(frame), sender))

        return len(frame), serve

    def _usual(self, code: int) -> Any:
        """Return a request with every field that any header has."""
        fields = {}
        for layout in _LAYOUTS:
            for each in dataclasses.fields(layout):
                name = each.metadata["letter" if code in BY_LETTER else "name"]
                fields[name] = _usual_value(each, self._topic, self._group)
        fields.pop("", None)
        fields.update(self._deeper.get(code, {}))
        body = self._document()
        return Command(code, fields, _BODIES.get(code) or json.dumps(body).encode())

    @cached_property
    def _deeper(self) -> dict[int, dict[str, Any]]:
        """By code: the values with which a request gets behind the first checks."""
        at, (half_at, half_id) = self._world.offsets["own"], self._world.halves["own"]
        pull = {"sysFlag": 4, "queueOffset": 1, "subscription": "*"}
        return {
            Code.PULL_MESSAGE: pull,
            Code.LITE_PULL_MESSAGE: pull,
            Code.POP_MESSAGE: {"queueId": -1, "exp": "*"},
            Code.VIEW_MESSAGE_BY_ID: {"offset": at},
            Code.CONSUMER_SEND_MSG_BACK: {"offset": at, "delayLevel": 3},
            Code.END_TRANSACTION: {"tranStateTableOffset": half_at, "msgId": half_id},
            Code.RECALL_MESSAGE: {"recallHandle": recall_handle(self._topic)},
            Code.SEND_REPLY_MESSAGE: {"topic": _REPLY_TOPIC},
            Code.SEND_REPLY_MESSAGE_V2: {"b": _REPLY_TOPIC},
            Code.QUERY_MESSAGE: {"endTimestamp": _LONG_MAX, "maxNum": 64},
            Code.GET_CONSUMER_RUNNING_INFO: {"clientId": "c1"},
            Code.CONSUME_MESSAGE_DIRECTLY: {"clientId": "c1", "msgId": f"{0:016X}{at:016X}"},
            Admin.INVOKE_BROKER_TO_RESET_OFFSET: {"offset": -1, "queueId": -1},
        }

    def _document(self) -> dict[str, Any]:
        topic, group = self._topic, self._group
        entry = {"topic": topic, "subString": "*", "subVersion": 1}
        bits = base64.b64encode(b"\xff" * 64).decode()
        ack = {"c": group, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1}
        rule = {"resource": f"Topic:{topic}", "actions": ["Pub"], "decision": "Allow"}
        return {
            **{"clientID": "c1", "clientId": "c1", "consumerGroup": group, "group": group},
            **{"topic": topic, "brokerName": "DefaultBroker", "subscriptionData": entry},
            "mqSet": [{"topic": topic, "brokerName": "DefaultBroker", "queueId": 0}],
            "acks": [{**ack, "b": bits}],
            "consumerDataSet": [{"groupName": group, "subscriptionDataSet": [entry]}],
            "producerDataSet": [{"groupName": "PG"}],
            "policies": [{"policyType": "Custom", "entries": [rule]}],
            "topicConfigList": [{"topicName": topic, "attributes": {"+message.type": "NORMAL"}}],
            "groupConfigList": [{"groupName": group, "attributes": {}}],
        }

    def _all_numbers(self, command: Any) -> None:
        for name, value in command.fields.items():
            if isinstance(value, int):
                command.fields[name] = _INT_MAX

    def _bodies(self) -> Iterator[tuple[str, bytes]]:
        """Yield large bodies."""
        for part in _PARTS if self._values is _VALUES else _PARTS[:4]:
            yield f"body {part!r}...", (part * _BODY_BYTES)[:_BODY_BYTES]
            yield f"short body {part!r}...", (part * _TEXT_CHARS)[:_TEXT_CHARS]
        yield "a bomb", zlib.compress(bytes(40 << 20))
        one = struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\0\0"
        yield "many messages", one * (_BODY_BYTES // len(one))
        for name, inner in _LISTS.items():
            yield f"many {name}", self._listed(name, {})
            for key in inner:
                for value in self._values:
                    yield f"many {name} of {key}", self._listed(name, {key: value})
        many = [f"T{number}" for number in range(1_000)]
        entry = {"subString": "a||" * 5_000, "subVersion": 1}
        inside = [{**entry, "topic": name} for name in many[:30]]
        beat = [{"groupName": name, "subscriptionDataSet": inside[:1]} for name in many]
        yield "long expressions", self._with(consumerDataSet=beat[:30])
        short = [{"topic": name, "subString": "*"} for name in many]
        group = [{"groupName": name, "subscriptionDataSet": short} for name in many[:10]]
        yield "many subscriptions", self._with(consumerDataSet=group)
        rules = {"resource": many * 20, "actions": ["Pub"], "decision": "Allow"}
        yield "many resources", self._with(policies=[{"entries": [rules]}])

    def _listed(self, name: str, changed: dict[str, Any]) -> bytes:
        item = {**self._document()[name][0], **changed}
        size = len(json.dumps(item))
        return self._with(**{name: [item] * min(1_000, max(1, _BODY_BYTES // size))})

    def _with(self, **changed: Any) -> bytes:
        return json.dumps({**self._document(), **changed}).encode()

    # -- gRPC -------------------------------------------------------------------------------------

    def call(self, path: str, raw: bytes, user: str) -> Request:
        """Return a call of a method."""
        metadata = (("authorization", authorization(user, SECRET, TIME)), ("x-mq-date-time", TIME))
        method = self._world.methods[path]

        async def serve() -> None:
            ctx = RequestContext(f"{user}@1", "JAVA", "5", "", "10.9.8.7:1", metadata=metadata)
            ctx.request_bytes = len(raw)
            with suppress(WireError, RpcFailure):
                if method.kind is not Kind.BIDI:
                    await settled(method.handler(raw, ctx))
                    return
                session = method.handler(ctx, _Sink())
                try:
                    await settled(session.receive(raw))
                finally:
                    session.close("the end")

        return len(raw), serve

    def requests(self, path: str, size: int) -> Iterator[tuple[str, bytes]]:
        """Yield encoded requests of a method, each of about `size` bytes."""
        made = REQUESTS[path]()
        self._fill(made, 0)
        usual = made.SerializeToString()
        yield "usual", usual
        yield "unknown fields", usual + b"\xf8\x07\x01" * (size // 3)
        yield "merged", usual * max(1, size // (len(usual) or 1))
        for at in _fields_of(made.DESCRIPTOR, ()):
            for what, value in _large(at[-1], size, self._texts):
                changed = REQUESTS[path]()
                changed.CopyFrom(made)
                if _set(changed, at, value):
                    name = ".".join(each.name for each in at)
                    yield f"{name} {what}", changed.SerializeToString()

    def _fill(self, made: Any, level: int) -> None:
        for each in made.DESCRIPTOR.fields:
            if each.type == each.TYPE_STRING and not each.is_repeated:
                name = self._group if "group" in each.name else self._topic
                setattr(made, each.name, name)
            elif each.type == each.TYPE_MESSAGE and level < 4 and not each.containing_oneof:
                if each.message_type.GetOptions().map_entry:
                    continue
                inner = getattr(made, each.name)
                inner = inner.add() if each.is_repeated else inner
                self._fill(inner, level + 1)
                if inner.DESCRIPTOR.name == "Resource":
                    inner.name = self._group if "group" in each.name else self._topic

    # -- measurement ------------------------------------------------------------------------------

    async def timed(self, what: str, request: Request) -> Cost:
        """Return the processor time of a request: the least of some, as others use the caches."""
        size, serve = request
        cost = Cost(what, size)
        for _ in range(_TIMES):
            self.restore()
            began_s = time.process_time()
            await serve()
            cost.cpu_s = time.process_time() - began_s
            if not cost.excess():
                break
        return cost

    async def measured(self, what: str, request: Request) -> Cost:
        """Return the calls of a request."""
        self.restore()
        size, serve = request
        cost = Cost(what, size)
        with cProfile.Profile() as profile:
            await serve()
        cost.calls = sum(each.callcount for each in profile.getstats())
        return cost

    async def traced(self, what: str, request: Request) -> Cost:
        """Return the memory of a request."""
        self.restore()
        size, serve = request
        tracemalloc.start()
        try:
            await serve()
            return Cost(what, size, memory=tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()


class _Sink:
    """The sending side of a stream."""

    finished = False

    def send(self, message: Any) -> None:
        pass

    def finish(self, error: Any = None) -> None:
        self.finished = True

    def drained(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


REQUESTS = {
    rpc.path: rpc.request
    for service in {path.split("/")[1] for path in RIGHTS}
    for rpc in rpc_methods(service).values()
    if rpc.path in RIGHTS
}


_LAYOUTS = [
    layout
    for module in (headers, admin_headers)
    for layout in vars(module).values()
    if dataclasses.is_dataclass(layout)
]
#: The bodies that are no documents.
_BODIES: dict[int, bytes] = {
    Code.SEND_BATCH_MESSAGE: struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\0\0",
    Admin.UPDATE_BROKER_CONFIG: b"waitTimeMillsInSendQueue=10000\n",
}
_USUAL = {
    "properties": "UNIQ_KEY\x01x\x02",
    "extraInfo": "0 1 1 0 0 DefaultBroker 0 0",
    "subject": f"User:{_USER}",
    "username": _USER,
    "resource": "",
    "filter": "",
    "expType": "TAG",
    "expressionType": "TAG",
    "statsName": "TOPIC_PUT_NUMS",
    "attributes": "+message.type=NORMAL",
}


def _usual_value(field: Any, topic: str, group: str) -> Any:
    """Return the value of a header's field in a usual request."""
    name = field.metadata["name"]
    try:
        field.metadata["parse"]("x")
    except HeaderError:
        return 4 if "ueue" in name and "Offset" not in name and name != "queueId" else 0
    if name in _USUAL:
        return _USUAL[name]
    return group if "roup" in name and name != "producerGroup" else topic


async def _nothing() -> None:
    pass


def _put(name: str, value: Any) -> Change:
    def change(command: Command) -> None:
        command.fields[name] = value

    return change


def _put_body(body: bytes) -> Change:
    def change(command: Command) -> None:
        command.body = body

    return change


def _many_fields(command: Command) -> None:
    for number in range(FIELDS_MAX - len(command.fields) - 2):
        command.fields[f"n{number}"] = "x" * 1_000


def _fields_of(message: Any, before: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to the fields of a message."""
    for each in message.fields:
        way = (*before, each)
        yield way
        is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
        if each.type == each.TYPE_MESSAGE and len(way) < 4 and not is_map:
            yield from _fields_of(each.message_type, way)


def _large(field: Any, size: int, texts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield large values of a field; a list of them for a repeated one."""
    if field.type == field.TYPE_STRING:
        for part in texts:
            text = (part * size)[:size]
            yield f"{part!r}...", [text] if field.is_repeated else text
        if field.is_repeated:
            yield "many", ["x"] * (size // 3)
    elif field.type == field.TYPE_BYTES:
        yield "bytes", bytes(size)
        yield "bomb", zlib.compress(bytes(size * 800))
    elif field.type == field.TYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            yield "many", size // 12
        elif field.is_repeated:
            yield "many empty", size // 2
    elif field.type not in (field.TYPE_BOOL, field.TYPE_ENUM, field.TYPE_DOUBLE, field.TYPE_FLOAT):
        for number in _NUMBERS:
            yield str(number), [number] * (size // 10) if field.is_repeated else number


def _set(made: Any, way: tuple[Any, ...], value: Any) -> bool:
    """Set a field; return whether it can hold the value."""
    *outer, field = way
    for each in outer:
        inner = getattr(made, each.name)
        made = (inner[0] if inner else inner.add()) if each.is_repeated else inner
    try:
        if field.type == field.TYPE_MESSAGE:
            _extend(getattr(made, field.name), field, value)
        elif field.is_repeated:
            getattr(made, field.name).extend(value)
        else:
            setattr(made, field.name, value)
    except (ValueError, TypeError):  # out of the range of its type
        return False
    return True


def _extend(found: Any, field: Any, count: int) -> None:
    if not field.message_type.GetOptions().map_entry:
        kept = [found[0]] if found else []
        found.extend([*kept * (count // 20), *(found.add() for _ in range(count))][:count])
        return
    kind = field.message_type.fields_by_name["value"].type
    for number in range(count):
        if kind == field.TYPE_MESSAGE:
            found[f"k{number}"].SetInParent()
        else:
            found[f"k{number}"] = "v" if kind == field.TYPE_STRING else number
