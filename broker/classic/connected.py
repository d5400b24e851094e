"""Clients of the remoting protocol for tools: members of groups, their subscriptions and stacks."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ...proto import v1, v2
from ...proto.errors import WireError
from ...remoting.bare_json import BareJsonError, loads
from ...remoting.codes import Reply, Request
from ...remoting.command import Command
from ...remoting.connection import RemotingError
from ..clients.connected import EXPRESSION_MAX, NAMES_MAX, NS_PER_MS
from ..clients.stacks import ANSWER_S, STACK_MAX
from .calls import call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from ...front.clock import Clock
    from ...remoting.connection import Connection
    from ..admin.clients import ClientAdmin
    from ..maintenance.progress import ConsumerProgress
    from .base.members import MemberRow, Members

# The number of version 4.0.0, and the major versions that follow it by the same rule.
_V4_0_0, _MAJORS_MAX = 213, 2
# Every client of the remoting protocol has this producer for messages that it sends back.
_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
_ABOUT = (
    ("consume type", "consume_type"),
    ("message model", "message_model"),
    ("starts at", "from_where"),
)


class ClassicConnected:
    """The members of consumer groups and producer groups."""

    def __init__(
        self,
        *,
        clock: Clock,
        members: Members[Connection],
        producers: Members[Connection],
        broker_name: str,
        clients: ClientAdmin,
        progress: ConsumerProgress,
    ) -> None:
        self._clock = clock
        self._members = members
        self._producers = producers
        self._broker_name = broker_name
        self._clients = clients
        self._progress = progress

    def start(self) -> None:
        """List these clients from now on."""
        self._clients.sources.append(self)
        self._progress.classic_members = self.members_of

    def close(self) -> None:
        """List them no more."""
        self._clients.sources.remove(self)
        self._progress.classic_members = lambda _group: []

    def members_of(self, group: str) -> list[v1.GroupClient]:
        """Return the members of a consumer group."""
        return [self._member(row) for row in self._members.rows(group)]

    def ids(self) -> Iterable[str]:
        """Return the ids of all members."""
        return {*self._members.all_ids(), *filter(self._produced, self._producers.all_ids())}

    def status(self, client_id: str, *, detailed: bool) -> v1.ClientStatus | None:
        """Return what is known of a client; `detailed`: with its subscriptions."""
        consumed, produced = self._members.groups_of(client_id), self._produced(client_id)
        rows = (
            members.row(group, client_id)
            for members, groups in ((self._members, consumed), (self._producers, produced))
            for group in groups[:1]
        )
        row = next(filter(None, rows), None)
        if row is None:
            return None
        kind = " and ".join(
            name for name, groups in (("consumer", consumed), ("producer", produced)) if groups
        )
        found = v1.ClientStatus(
            client=self._member(row), kind=kind, groups=[*consumed, *produced][:NAMES_MAX]
        )
        if detailed:
            read = (each for group in consumed for each in self._members.subscriptions(group))
            for each in islice(read, NAMES_MAX):
                expression = each.expression[:EXPRESSION_MAX]
                found.subscriptions.add(topic=each.topic, expression=expression, kind=each.kind)
            for name, key in _ABOUT:
                if value := getattr(row.about, key):
                    found.settings.add(key=name, value=value)
        return found

    def _produced(self, client_id: str) -> list[str]:
        return [name for name in self._producers.groups_of(client_id) if name != _INNER_PRODUCER]

    def stack(self, client_id: str) -> Awaitable[str] | None:
        """Ask a consumer for the stack of its threads; None if it is not one of these."""
        for group in self._members.groups_of(client_id):
            if (peer := self._members.channel(group, client_id)) is not None:
                return self._stack(peer, group, client_id)
        if self._produced(client_id):
            return _refused(client_id)
        return None

    async def _stack(self, peer: Connection, group: str, client_id: str) -> str:
        fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "true"}
        fields["brokerName"] = self._broker_name
        try:
            answer = await call(peer, Command(Request.GET_CONSUMER_RUNNING_INFO, fields), ANSWER_S)
        except RemotingError as error:
            raise WireError(v2.REQUEST_TIMEOUT, f"client {client_id}: {error}") from None
        stack = _jstack(answer)
        if not stack:
            reason = answer.remark or "its running information has no stack"
            raise WireError(v2.UNSUPPORTED, f"client {client_id} sent no stack: {reason}")
        return stack[:STACK_MAX]

    def _member(self, row: MemberRow[Connection]) -> v1.GroupClient:
        return v1.GroupClient(
            client_id=row.client_id,
            language=row.about.language,
            version=version_name(row.about.version),
            peer=row.channel.peer,
            last_seen_ms_ago=(self._clock.steady_ns() - row.heard_ns) // NS_PER_MS,
            protocol="remoting",
        )


def version_name(number: int) -> str:
    """Return the version that a number of RocketMQ's enumeration stands for.

    A patch version has two numbers, its snapshot and its release, and each minor version has ten
    patches (docs/formats/remoting.md, section 5).
    """
    steps = (number | 1) - _V4_0_0
    if not 0 <= steps < _MAJORS_MAX * 200:
        return f"number {number}"
    minors, patch = divmod(steps // 2, 10)
    text = f"{4 + minors // 10}.{minors % 10}.{patch}"
    return text if number & 1 else f"{text}-SNAPSHOT"


async def _refused(client_id: str) -> str:
    text = f"client {client_id} is a producer: only consumers of the remoting protocol have stacks"
    raise WireError(v2.UNSUPPORTED, text)


def _jstack(answer: Command) -> str:
    if answer.code != Reply.SUCCESS or not answer.body:
        return ""
    try:
        found: Any = loads(answer.body)
    except BareJsonError:
        return ""
    stack = found.get("jstack") if isinstance(found, dict) else None
    return stack if isinstance(stack, str) else ""
