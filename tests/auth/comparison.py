"""Compares what the guard and the handlers understand of generated requests, in both protocols.

A broker has two owners: `own` things belong to the user `c`, `rival` things to others. Each request
names a mixture, in generated spellings. The parts behind the handlers are watched: no request of
`c` may reach a rival's topic, group, message or transaction, and no request of a user without
policies may reach any. A spelling that one side reads and the other side does not shows as such a
reach.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions
from cometmq.auth.signature import authorization
from cometmq.broker.access.rights import RIGHTS
from cometmq.broker.classic.rights import BY_FIELDS
from cometmq.broker.metadata.tables import Group, Topic
from cometmq.front.context import RequestContext
from cometmq.proto import paths
from cometmq.proto.errors import RpcFailure, WireError
from cometmq.proto.methods import rpc_methods
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codec import FrameError, decode, encode
from cometmq.remoting.codes import BY_LETTER, Reply, Request
from cometmq.remoting.command import CREDENTIALS, Command
from cometmq.remoting.connection import RemotingError
from cometmq.remoting.header_fields import HeaderError
from cometmq.tests.broker.classic.test_classic_access import SECRET, half, signed
from cometmq.tests.broker.classic_wire import message, port_of
from cometmq.tests.broker.live import Live, running, settings
from cometmq.tests.remoting.client import RemotingClient

TIME = "20261123T060428Z"
PEER = "10.9.8.7:4711"
_LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "queueId": "e",
    "properties": "i",
}
_NUMBERS = (
    *("+{}", "0{}", "00000000000000{}", " {}", "{} ", "{}\n", "\t{}", "-{}", "{}.0", "{}e0"),
    *("{}_0", "0x{}", "\uff11{}", "\u0661{}", "{}\0", "+0{}", "--{}", "{}L", ""),
)
_OWN_RETRIES = ("%RETRY%shop+", "%DLQ%shop")
_NAMES = ("{} ", " {}", "{}\0", "%RETRY%{}", "%DLQ%{}", "{}%", "{}\u200b", "+{}", "ns%{}", "")


_request: ContextVar[int] = ContextVar("request", default=0)


@dataclass
class Peer:
    """Stands for the connection of a classic client."""

    peer: str = PEER
    metadata: tuple[tuple[str, str], ...] = ()
    closed: bool = False
    sent: list[Command] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def on_close(self, listener: Callable[[Any], None]) -> None:
        pass

    def notify(self, command: Command, flag: int = 0) -> None:
        self.sent.append(command)

    def call(self, command: Command, flag: int = 0) -> asyncio.Future[Command]:
        self.sent.append(command)
        return asyncio.get_running_loop().create_future()


class Reached(AssertionError):
    """A request reached what its user has no right on."""


class World:
    """One broker with the watched parts, and the names and positions of what it has."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.reached: list[str] = []
        #: By owner: topics, groups, positions of a message in the log, ids of half messages.
        self.names = {
            "own": {"topic": "orders", "group": "shop"},
            "rival": {"topic": "others", "group": "rivals"},
        }
        self.offsets: dict[str, int] = {}
        self.halves: dict[str, tuple[int, str]] = {}
        classic = live.server.instance._classic_port
        assert classic is not None
        self.handlers = classic._server._shared.handlers
        self.methods = live.server.access.services
        self._peer: Any = Peer()
        self._number = 0

    async def prepare(self) -> None:
        node = self.live.node
        users = {
            "admin": (),
            "nobody": (),
            "c": (("Topic:orders", "Pub,Sub"), ("Group:shop", "Sub,Get")),
        }
        for name, policies in users.items():
            made = tuple(
                Policy(ResourcePattern.parse(resource), parse_actions(actions), True, ())
                for resource, actions in policies
            )
            sealed = node.keys.key.seal(name, SECRET)
            node.metadata.put_user(User(name, sealed, policies=made, is_super=name == "admin"))
        async with RemotingClient(port_of(self.live)) as client:
            for owner, each in self.names.items():
                node.meta_log.write_topic(Topic(each["topic"], 2, 2))
                node.meta_log.write_group(Group(each["group"]))
                sent = await client.post(signed(message(b=each["topic"]), "admin"))
                assert sent.code == Reply.SUCCESS, sent.remark
                self.offsets[owner] = int(sent.fields["msgId"][16:], 16)
                begun = half()
                begun.fields["b"] = each["topic"]
                sent = await client.post(signed(begun, "admin"))
                self.halves[owner] = int(sent.fields["queueOffset"]), "h"
        self._watch()

    def _watch(self) -> None:
        """Record what is reached behind the guard."""
        node = self.live.node
        for part, name, kind in (
            (node.metadata, "topic", "topic"),
            (node.metadata, "group", "group"),
            (node.metadata, "ensure_group", "group"),
            (node.sender.records, "topic_to_send", "topic"),
        ):
            self._watch_names(part, name, kind)
        end = node.transactions.end

        def ended(asked: Any) -> Any:
            found = next((o for o, (at, _) in self.halves.items() if at == asked.ident.offset), "")
            self._note(f"transaction {found}")
            return end(asked)

        node.transactions.end = ended  # type: ignore[assignment,method-assign]

    def _watch_names(self, part: Any, name: str, kind: str) -> None:
        real = getattr(part, name)

        def watched(asked: str, *more: Any) -> Any:
            self._note(f"{kind} {asked}")
            return real(asked, *more)

        setattr(part, name, watched)

    def _note(self, reached: str) -> None:
        """Note what the present request reaches: work for earlier ones may go on beside it."""
        if _request.get() == self._number:
            self.reached.append(reached)

    def _begin(self) -> None:
        self._number += 1
        _request.set(self._number)

    def check(self, user: str, what: object) -> None:
        """Raise Reached if the last request reached what its user has no right on."""
        reached, self.reached = self.reached, []
        for each in reached:
            if user == "c" and each.removeprefix("topic ").startswith(_OWN_RETRIES):
                continue  # of the own group, whatever topic its messages come from
            foreign = "rival" in each or "others" in each
            known = foreign or "orders" in each or "shop" in each or each == "transaction own"
            if foreign or (user == "nobody" and known):
                raise Reached(f"{user} reached {each} by {str(what)[:1_000]}")

    # -- remoting ---------------------------------------------------------------------------------

    async def classic(self, chance: Random) -> None:
        """Handle one generated request of a classic client."""
        user = chance.choice(("c", "nobody"))
        code = chance.choice(_FREQUENT if chance.random() < 0.9 else _CODES)
        command = self._command(code, chance)
        signed(command, user)
        command.binary = chance.random() < 0.5 and -(1 << 15) <= code < 1 << 15
        try:
            frame = encode(command)[4:]
        except FrameError:
            return
        self._begin()
        answer = await self._handled(decode(frame))
        if user == "nobody" and code not in _OPEN_TO_ALL:
            assert answer.code != Reply.SUCCESS, command
        self._check_bodies(user, answer, command)
        self.check(user, command)

    def _check_bodies(self, user: str, answer: Command, asked: Command) -> None:
        """Raise Reached if an answer has a rival's message, or a client got credentials."""
        sent, self._peer.sent = self._peer.sent, []
        for pushed in sent:
            if CREDENTIALS & pushed.fields.keys():
                raise Reached(f"a client got the credentials of {asked}")
        if b"others" in answer.body or (user == "nobody" and b"orders" in answer.body):
            raise Reached(f"{user} got {answer.body[:200]!r} by {asked}")

    async def _handled(self, command: Command) -> Command:
        handler = self.handlers.get(command.code)
        if handler is None:
            return Command(Reply.REQUEST_CODE_NOT_SUPPORTED)
        try:
            answer: Command = await settled(handler(command, self._peer))
            return answer
        except RemotingError as error:
            return Command(error.code, remark=error.remark)
        except HeaderError as error:
            return Command(Reply.SYSTEM_ERROR, remark=str(error))

    def _command(self, code: int, chance: Random) -> Command:
        """Return a request of `code` in which every field is usual, spelled oddly, or missing."""
        values = self._values(chance)
        fields = {}
        for name, value in values.items():
            if chance.random() < 0.97:
                key = _LETTERS.get(name, name) if code in BY_LETTER else name
                fields[key] = spelled(value, chance)
        if code in BY_LETTER:
            fields.update({"d": "4", "f": "0", "g": "1", "h": "0"})
            if chance.random() < 0.3:  # the long names of others beside the letters
                fields["topic"] = self.names["rival"]["topic"]
        return Command(code, fields, self._body(values, chance))

    def _values(self, chance: Random) -> dict[str, Any]:
        def of(kind: str) -> str:
            return self.names[chance.choice(("own", "rival"))][kind]

        half_offset, key = self.halves[chance.choice(("own", "rival"))]
        topic = of("topic")
        if chance.random() < 0.2:
            topic = f"%RETRY%{of('group')}" + chance.choice(("", f"_{topic}", f"+{topic}"))
        return {
            **{"topic": topic, "consumerGroup": of("group"), "group": of("group")},
            **{"producerGroup": "PG", "clientID": "c1", "clientId": "c1", "queueId": 0},
            **{"offset": self.offsets[chance.choice(("own", "rival"))], "key": "id1"},
            **{"tranStateTableOffset": half_offset, "commitLogOffset": 0, "msgId": key},
            **{"commitOrRollback": chance.choice((0, 12)), "delayLevel": 1, "queueOffset": 0},
            **{"maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0},
            **{"subVersion": 0, "subscription": "*", "maxNum": 1, "beginTimestamp": 0},
            **{"endTimestamp": 1 << 60, "timestamp": 0, "invisibleTime": 1000, "pollTime": 0},
            **{"extraInfo": f"0 1 1 0 {chance.randrange(3)} DefaultBroker 0 0"},
            **{"defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "bornTimestamp": 1},
            **{"flag": 0, "recallHandle": recall_handle(of("topic")), "unitMode": "false"},
            "properties": f"UNIQ_KEY\x01x\x02ORIGIN_GROUP\x01{of('group')}\x02",
        }

    def _body(self, values: dict[str, Any], chance: Random) -> bytes:
        queue = {"topic": values["topic"], "brokerName": "DefaultBroker", "queueId": 0}
        entry = {"topic": values["topic"], "subString": "*", "subVersion": 1}
        consumer = {"groupName": values["group"], "subscriptionDataSet": [entry]}
        unread = [chance.choice((1, {}, {"groupName": [values["group"]]}))] * chance.choice((0, 1))
        start = chance.choice((0, 1 << 62, 10**30))
        if chance.random() < 0.01:
            start = 10**4_000
        ack = {"c": values["group"], "t": values["topic"], "r": "0", "so": start, "q": 0, "rq": 0}
        ack.update({"pt": 1, "it": 1, "b": base64.b64encode(chance.randbytes(64)).decode()})
        many = chance.choice((1, 1, 1, 1, 1, 1, 1, 100))
        document = {
            **{"clientID": "c1", "clientId": "c1", "consumerGroup": values["consumerGroup"]},
            **{"group": values["group"], "topic": values["topic"], "brokerName": "DefaultBroker"},
            **{"mqSet": [queue] * many, "subscriptionData": entry, "acks": [ack] * many},
            **{"consumerDataSet": [*unread, consumer], "producerDataSet": [{"groupName": "PG"}]},
        }
        if chance.random() < 0.3:
            document["withoutSub"] = True
        for name in list(document):
            if chance.random() < 0.05:
                document[name] = chance.choice((None, 0, [], {}, "", [document[name]]))
        if chance.random() < 0.3:
            document = loose(document, chance)
        text = json.dumps(document)
        if chance.random() < 0.2:  # a name twice
            text = text[:-1] + f',"topic":"{self.names["rival"]["topic"]}"}}'
        if chance.random() < 0.2:  # as only fastjson reads it
            text = re.sub(r'"(\w+)":', chance.choice((r"\1:", r"'\1':")), text)
        return text.encode()

    # -- gRPC -------------------------------------------------------------------------------------

    async def call(self, chance: Random) -> None:
        """Make one generated call."""
        user = chance.choice(("c", "nobody"))
        path = chance.choice(_PATHS)
        raw = self._request(path, chance)
        header = authorization(user, SECRET, TIME)
        metadata = (("authorization", header), ("x-mq-date-time", TIME))
        ctx = RequestContext(f"{user}@1", "JAVA", "5", "", PEER, metadata=metadata)
        self._begin()
        with suppress(WireError, RpcFailure):
            await settled(self.methods[path].handler(raw, ctx))
        self.check(user, (path, raw))

    def _request(self, path: str, chance: Random) -> bytes:
        """Return an encoded request, whose messages may be split and repeated."""
        kind = _REQUESTS[path]
        parts = []
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            made = kind()
            self._fill(made, chance)
            parts.append(made.SerializeToString())
        data = b"".join(parts)  # repeated fields: merged by every reader, or refused
        if chance.random() < 0.1:
            data += chance.choice((b"\x7a\x00", b"\xf8\x07\x01", b"\x0b\x0c", b"\xff"))
        return data

    def _fill(self, made: Any, chance: Random, level: int = 0) -> None:
        """Give the fields of a message values that name own or rival things."""
        for each in made.DESCRIPTOR.fields:
            if level > 4 or chance.random() < 0.15:
                continue
            owner = self.names[chance.choice(("own", "rival"))]
            if each.type == each.TYPE_MESSAGE:
                if each.message_type.GetOptions().map_entry:
                    continue
                inner = getattr(made, each.name)
                inner = inner.add() if each.is_repeated else inner
                inner.SetInParent() if not each.is_repeated else None
                self._fill(inner, chance, level + 1)
                if inner.DESCRIPTOR.name == "Resource":
                    inner.name = owner["group" if "group" in each.name else "topic"]
            elif each.type == each.TYPE_STRING and not each.is_repeated:
                setattr(made, each.name, self._text(each.name, owner, chance))

    def _text(self, name: str, owner: dict[str, str], chance: Random) -> str:
        if name == "transaction_id":
            return f"DefaultBroker-{self.halves[chance.choice(('own', 'rival'))][0]}-h"
        if name == "recall_handle":
            return recall_handle(owner["topic"])
        if name == "receipt_handle":
            return f"0 1 1 0 {chance.randrange(3)} DefaultBroker 0 0 0"
        return owner["group" if "group" in name else "topic"]


_CODES = sorted({*Request, *Admin})
#: Those that do not need a user of type Super.
_FREQUENT = sorted(BY_FIELDS.keys() | {33, 36, 37})
#: A user without policies may send heartbeats of producers, and end its own members.
_OPEN_TO_ALL = (Request.HEART_BEAT, Request.UNREGISTER_CLIENT)
_REQUESTS = {
    rpc.path: rpc.request
    for service in {path.split("/")[1] for path in RIGHTS}
    for rpc in rpc_methods(service).values()
    if rpc.path in RIGHTS and not rpc.client_streaming
}
_PATHS = sorted(path for path in _REQUESTS if path != paths.TELEMETRY and "Test/" not in path)


def spelled(value: Any, chance: Random) -> str:
    """Return a value as text, sometimes in a spelling that parsers may disagree about."""
    text = str(value)
    if chance.random() < (0.7 if isinstance(value, int) else 0.95):
        return text
    return chance.choice(_NUMBERS if isinstance(value, int) else _NAMES).format(text)


def loose(value: Any, chance: Random) -> Any:
    """Return a document whose values have types that fastjson converts."""
    if isinstance(value, dict):
        return {name: loose(item, chance) for name, item in value.items()}
    if isinstance(value, list):
        return [loose(item, chance) for item in value]
    if isinstance(value, int) and value < 1 << 63:
        return chance.choice((value, str(value), float(value), [value]))
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value


def recall_handle(topic: str) -> str:
    return base64.urlsafe_b64encode(f"v1 {topic} DefaultBroker 99 id1".encode()).decode()


async def settled(answer: Any) -> Any:
    """Return an answer, or an empty one for a request that waits, which is cancelled."""
    if hasattr(answer, "__aiter__"):
        return [item async for item in answer]
    if not hasattr(answer, "__await__"):
        return answer
    future = asyncio.ensure_future(answer) if asyncio.iscoroutine(answer) else answer
    for _ in range(50):
        if future.done():
            break
        await asyncio.sleep(0)
    else:
        future.cancel()
        await asyncio.sleep(0)
        return Command(Reply.PULL_NOT_FOUND)
    return Command(Reply.PULL_NOT_FOUND) if future.cancelled() else future.result()


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    """Start a broker with users, topics, groups, messages and open transactions."""
    chosen = settings(
        directory,
        remoting_listen_port=-1,
        authentication_enabled=True,
        authorization_enabled=True,
        auto_create_topic_enable=False,
        auto_create_subscription_group=False,
        test_hooks=False,
    )
    async with running(chosen) as live:
        made = World(live)
        await made.prepare()
        yield made
