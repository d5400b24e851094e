"""The legs of a client's way to a broker, for `cometmq doctor connect`: each is checked alone.

    name         the host has addresses
    tcp          one of them accepts a connection
    protocol     the port speaks HTTP/2, with or without TLS as requested
    broker       the server is a broker or proxy, and accepts the caller's keys
    topic        a scratch topic and a scratch group exist, or --topic
    route        the topic has a route
    addresses    each address in the route, to which clients go next, is a node of this cluster:
                 it speaks HTTP/2, has the same replicas and knows the topic
    telemetry    a client gets the settings of the server
    send         a message is stored
    receive      it is received and acknowledged

The first broken leg explains the symptom; the ones behind it are not tried. A node may refuse to
list its replicas: then only the topic is compared. With --topic, the row `addresses` states this.
"""

import asyncio
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...client.errors import CometError, NotFound, RequestRefused
from ...client.producer import Producer
from ...client.simple_consumer import SimpleConsumer
from ...operations.broker_groups import BrokerGroups, answers, group_names
from ...operations.connection import Connection
from ...operations.errors import CliError, Exit, ForbiddenError, NotServedError
from ...operations.sending import Draft, route_of
from ...proto import paths, v1, v2
from ..links import connect, links
from ..sdk import sdk_options

_TIMEOUT_S = 5.0
_RECEIVE_S = 30.0
#: How long a replica may lack a topic that its leader has just created.
_REPLICATE_S = 5.0
_GROUP = "cometmq-doctor"
_ADVERTISE = (
    "Set advertise=HOST:PORT on the brokers to the address that clients use, or brokerIP1 to the"
    " broker's reachable address."
)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS_TYPE = 4
_FRAME_HEADER = 9


class BrokenLeg(Exception):
    """A leg is broken: what was found, and the cure."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(found)
        self.cure = cure


@dataclass(slots=True)
class Way:
    """What the legs find out for those behind them."""

    endpoint: str
    #: Runs the SDK's clients: asynchronous gRPC serves one event loop in a process.
    runner: asyncio.Runner
    #: A topic of the caller; empty: a scratch topic is made and deleted.
    topic: str
    host: str = ""
    port: int = 0
    addresses: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    route: v2.QueryRouteResponse | None = None
    body: bytes = b""
    #: Why nodes at the addresses of the route are known by the topic alone; "" if they are not.
    unknown: str = ""


Leg = Callable[[Way], str]


def legs() -> Iterator[tuple[str, Leg]]:
    """Yield the legs in order. A leg returns what it found. Raises BrokenLeg."""
    yield "name", _name
    yield "tcp", _tcp
    yield "protocol", _protocol
    yield "broker", _broker
    yield "topic", _topic
    yield "route", _route
    yield "addresses", _addresses
    yield "telemetry", _telemetry
    yield "send", _send
    yield "receive", _receive


def clean_up(way: Way) -> None:
    """Delete the scratch topic and group. Raises CliError."""
    if not way.made:
        return
    with connect(way.endpoint) as connection:
        group = v1.DeleteGroupRequest(name=_GROUP, accept_loss=True, force=True)
        topic = v1.DeleteTopicRequest(name=way.topic, accept_loss=True)
        connection.call(paths.DELETE_GROUP, group, v1.DeleteGroupResponse)
        connection.call(paths.DELETE_TOPIC, topic, v1.DeleteTopicResponse)


def _name(way: Way) -> str:
    first = way.endpoint.split(";", maxsplit=1)[0].strip()
    way.host, _, port = first.rpartition(":")
    way.port = int(port)
    host = way.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, way.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a name"
        raise BrokenLeg(
            f"{host} has no address: {reason}.",
            "Correct the name, add it to DNS or to /etc/hosts, or give an IP address.",
        ) from None
    way.addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return ", ".join(way.addresses)


def _tcp(way: Way) -> str:
    reasons = []
    for address in way.addresses:
        try:
            with socket.create_connection((address, way.port), _TIMEOUT_S):
                return f"{address}, port {way.port}, is open"
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    refused = any("refused" in reason.lower() for reason in reasons)
    raise BrokenLeg(
        f"Port {way.port} does not accept connections ({'; '.join(reasons)}).",
        "No process listens there: start the broker, correct the port (clients use 8081), or let it"
        " listen on this address (bindAddress)."
        if refused
        else "A firewall drops the packets, or the host is down: open the port.",
    )


def _protocol(way: Way) -> str:
    if not links().uses_tls(way.endpoint):
        server = way.addresses[0], way.port
        if _speaks_http2(server, None):
            return "HTTP/2 in plaintext"
        if _speaks_http2(server, _unverified()):
            raise BrokenLeg("The port speaks TLS only.", "Give --tls or --tls-ca FILE.")
        raise BrokenLeg(
            "The port does not speak HTTP/2.",
            "It is the port of another server: give the client port (8081), not that of metrics"
            " (5557) or of another program.",
        )
    used = links().tls(way.endpoint)
    context = ssl.create_default_context()
    if used is not None and used.roots:
        context = ssl.create_default_context(cadata=used.roots.decode("ascii", "replace"))
    name = used.name if used is not None else ""
    context.set_alpn_protocols(["h2"])
    try:
        server = way.addresses[0], way.port
        if _speaks_http2(server, context, name or way.host.strip("[]")):
            return "HTTP/2 with TLS, the certificate is trusted"
    except ssl.SSLCertVerificationError as error:
        raise BrokenLeg(
            f"The certificate is not accepted: {error.verify_message}.",
            "Give the authority with --tls-ca FILE, or use a certificate with this host name.",
        ) from None
    except ssl.SSLError:
        pass
    raise BrokenLeg(
        "The port does not speak TLS.",
        "Omit --tls, or set frontTlsCertificate and frontTlsKey on the broker.",
    )


def _unverified() -> ssl.SSLContext:
    """Return a context that only finds out whether the port speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _speaks_http2(server: tuple[str, int], context: ssl.SSLContext | None, name: str = "") -> bool:
    """Return whether the server answers the preface of HTTP/2 with settings.

    Raises ssl.SSLError with a context that verifies (it has a name to check).
    """
    try:
        plain = socket.create_connection(server, _TIMEOUT_S)
        with plain:
            link = (
                plain
                if context is None
                else context.wrap_socket(plain, server_hostname=name or None)
            )
            link.sendall(_PREFACE)
            header = link.recv(_FRAME_HEADER)
    except ssl.SSLError:
        if name:
            raise
        return False
    except OSError:
        return False
    return len(header) > 3 and header[3] == _SETTINGS_TYPE


def _broker(way: Way) -> str:
    try:
        with connect(way.endpoint) as connection:
            found = connection.call(
                paths.LIST_BROKERS, v1.ListBrokersRequest(), v1.ListBrokersResponse
            )
    except ForbiddenError:
        return "a node that accepts the keys; this user may not list its broker groups"
    except CliError as error:
        cure = "Give the client port of a broker or proxy (8081), and the keys of a user."
        raise BrokenLeg(str(error), cure) from None
    return f"a node of {found.broker or 'a proxy'}, broker groups: {', '.join(found.brokers)}"


def _topic(way: Way) -> str:
    with connect(way.endpoint) as connection:
        if way.topic:
            found = v1.DescribeTopicRequest(name=way.topic)
            try:
                groups = BrokerGroups(connection, group_names(connection))
                answers(groups.each(paths.DESCRIBE_TOPIC, found, v1.DescribeTopicResponse))
            except ForbiddenError:
                return (
                    f"{way.topic}: this user may not describe it; the route shows whether it exists"
                )
            except CliError as error:
                absent = error.code is Exit.NOT_FOUND
                cure = "Create the topic, or omit --topic." if absent else "See the error above."
                raise BrokenLeg(str(error), cure) from None
            return f"{way.topic} exists"
        way.topic = f"cometmq-doctor-{secrets.token_hex(4)}"
        try:
            topic = v1.CreateTopicRequest(name=way.topic, queues=1)
            connection.call(paths.CREATE_TOPIC, topic, v1.CreateTopicResponse)
            way.made.append(way.topic)
            group = v1.CreateGroupRequest(name=_GROUP)
            connection.call(paths.CREATE_GROUP, group, v1.CreateGroupResponse)
        except CliError as error:
            raise BrokenLeg(
                str(error), "Give the keys of an administrator, or an existing topic with --topic."
            ) from None
    return f"scratch topic {way.topic}"


def _route(way: Way) -> str:
    try:
        with connect(way.endpoint) as connection:
            way.route = route_of(connection, Draft(way.topic, b""))
    except CliError as error:
        cure = "The broker is not registered: correct namesrvAddr, and see its log."
        raise BrokenLeg(str(error), cure) from None
    queues = len(way.route.message_queues)
    return f"{queues} queue{'s' * (queues != 1)}"


def _addresses(way: Way) -> str:
    assert way.route is not None
    found = {
        (address.host, address.port): queue.broker.name
        for queue in way.route.message_queues
        for address in queue.broker.endpoints.addresses
    }
    reached, broken, others = [], [], []
    context = _unverified() if links().uses_tls(way.endpoint) else None
    for (host, port), broker in sorted(found.items()):
        address = f"{host}:{port}"
        try:
            socket.create_connection((host, port), _TIMEOUT_S).close()
        except OSError as error:
            broken.append(f"{address} ({error.strerror or error})")
            continue
        if not _speaks_http2((host, port), context):
            others.append(f"{address} (another server: it does not speak HTTP/2)")
        elif other := _another_server(way, address, broker):
            others.append(f"{address} ({other})")
        else:
            reached.append(address)
    if others:
        raise BrokenLeg(
            f"The broker sends clients to an address where another server answers, not a node of"
            f" this cluster: {', '.join(others)}.",
            f"{_ADVERTISE} If it is the right one, another process has taken the port there: stop"
            " it, or give one of them another port.",
        )
    if broken and not reached:
        raise BrokenLeg(
            f"The broker sends clients to addresses that this machine does not reach:"
            f" {', '.join(broken)}.",
            _ADVERTISE,
        )
    told = ", ".join(reached)
    told += f"; not reached: {', '.join(broken)}" if broken else ""
    return told + (f"; {way.unknown}" if way.unknown and not way.made else "")


def _another_server(way: Way, address: str, broker: str) -> str:
    """Return what answers at an advertised address instead of this cluster; "" if nothing does."""
    end_s = time.monotonic() + _REPLICATE_S
    while True:
        other, can_change = _ask(way, address, broker)
        if not can_change or time.monotonic() > end_s:
            return other
        time.sleep(0.2)


def _ask(way: Way, address: str, broker: str) -> tuple[str, bool]:
    """Return what answers at an address instead of this cluster, and whether it may know more soon.

    The replicas of the broker group are compared. Then a client is started there: it asks for the
    route of the topic and for settings.
    """

    async def start() -> None:
        options = sdk_options(way.endpoint)
        options["timeout"] = _TIMEOUT_S
        async with Producer(address, topics=[way.topic], **options):
            pass

    try:
        if not _has_same_replicas(way, address, broker):
            return f"a broker with other replicas of {broker}: it belongs to another cluster", False
    except NotServedError as error:
        return f"no broker or proxy: {error}", False
    except CliError as error:
        if error.code is Exit.NOT_FOUND:
            return f"a broker that does not know {broker}: it belongs to another cluster", True
        way.unknown = f"the replicas at {address} are unknown: {error}"
    try:
        way.runner.run(start())
    except NotFound:
        return f"a broker without the topic {way.topic}: it belongs to another cluster", True
    except RequestRefused as error:
        return f"a broker that refuses what {way.endpoint} accepts: {error}", False
    except CometError as error:
        return f"no broker or proxy: {error}", False
    return "", False


def _has_same_replicas(way: Way, address: str, broker: str) -> bool:
    """Return whether a broker group at an address is the one that the endpoint reaches.

    Raises CliError if either does not tell its replicas.
    """
    with connect(way.endpoint) as here, connect(way.endpoint, at=address) as there:
        return bool(_replicas(here, broker) & _replicas(there, broker))


def _replicas(connection: Connection, broker: str) -> set[str]:
    """Return the identities of a group's replicas as its leader knows them. Raises CliError."""
    request = v1.DescribeClusterRequest(broker=broker)
    members = connection.call(
        paths.DESCRIBE_CLUSTER, request, v1.DescribeClusterResponse, _TIMEOUT_S
    ).members
    if not any(one.role == v1.LEADER and one.replica.replica_uuid for one in members):
        raise CliError(f"{connection.endpoint} reaches no leader of {broker}.")
    return {one.replica.replica_uuid for one in members} - {""}


def _telemetry(way: Way) -> str:
    async def settle() -> None:
        async with Producer(way.endpoint, topics=[way.topic], **sdk_options(way.endpoint)):
            pass

    _run(
        way,
        settle,
        "A proxy or load balancer in between must pass HTTP/2 streams and keep them open.",
    )
    return "settings received"


def _send(way: Way) -> str:
    way.body = secrets.token_hex(16).encode()

    async def send() -> str:
        async with Producer(way.endpoint, **sdk_options(way.endpoint)) as producer:
            receipt = await producer.send(way.topic, way.body)
            return f"message {receipt.message_id}"

    return _run(
        way, send, "See `cometmq ha status` (leader, in-sync replicas) and the broker's disk."
    )


def _receive(way: Way) -> str:
    if not way.made:
        return "not tried: the consumers of --topic would miss messages"

    async def receive() -> None:
        async with SimpleConsumer(
            way.endpoint, group=_GROUP, topics=way.topic, **sdk_options(way.endpoint)
        ) as consumer:
            loop = asyncio.get_running_loop()
            end_s = loop.time() + _RECEIVE_S
            while loop.time() < end_s:
                for message in await consumer.receive(wait=1.0):
                    await consumer.ack(message)
                    if message.body == way.body:
                        return
        raise CometError(f"The message did not arrive within {_RECEIVE_S:g} s.")

    _run(way, receive, "See `cometmq group describe` and the broker's log.")
    return "received and acknowledged"


def _run(way: Way, work: Callable[[], Coroutine[Any, Any, str | None]], cure: str) -> str:
    """Run a coroutine function of the SDK. Raises BrokenLeg."""
    try:
        return way.runner.run(work()) or ""
    except (CometError, CliError) as error:
        raise BrokenLeg(str(error), cure) from None
