"""Request routing: which replica serves a request, and what happens when it cannot be reached.

The access point calls `locate` for every call of a client (a forwarded call is never forwarded
again) and `unreachable` when the owner does not answer. Rules (docs/formats/ha.md, rule R10): the
group is the one that the request names (a queue's broker, a receipt handle), else a group that has
the topic, this one first; for sends one in which the topic is writable, and that of the lite topic.
Its leader owns the request. Without a leader a follower serves reads from its own log, and writes
are held until a leader exists or the deadline is near. While a group is absent, a topic that no
group has may be there: the answer is "try again" and not "does not exist". A write is held for as
long as the nameservers, which have restarted, wait for the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar
from zlib import crc32

from ...front.access_point import UNKNOWN
from ...proto import paths, v2
from ...proto.errors import WireError, absent_group, absent_topic
from ...proto.methods import rpc_methods
from ..access.rights import CHANGES
from ..cold.cold_reads import COLD_READS
from ..metadata.tables import PERM_WRITE
from ..names.handles import decode_handle
from ..names.lite import is_parent
from ..names.recall_handle import decode_recall_handle
from ..transactions.records import parse_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...front.context import RequestContext
    from ...ha.engine import Replication
    from ..base.cluster_view import ClusterView, GroupView, MemberView
    from ..base.leadership import Leadership
    from ..cold.cold_reads import ColdReads
    from ..lite.fanout import LiteFanout
    from ..metadata.tables import Metadata, Topic

T = TypeVar("T")

# Every node answers these from its own state.
_LOCAL = frozenset(
    (
        paths.QUERY_ROUTE,
        paths.QUERY_ASSIGNMENT,
        paths.TELEMETRY,
        paths.HEARTBEAT,
        paths.NOTIFY_CLIENT_TERMINATION,
        paths.GET_CONFIG,
        paths.CHANGE_CONFIG,
        paths.LIST_BROKERS,
    )
)
# Served beside the leader's rules: see `_beside_leader`.
_SPECIAL = frozenset(
    (
        paths.SYNC_LITE_SUBSCRIPTION,
        paths.DESCRIBE_STORE,
        paths.DESCRIBE_REPLICATION,
        paths.CHANGE_REPLICATION,
    )
)
_REPLICATION = frozenset((paths.DESCRIBE_REPLICATION, paths.CHANGE_REPLICATION))
_ROUTES = frozenset((paths.QUERY_ROUTE, paths.QUERY_ASSIGNMENT))
# Held while there is no leader, so that clients see no error during a failover.
HELD = CHANGES | {paths.SEND_MESSAGE, paths.SEND_ONCE, paths.END_TRANSACTION, paths.RECALL_MESSAGE}


def chosen_by(key: str, groups: Sequence[T]) -> T:
    """Return the broker group that a message group, a lite topic or a message id chooses.

    `groups` take the topic and are sorted by name, so that brokers and proxies choose the same one.
    """
    return groups[crc32(key.encode()) % len(groups)]


def _of_name(request: Any) -> str:
    return str(request.broker)


# A leader checks these before it serves them; they are rare enough for the extra call.
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
    # Tools name a group by its broker name.
    **{
        rpc.path: _of_name
        for rpc in rpc_methods("cometmq.v1.Admin").values()
        if "broker" in rpc.request.DESCRIPTOR.fields_by_name
    },
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
    """A diverged follower serves no reads: its log holds records that the group does not have."""
    return WireError(
        v2.HA_NOT_AVAILABLE,
        "the leader cannot be reached, and this replica's log is not a copy of its log",
    )


def _no_replica(group: GroupView) -> WireError:
    return WireError(v2.PROXY_TIMEOUT, f"no replica of {group.name} can be reached from here")


class RequestRouter:
    """Decides for the access point where a request is served."""

    def __init__(
        self,
        *,
        leadership: Leadership,
        replication: Replication,
        metadata: Metadata,
        cluster: ClusterView,
        cold_reads: ColdReads,
        lite_fanout: LiteFanout,
    ) -> None:
        self._leadership = leadership
        self._replication = replication
        self._metadata = metadata
        self._cluster = cluster
        self._cold_reads = cold_reads
        self._lite_fanout = lite_fanout
        self._leader_was_alive = False

    def locate(self, path: str, request: Any, ctx: RequestContext) -> str | None:
        """Return HOST:PORT of the owner, or None to serve here. Raises WireError if no replica
        can."""
        if path in _SPECIAL and request is not None:
            if path == paths.SYNC_LITE_SUBSCRIPTION:
                self._lite_fanout.send(request, ctx)
            elif path in _REPLICATION or request.HasField("broker_id"):
                return self._beside_leader(path, request)
        if path in _ROUTES and self._may_be_new_topic(path, request):
            return self._leadership.leader_client()
        if path in _LOCAL or path.startswith(paths.TEST):
            return None
        view = self._cluster
        if not view.complete and request is not None and self._of_absent_group(path, request):
            return UNKNOWN
        if len(view.groups) > 1 and request is not None:
            other = self._other_group(path, request)
            if other is not None:
                return self._owner_of_other(other, path)
        if self._leadership.is_leader:
            # A SendMessage costs two look-ups here and no call.
            if self._leadership.pausing or path in _SELDOM:
                return UNKNOWN if self._waits(path) else self._cold(path, request, ctx)
            return None
        if self._serve_without_leader(path):
            return None
        leader = self._leadership.leader_client()
        if leader is not None:
            return leader
        if path in HELD:
            return UNKNOWN
        if self._replication.diverged is not None:
            raise _no_copy()
        return None

    def serves_all(self, path: str) -> bool:
        """Whether `locate` returns None for every SendMessage to a topic that is writable here."""
        leadership = self._leadership
        return path == paths.SEND_MESSAGE and leadership.is_leader and not leadership.pausing

    def unreachable(
        self, path: str, request: Any, ctx: RequestContext
    ) -> Literal["serve", "hold"] | WireError:
        """Decide what happens to a request whose owner cannot be reached."""
        if path in HELD:
            return "hold"
        if self._replication.diverged is not None and path not in _SPECIAL:
            return _no_copy()
        if len(self._cluster.groups) > 1 and request is not None:
            other = self._other_group(path, request)
            if other is not None:
                return _no_replica(other)
        return "serve"

    def _beside_leader(self, path: str, request: Any) -> str | None:
        """Return the owner of a call that needs no leader: the replica that it names, or any node
        of the group."""
        if path == paths.DESCRIBE_STORE:
            member = self._cluster.replica(request.broker, request.broker_id)
            own = self._replication.identity
            if member is None or (member.group, member.broker_id) == (own.group, own.broker_id):
                return None  # the handler refuses an unknown replica
            return member.client or None
        other = self._other_group(path, request)
        return None if other is None else self._owner_of_other(other, path)

    def _waits(self, path: str) -> bool:
        """Whether this leader refuses writes that it or another leader will soon accept.

        SendMessage is checked only after the sender met a refusal (`Leadership.pausing`).
        """
        if path == paths.SEND_MESSAGE:
            return self._leadership.still_pausing()
        return path in HELD and self._leadership.writes_elsewhere()

    def _cold(self, path: str, request: Any, ctx: RequestContext) -> str | None:
        """Return a follower that serves an old part of the log for this leader, or None."""
        if path not in COLD_READS or request is None or ctx.forwarded:
            return None
        return self._cold_reads.reader(path, request)

    def _may_be_new_topic(self, path: str, request: Any) -> bool:
        """Whether a follower does not have the topic yet, which may just have been created."""
        if self._leadership.is_leader or request is None or self._serve_without_leader(path):
            return False
        name = request.topic.name
        known = self._metadata.topic(name) is not None or name in self._cluster.own().topics
        return not known and not self._cluster.others_with(name)

    def _serve_without_leader(self, path: str) -> bool:
        """Whether reads are served here because replication has lost the leader.

        A follower that was refused or never connected cannot tell and forwards.
        """
        replication = self._replication
        if replication.leader_alive:
            self._leader_was_alive = True
            return False
        return path not in HELD and self._leader_was_alive and replication.refused is None

    def _other_group(self, path: str, request: Any) -> GroupView | None:
        """Return the group that owns the request, if it is not this node's group."""
        view = self._cluster
        name = GROUP_OF[path](request) if path in GROUP_OF else ""
        if name:
            return None if name == view.own_group else view.group(name)
        topic = TOPIC_OF[path](request) if path in TOPIC_OF else ""
        if not topic:
            return None
        known = self._metadata.topic(topic)
        if known is not None:
            if path != paths.SEND_MESSAGE:
                return None
            if not known.writable:
                return self._writable_elsewhere(known)
            return self._of_lite_topic(known, request) if is_parent(known) else None
        if topic in view.own().topics:
            return None
        others = view.others_with(topic)
        return others[0] if others else None

    def _of_absent_group(self, path: str, request: Any) -> bool:
        """Whether the request may be for a group that is not up, and waits. Raises WireError if it
        does not wait."""
        view = self._cluster
        name = GROUP_OF[path](request) if path in GROUP_OF else ""
        topic = TOPIC_OF[path](request) if path in TOPIC_OF and not name else ""
        if name:
            known = view.group(name) is not None or not (view.awaiting or name in view.absent)
        else:
            known = not topic or self._metadata.topic(topic) is not None
        if known or topic in view.own().topics or view.others_with(topic):
            return False
        if view.awaiting and path in HELD:
            return True
        if view.awaiting:
            raise WireError(v2.PROXY_TIMEOUT, "the broker group may not be up yet; try again")
        error = absent_group(name) if name else absent_topic(topic, view.absent)
        # The outcome of a write is known: it has not been made.
        raise WireError(v2.HA_NOT_AVAILABLE, error.message) if path in HELD else error

    def _writable_elsewhere(self, topic: Topic) -> GroupView | None:
        """Return a group that takes messages of a topic while this one does not: it is drained, and
        the producer has an earlier route."""
        for group in self._cluster.others_with(topic.name):
            if group.topics[topic.name].perm & PERM_WRITE:
                return group
        return None

    def _of_lite_topic(self, parent: Topic, request: Any) -> GroupView | None:
        """Return the group that has a lite topic, if it is another one."""
        view = self._cluster
        others = view.others_with(parent.name)
        takers = [one.name for one in others if one.topics[parent.name].perm & PERM_WRITE]
        names = sorted((view.own_group, *takers))
        lite = request.messages[0].system_properties.lite_topic
        name = chosen_by(lite, names)
        return None if name == view.own_group else view.group(name)

    def _owner_of_other(self, group: GroupView, path: str) -> str:
        """Return HOST:PORT of a replica of another group, or UNKNOWN. Raises WireError."""
        leader = group.leader()
        if leader is not None and (leader.alive or path in HELD):
            return leader.client
        # Without its leader, any living replica of the group serves its reads.
        member = _first_alive(group) or leader
        if member is not None:
            return member.client
        if path in HELD:
            return UNKNOWN  # no leader has registered; one may be elected
        raise _no_replica(group)


def _first_alive(group: GroupView) -> MemberView | None:
    return next((member for member in group.members if member.alive), None)
