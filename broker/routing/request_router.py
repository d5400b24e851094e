"""Who owns a request: this node, the leader of its group, or another group; and what if they are gone.

The access point asks `locate` for every call that came from a client (forwarded calls are never
forwarded again) and `unreachable` when the owner does not answer the phone. Rules (design, section 2;
HA, rule R10): the group is the one that the request names (a queue's broker, a receipt handle), else
one that has the topic, this one first; its leader owns it. Without the leader a follower serves
reads from what it has, and holds writes until a leader is back or the deadline is near.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...front.access_point import NOBODY
from ...proto import paths, v2
from ...proto.errors import WireError
from ..delay.recall_handle import decode_recall_handle
from ..pop.handles import decode_handle
from ..pull.cold_reads import COLD_READS, ColdReads
from ..transactions.records import parse_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...front.context import RequestContext
    from ..node import Node
    from .cluster_view import GroupView, MemberView

# Answered by every node from what it knows itself.
_LOCAL = frozenset(
    (
        paths.QUERY_ROUTE,
        paths.QUERY_ASSIGNMENT,
        paths.TELEMETRY,
        paths.HEARTBEAT,
        paths.NOTIFY_CLIENT_TERMINATION,
        paths.GET_CONFIG,
    )
)
_ROUTES = frozenset((paths.QUERY_ROUTE, paths.QUERY_ASSIGNMENT))
# Without the leader they wait for one: a client rides through a failover without an error.
HELD = frozenset(
    (
        paths.SEND_MESSAGE,
        paths.CREATE_TOPIC,
        paths.DELETE_TOPIC,
        paths.CREATE_GROUP,
        paths.DELETE_GROUP,
        paths.RESET_OFFSETS,
        paths.END_TRANSACTION,
        paths.RECALL_MESSAGE,
    )
)


def _of_name(request: Any) -> str:
    return str(request.broker)


# What a leader looks at before it takes it, seldom enough to call somebody for it.
_SELDOM = (HELD | COLD_READS) - {paths.SEND_MESSAGE}


def _of_queue(request: Any) -> str:
    return str(request.message_queue.broker.name)


def _of_handle(request: Any) -> str:
    handle = decode_handle(request.receipt_handle)
    return handle.broker if handle is not None else ""


def _of_first_handle(request: Any) -> str:
    return _of_handle(request.entries[0]) if request.entries else ""


def _of_recall(request: Any) -> str:
    handle = decode_recall_handle(request.recall_handle)
    return handle.broker if handle is not None else ""


def _of_transaction(request: Any) -> str:
    return parse_id(request.transaction_id).broker


GROUP_OF: dict[str, Callable[[Any], str]] = {
    paths.RECEIVE_MESSAGE: _of_queue,
    paths.PULL_MESSAGE: _of_queue,
    paths.UPDATE_OFFSET: _of_queue,
    paths.GET_OFFSET: _of_queue,
    paths.QUERY_OFFSET: _of_queue,
    paths.ACK_MESSAGE: _of_first_handle,
    paths.CHANGE_INVISIBLE_DURATION: _of_handle,
    paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE: _of_handle,
    paths.END_TRANSACTION: _of_transaction,
    paths.RECALL_MESSAGE: _of_recall,
    paths.READ_LOG: _of_name,
    paths.LOCATE_LOG: _of_name,
}


def _topic_of_queue(request: Any) -> str:
    return str(request.message_queue.topic.name)


def _topic(request: Any) -> str:
    return str(request.topic.name)


def _first_topic(request: Any) -> str:
    return str(request.messages[0].topic.name) if request.messages else ""


TOPIC_OF: dict[str, Callable[[Any], str]] = {
    paths.SEND_MESSAGE: _first_topic,
    paths.RECEIVE_MESSAGE: _topic_of_queue,
    paths.PULL_MESSAGE: _topic_of_queue,
    paths.UPDATE_OFFSET: _topic_of_queue,
    paths.GET_OFFSET: _topic_of_queue,
    paths.QUERY_OFFSET: _topic_of_queue,
    paths.ACK_MESSAGE: _topic,
    paths.CHANGE_INVISIBLE_DURATION: _topic,
    paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE: _topic,
    paths.END_TRANSACTION: _topic,
    paths.RECALL_MESSAGE: _topic,
    paths.SYNC_LITE_SUBSCRIPTION: _topic,
}


def _no_copy() -> WireError:
    """A diverged follower serves nothing of its own: consumers would see what the group never had."""
    return WireError(
        v2.HA_NOT_AVAILABLE,
        "the leader cannot be reached, and this replica's log is not a copy of its log",
    )


class RequestRouter:
    """The two questions of the access point, for one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._leader_was_alive = False
        self._cold_reads = ColdReads(node)

    def locate(self, path: str, request: Any, ctx: RequestContext) -> str | None:
        """HOST:PORT of the owner, or None: serve here. Raises WireError when there can be none."""
        node = self._node
        if path == paths.SYNC_LITE_SUBSCRIPTION and request is not None:
            node.lite.spreading.spread(request, ctx)
        if path in _ROUTES and self._is_news(path, request):
            return node.leadership.leader_client()
        if path in _LOCAL or path.startswith(paths.TEST):
            return None
        view = node.cluster
        if len(view.groups) > 1 and request is not None:
            other = self._other_group(path, request)
            if other is not None:
                return self._owner_of_other(other, path)
        if node.leadership.is_leader:
            # A message that is sent costs two look-ups here and no call.
            if node.leadership.pausing or path in _SELDOM:
                return NOBODY if self._waits(path) else self._cold(path, request, ctx)
            return None
        if self._serve_without_leader(path):
            return None
        leader = node.leadership.leader_client()
        if leader is not None:
            return leader
        if path in HELD:
            return NOBODY
        if node.replication.diverged is not None:
            raise _no_copy()
        return None

    def unreachable(
        self, path: str, request: Any, ctx: RequestContext
    ) -> Literal["serve", "hold"] | WireError:
        """The owner cannot be reached."""
        if path in HELD:
            return "hold"
        if self._node.replication.diverged is not None:
            return _no_copy()
        if len(self._node.cluster.groups) > 1 and request is not None:
            other = self._other_group(path, request)
            if other is not None:
                return WireError(
                    v2.PROXY_TIMEOUT, f"no replica of {other.name} can be reached from here"
                )
        return "serve"

    def _waits(self, path: str) -> bool:
        """Whether this leader takes no writes for now, and another or it itself soon will.

        A message is looked at only once the sender has seen that (`Leadership.pausing`): it costs nothing before.
        """
        node = self._node
        if path == paths.SEND_MESSAGE:
            return node.leadership.still_pausing()
        return path in HELD and node.leadership.writes_elsewhere()

    def _cold(self, path: str, request: Any, ctx: RequestContext) -> str | None:
        """A follower that serves an old part of the log instead of this leader, or None."""
        if path not in COLD_READS or request is None or ctx.forwarded:
            return None
        return self._cold_reads.reader(path, request)

    def _is_news(self, path: str, request: Any) -> bool:
        """A topic that this follower has not heard of may have been created a moment ago."""
        node = self._node
        if node.leadership.is_leader or request is None or self._serve_without_leader(path):
            return False
        name = request.topic.name
        known = node.metadata.topic(name) is not None or name in node.cluster.own().topics
        return not known and not node.cluster.others_with(name)

    def _serve_without_leader(self, path: str) -> bool:
        """Reads need not wait for a connection to fail when replication says that the leader is gone.

        A follower that was refused, or was never connected, cannot tell: it tries.
        """
        replication = self._node.replication
        if replication.leader_alive:
            self._leader_was_alive = True
            return False
        return path not in HELD and self._leader_was_alive and replication.refused is None

    def _other_group(self, path: str, request: Any) -> GroupView | None:
        """The group that owns the request, if it is not the own one."""
        view = self._node.cluster
        name = GROUP_OF[path](request) if path in GROUP_OF else ""
        if name:
            return None if name == view.own_group else view.group(name)
        topic = TOPIC_OF[path](request) if path in TOPIC_OF else ""
        if not topic or self._node.metadata.topic(topic) is not None:
            return None
        if topic in view.own().topics:
            return None
        others = view.others_with(topic)
        return others[0] if others else None

    def _owner_of_other(self, group: GroupView, path: str) -> str | None:
        leader = group.leader()
        if leader is not None and (leader.alive or path in HELD):
            return leader.client
        # Without its leader, any living replica of the group serves its reads.
        member = _first_alive(group) or leader
        return member.client if member is not None else None


def _first_alive(group: GroupView) -> MemberView | None:
    return next((member for member in group.members if member.alive), None)
