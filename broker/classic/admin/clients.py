"""Connected producers and consumers of both protocols, for classic tools.

Source: docs/formats/remoting.md, section 16.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....remoting.admin_codes import Admin
from ....remoting.admin_headers import ConsumerGroup, ProducerGroup
from ....remoting.codes import Reply
from ....remoting.command import SERVER_VERSION, Command
from ....remoting.connection import RemotingError
from ....remoting.header_fields import read
from .tables import ROWS_MAX, document, in_task, too_many_rows

if TYPE_CHECKING:
    from ....front.clock import Clock
    from ....remoting.connection import Connection, Handler
    from ...maintenance.progress import ConsumerProgress
    from ..base.members import MemberRow, Members, Subscription

_NS_PER_MS = 1_000_000
#: Names of languages in clients of the gRPC protocol -> those of the remoting protocol.
_LANGUAGES = {
    **{"JAVA": "JAVA", "CPP": "CPP", "DOT_NET": "DOTNET", "GOLANG": "GO", "PYTHON": "PYTHON"},
    **{"RUST": "RUST", "NODE_JS": "NODE_JS", "PHP": "PHP", "RUBY": "RUBY"},
}
#: `consumeType` of groups whose members use the gRPC protocol: they pop.
_GRPC = {
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "consumeType": "CONSUME_POP",
    "messageModel": "CLUSTERING",
}


class ToolClients:
    """Handlers for lists of clients."""

    def __init__(
        self,
        *,
        clock: Clock,
        members: Members[Connection],
        producers: Members[Connection],
        progress: ConsumerProgress,
    ) -> None:
        self._clock = clock
        self._members = members
        self._producers = producers
        self._progress = progress

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        table = {
            Admin.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            Admin.GET_PRODUCER_CONNECTION_LIST: self.producers,
            Admin.GET_ALL_PRODUCER_INFO: self.all_producers,
        }
        return {code: in_task(handler) for code, handler in table.items()}

    async def consumers(self, command: Command) -> Command:
        """Answer GET_CONSUMER_CONNECTION_LIST."""
        group = read(ConsumerGroup, command.fields).group
        rows = self._members.rows(group)
        others = self._progress.clients_of(group)
        if not rows and not others:
            raise RemotingError(
                Reply.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        connections = [_connection(row) for row in rows]
        connections += [
            {
                "clientAddr": client.peer,
                "clientId": client.client_id,
                "language": _LANGUAGES.get(client.language.upper(), "OTHER"),
                "version": SERVER_VERSION,
            }
            for client in others
        ]
        about = dict(_GRPC)
        if rows:
            last = max(rows, key=lambda row: row.heard_ns).about
            about = {
                "consumeFromWhere": last.from_where,
                "consumeType": last.consume_type,
                "messageModel": last.message_model,
            }
        read_by = {each.topic: _subscription(each) for each in self._members.subscriptions(group)}
        return document({"connectionSet": connections, **about, "subscriptionTable": read_by})

    async def producers(self, command: Command) -> Command:
        """Answer GET_PRODUCER_CONNECTION_LIST."""
        group = read(ProducerGroup, command.fields).group
        rows = self._producers.rows(group)
        if not rows:
            raise RemotingError(Reply.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return document({"connectionSet": [_connection(row) for row in rows]})

    async def all_producers(self, command: Command) -> Command:
        """Answer GET_ALL_PRODUCER_INFO."""
        if len(self._producers) > ROWS_MAX:
            raise too_many_rows(ROWS_MAX)
        clock = self._clock
        now_ms, now_ns = clock.wall_ms(), clock.steady_ns()
        table = {
            group: [
                {
                    "clientId": row.client_id,
                    "language": row.about.language,
                    "lastUpdateTimestamp": now_ms - (now_ns - row.heard_ns) // _NS_PER_MS,
                    "remoteIP": f"/{row.channel.peer}",
                    "version": row.about.version,
                }
                for row in self._producers.rows(group)
            ]
            for group in self._producers.groups()
        }
        return document({"data": table})


def _connection(row: MemberRow[Connection]) -> dict[str, Any]:
    return {
        "clientAddr": row.channel.peer,
        "clientId": row.client_id,
        "language": row.about.language,
        "version": row.about.version,
    }


def _subscription(found: Subscription) -> dict[str, Any]:
    tags = [tag.strip() for tag in found.expression.split("||")] if found.kind == "TAG" else []
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": found.kind,
        "subString": found.expression,
        "subVersion": found.version_ms,
        "tagsSet": [tag for tag in tags if tag not in ("", "*")],
        "topic": found.topic,
    }
