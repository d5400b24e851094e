"""Rights: which actions on which resources each method of each service needs. Pure.

`RIGHTS` maps the path of a client-port method to a function that reads the needs from the request.
All needs must be allowed; a need is allowed if one of its actions is. A request without any need
is refused, unless its method is in `PUBLIC`. Messages of other nodes (`NODE_SERVICES`) need the
cluster token instead. Source: docs/formats/grpc-api.md, section 2.4; for `cometmq.v1`: reading the
log or messages by id or key crosses topics, so it needs the right on the cluster.

A receipt handle belongs to the topic and group that the request names, and a transaction id to the
topic: the services refuse others. A recall handle names its topic, which is checked as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...auth.model import CLUSTER, GROUP, TOPIC, Action
from ...proto import paths, v2
from ..messages.validation import TOOLS_GROUP
from ..names.recall_handle import decode_recall_handle

#: Kind and name of a resource, and the bits of alternative actions (`Action`), as a plain number:
#: hashing an enum is slow. The name "" of a cluster is this one.
Need = tuple[str, str, int]
Needs = tuple[Need, ...]

_PUB, _SUB = int(Action.PUB), int(Action.SUB)
_EITHER = _PUB | _SUB

# Users with any administrative right.
_ANY = int(Action.CREATE | Action.UPDATE | Action.DELETE | Action.GET | Action.LIST) | _EITHER

#: Only users of type Super: a policy can allow no action of it.
SUPER: Needs = ((CLUSTER, "", 0),)


def _cluster(action: int) -> Callable[[Any], Needs]:
    needs: Needs = ((CLUSTER, "", int(action)),)
    return lambda _request: needs


def _super(_request: Any) -> Needs:
    return SUPER


_READ_LOG = _cluster(Action.SUB)


def _read_log(request: Any) -> Needs:
    return SUPER if request.whole else _READ_LOG(request)


def _query_route(request: Any) -> Needs:
    return ((TOPIC, request.topic.name, _EITHER),)


def _send(request: Any) -> Needs:
    # The broker stores all messages of a request under the topic of the first.
    messages = request.messages
    return (send_need(messages[0].topic.name),) if messages else ()


def send_need(topic: str) -> Need:
    """Return what a send to a topic needs."""
    return (TOPIC, topic, _PUB)


def _publish(request: Any) -> Needs:
    return ((TOPIC, request.topic.name, _PUB),)


def _recall(request: Any) -> Needs:
    handle = decode_recall_handle(request.recall_handle)
    if handle is None or handle.topic == request.topic.name:
        return _publish(request)
    return ((TOPIC, request.topic.name, _PUB), (TOPIC, handle.topic, _PUB))


def _consume(request: Any) -> Needs:
    return ((GROUP, request.group.name, _SUB), (TOPIC, request.topic.name, _SUB))


def _consume_queue(request: Any) -> Needs:
    return ((GROUP, request.group.name, _SUB), (TOPIC, request.message_queue.topic.name, _SUB))


def _pull_queue(request: Any) -> Needs:
    topic: Need = (TOPIC, request.message_queue.topic.name, _SUB)
    return ((GROUP, request.group.name, _SUB), topic) if request.group.name else (topic,)


def _pull(request: Any) -> Needs:
    # A pull by the group of tools looks at a topic: it changes no offset.
    return _read_queue(request) if request.group.name == TOOLS_GROUP else _pull_queue(request)


def _read_queue(request: Any) -> Needs:
    return ((TOPIC, request.message_queue.topic.name, _SUB),)


def _heartbeat(request: Any) -> Needs:
    if request.client_type == v2.PRODUCER or not request.group.name:
        return ()
    return ((GROUP, request.group.name, _SUB),)


def _terminate(request: Any) -> Needs:
    return ((GROUP, request.group.name, _SUB),) if request.group.name else ()


def _telemetry(command: Any) -> Needs:
    """Return the needs of one command."""
    if not command.HasField("settings"):
        return ()
    settings = command.settings
    if settings.HasField("publishing"):
        return tuple((TOPIC, topic.name, _PUB) for topic in settings.publishing.topics)
    if not settings.HasField("subscription"):
        return ()
    subscription = settings.subscription
    topics = tuple((TOPIC, each.topic.name, _SUB) for each in subscription.subscriptions)
    return ((GROUP, subscription.group.name, _SUB), *topics)


RIGHTS: dict[str, Callable[[Any], Needs]] = {
    paths.QUERY_ROUTE: _query_route,
    paths.QUERY_ASSIGNMENT: _consume,
    paths.HEARTBEAT: _heartbeat,
    paths.NOTIFY_CLIENT_TERMINATION: _terminate,
    paths.SEND_MESSAGE: _send,
    paths.RECEIVE_MESSAGE: _consume_queue,
    paths.ACK_MESSAGE: _consume,
    paths.CHANGE_INVISIBLE_DURATION: _consume,
    paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE: _consume,
    paths.PULL_MESSAGE: _pull,
    paths.UPDATE_OFFSET: _pull_queue,
    paths.GET_OFFSET: _pull_queue,
    paths.QUERY_OFFSET: _read_queue,
    paths.RECALL_MESSAGE: _recall,
    paths.END_TRANSACTION: _publish,
    paths.SYNC_LITE_SUBSCRIPTION: _consume,
    paths.TELEMETRY: _telemetry,
    paths.CREATE_TOPIC: _cluster(Action.CREATE),
    paths.DELETE_TOPIC: _cluster(Action.DELETE),
    paths.LIST_TOPICS: _cluster(Action.LIST),
    paths.DESCRIBE_TOPIC: _cluster(Action.GET),
    paths.CREATE_GROUP: _cluster(Action.CREATE),
    paths.DELETE_GROUP: _cluster(Action.DELETE),
    paths.LIST_GROUPS: _cluster(Action.LIST),
    paths.DESCRIBE_GROUP: _cluster(Action.GET),
    paths.LIST_CLIENTS: _cluster(Action.LIST),
    paths.GET_CLIENT_STACK: _cluster(Action.GET),
    paths.LIST_BROKERS: _cluster(_ANY),
    paths.DESCRIBE_CLUSTER: _cluster(Action.GET),
    paths.RESET_OFFSETS: _cluster(Action.UPDATE),
    paths.GET_CONFIG: _cluster(Action.GET),
    paths.CHANGE_CONFIG: _cluster(Action.UPDATE),
    paths.SEND_ONCE: lambda request: (send_need(request.message.topic.name),),
    paths.QUERY_MESSAGES: _cluster(Action.SUB),
    paths.LIST_TIMERS: _cluster(Action.SUB),
    paths.LIST_TRANSACTIONS: _cluster(Action.SUB),
    paths.DESCRIBE_STORE: _cluster(Action.GET),
    paths.DESCRIBE_REPLICATION: _cluster(Action.GET),
    paths.CHANGE_REPLICATION: _cluster(Action.UPDATE),
    paths.READ_LOG: _read_log,
    paths.READ_OFFSETS: _cluster(Action.SUB),
    paths.LOCATE_LOG: _cluster(Action.SUB),
    paths.SET_ARCHIVE_WATERMARK: _cluster(Action.UPDATE),
    paths.SET_DRAINED: _cluster(Action.UPDATE),
    paths.GET_ARCHIVE_WATERMARK: _cluster(Action.GET),
    paths.PUT_QUOTA: _cluster(Action.UPDATE),
    paths.DELETE_QUOTA: _cluster(Action.UPDATE),
    paths.LIST_QUOTAS: _cluster(Action.LIST),
    paths.PUT_USER: _super,
    paths.DELETE_USER: _super,
    paths.LIST_USERS: _super,
    paths.PUT_POLICY: _super,
    paths.DELETE_POLICY: _super,
    paths.CHECK_ACCESS: _super,
    paths.GET_CLOCK: _super,
    paths.SET_CLOCK: _super,
    paths.ADVANCE_CLOCK: _super,
    paths.PUT_FAULT: _super,
    paths.LIST_FAULTS: _super,
    paths.CLEAR_FAULTS: _super,
    paths.GET_COUNTERS: _super,
    paths.SET_ROUTES: _super,
}

#: Methods whose request may name nothing: they concern the caller's own client, whose id belongs to
#: its user.
PUBLIC = frozenset((paths.HEARTBEAT, paths.NOTIFY_CLIENT_TERMINATION, paths.TELEMETRY))

#: Methods that change topics, groups, offsets, users, policies, quotas or the broker group.
CHANGES = frozenset(
    (
        paths.CREATE_TOPIC,
        paths.DELETE_TOPIC,
        paths.CREATE_GROUP,
        paths.DELETE_GROUP,
        paths.RESET_OFFSETS,
        paths.SET_DRAINED,
        paths.PUT_USER,
        paths.DELETE_USER,
        paths.PUT_POLICY,
        paths.DELETE_POLICY,
        paths.PUT_QUOTA,
        paths.DELETE_QUOTA,
    )
)

#: Services between nodes, on the nameserver's and the replication port.
NODE_SERVICES = frozenset(
    f"cometmq.v1.{name}"
    for name in ("GroupController", "HaReplication", "MetaCell", "NameServer", "ReplicaControl")
)
