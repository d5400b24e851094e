"""QueryRoute: the message queues that official clients receive.

Rules (docs/formats/grpc-api.md, sections 4.2, 5.1, 9.1 and 9.3): one broker entry per group, always
with id 0, whose endpoints are the client addresses of all its replicas as alternatives, in a stable
order that neither failures nor role changes disturb. Clients that support only one address, and
routes to host names (several clients refuse them), get the leader's. An OK answer never has an
empty list, because a client divides by its length.
"""

import ipaddress
import re
from collections.abc import Iterable
from itertools import groupby

from ..front.context import takes_several_addresses
from ..proto import v2
from ..proto.errors import WireError
from ..proto.route_queues import encode_queues
from .rows import Group, Topic

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_SYSTEM_TOPICS = frozenset(
    (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    )
)
_MIXED = -1
_READ_BIT = 4
_WRITE_BIT = 2


def check_topic(name: str) -> None:
    """Raise ILLEGAL_TOPIC for an invalid topic name."""
    if not name.strip():
        raise WireError(v2.ILLEGAL_TOPIC, "the topic name is empty")
    if not _NAME.fullmatch(name):
        raise WireError(
            v2.ILLEGAL_TOPIC,
            "a topic name must have 1 to 127 characters out of letters, digits, '%', '|', "
            "'_' and '-'",
        )
    if name in _SYSTEM_TOPICS or name.startswith("rmq_sys_"):
        raise WireError(v2.ILLEGAL_TOPIC, f"{name} is a system topic")


def message_queues(
    resource: v2.Resource, routes: Iterable[tuple[Group, Topic]], language: str, tls: bool = False
) -> bytes:
    """Encode all queues of the topic, group by group; `resource` is returned unchanged."""
    parts: list[bytes] = []
    for group, topic in routes:
        queue = v2.MessageQueue(
            topic=resource,
            broker=v2.Broker(name=group.name, id=0, endpoints=endpoints(group, language, tls)),
            accept_message_types=accepted_types(topic.message_type),
        )
        begin = 0
        for permission, equal in groupby(permissions(topic, drained=is_drained(group))):
            queue.permission = permission
            end = begin + len(list(equal))
            parts.append(encode_queues(queue, range(begin, end)))
            begin = end
    return b"".join(parts)


def is_drained(group: Group) -> bool:
    """Return whether an operator drains the group."""
    return group.decision is not None and group.decision.drain


def permissions(topic: Topic, *, drained: bool = False) -> list[v2.Permission.ValueType]:
    """Return one permission per queue: the surplus of either side first, then read-write."""
    readable = topic.read_queues if topic.perm & _READ_BIT else 0
    writable = topic.write_queues if topic.perm & _WRITE_BIT and not drained else 0
    if not readable and not writable:
        return [v2.NONE] * max(1, topic.read_queues, topic.write_queues)
    return (
        [v2.READ] * max(0, readable - writable)
        + [v2.WRITE] * max(0, writable - readable)
        + [v2.READ_WRITE] * min(readable, writable)
    )


def accepted_types(message_type: int) -> list[v2.MessageType.ValueType]:
    """Return the message types of the topic; never UNSPECIFIED, on which clients throw."""
    if message_type == _MIXED:
        return [v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION]
    return [v2.MessageType.ValueType(message_type or v2.NORMAL)]


def endpoints(group: Group, language: str, tls: bool = False) -> v2.Endpoints:
    """Return the group's endpoints for clients of this language."""
    members = group.in_order()
    addresses = [split_address(member.addresses.client) for member in members]
    schemes = [scheme_of(host) for host, _ in addresses]
    same_ip_scheme = len(set(schemes)) == 1 and schemes[0] != v2.DOMAIN_NAME
    if not (takes_several_addresses(language, tls) and same_ip_scheme):
        leader = group.leader() or next((m for m in members if m.alive), members[0])
        addresses = [split_address(leader.addresses.client)]
    return v2.Endpoints(
        scheme=scheme_of(addresses[0][0]),
        addresses=[v2.Address(host=host, port=port) for host, port in addresses],
    )


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT, with an IPv6 host in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def scheme_of(host: str) -> v2.AddressScheme.ValueType:
    """Return the address scheme of the host."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return v2.DOMAIN_NAME
    return v2.IPv4 if version == 4 else v2.IPv6
