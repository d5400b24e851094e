"""Sending from the command line: many calls in flight, every outcome counted.

Message ids have the format of 5.x clients (docs/formats/grpc-api.md, section 6.2): "01", six bytes
that identify the sender, the process id, seconds since 2021 and a counter. Nothing is retried; a
message that was not acknowledged is reported with the broker's error.
"""

import os
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from ...proto import paths, v2
from ..connection import Connection, failure, refusal
from ..errors import CliError, Exit

# Concurrent sends: enough to keep a broker busy, few enough to meet every deadline.
_IN_FLIGHT = 64
_TIMEOUT_S = 10.0
_EPOCH_2021_S = 1_609_459_200


@dataclass(frozen=True, slots=True)
class Draft:
    """The message to send."""

    topic: str
    body: bytes
    keys: tuple[str, ...] = ()
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    delay_s: float | None = None
    priority: int | None = None
    lite_topic: str | None = None


@dataclass(slots=True)
class Result:
    """The outcome: receipts in order, failures by message."""

    topic: str
    receipts: list[dict[str, Any]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    codes: set[Exit] = field(default_factory=set)
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "topic": self.topic,
            "sent": len(self.receipts),
            "failed": sum(self.failures.values()),
            "seconds": round(self.seconds, 3),
            "messages": self.receipts,
        }

    def exit_code(self) -> Exit:
        """Return 0 only if every message was acknowledged."""
        if not self.failures:
            return Exit.DONE
        return Exit.NOT_FOUND if self.codes == {Exit.NOT_FOUND} else Exit.FAILED

    def failed(self, error: CliError) -> None:
        """Count one message that was not acknowledged."""
        self.failures[str(error)] += 1
        self.codes.add(error.code)


def send_all(endpoint: str, draft: Draft, count: int) -> Result:
    """Send `count` messages, spread over the topic's queues. Raises CliError without a route."""
    with Connection(endpoint) as connection:
        route = connection.call(
            paths.QUERY_ROUTE,
            v2.QueryRouteRequest(
                topic=v2.Resource(name=draft.topic), endpoints=_endpoints(endpoint)
            ),
            v2.QueryRouteResponse,
        )
        kind = _message_type(draft, route)
        queues = [queue.id for queue in route.message_queues]
        method: Any = connection.method(paths.SEND_MESSAGE, v2.SendMessageResponse)
        start = method.future
        result = Result(draft.topic)
        in_flight: deque[tuple[str, int, grpc.Future]] = deque()
        started = time.monotonic()
        for message_id, at in zip(_message_ids(), range(count), strict=False):
            queue = queues[at % len(queues)]
            request = v2.SendMessageRequest(messages=[_message(draft, kind, queue, message_id)])
            future = start(request, timeout=_TIMEOUT_S, metadata=connection.metadata)
            in_flight.append((message_id, queue, future))
            # A message group keeps its order only if one message is in flight at a time.
            while len(in_flight) >= (1 if draft.group else _IN_FLIGHT):
                _settle(in_flight.popleft(), connection.endpoint, result)
        while in_flight:
            _settle(in_flight.popleft(), connection.endpoint, result)
        result.seconds = time.monotonic() - started
    return result


def _settle(sent: tuple[str, int, grpc.Future], endpoint: str, result: Result) -> None:
    message_id, queue, future = sent
    try:
        answer: v2.SendMessageResponse = future.result()
    except grpc.RpcError as error:
        result.failed(failure(error, endpoint))
        return
    entry = answer.entries[0] if answer.entries else None
    status = entry.status if entry is not None else answer.status
    if status.code != v2.OK or entry is None:
        result.failed(refusal(status.code or answer.status.code, status.message))
        return
    result.receipts.append(
        {"message_id": entry.message_id or message_id, "queue": queue, "offset": entry.offset}
    )


def _message(
    draft: Draft, kind: v2.MessageType.ValueType, queue: int, message_id: str
) -> v2.Message:
    now_ms = time.time_ns() // 1_000_000
    properties = v2.SystemProperties(
        keys=draft.keys,
        message_id=message_id,
        body_encoding=v2.IDENTITY,
        message_type=kind,
        born_host=socket.gethostname(),
        queue_id=queue,
    )
    properties.born_timestamp.FromMilliseconds(now_ms)
    if draft.tag is not None:
        properties.tag = draft.tag
    if draft.group is not None:
        properties.message_group = draft.group
    if draft.delay_s is not None:
        properties.delivery_timestamp.FromMilliseconds(now_ms + int(draft.delay_s * 1_000))
    if draft.priority is not None:
        properties.priority = draft.priority
    if draft.lite_topic is not None:
        properties.lite_topic = draft.lite_topic
    return v2.Message(
        topic=v2.Resource(name=draft.topic),
        user_properties=draft.properties,
        system_properties=properties,
        body=draft.body,
    )


def _message_type(draft: Draft, route: v2.QueryRouteResponse) -> v2.MessageType.ValueType:
    """Return the message type of the options. Raises CliError if the topic does not accept it."""
    accepted = list(route.message_queues[0].accept_message_types)
    kind: v2.MessageType.ValueType = v2.NORMAL
    if draft.group is not None:
        kind = v2.FIFO
    elif draft.delay_s is not None:
        kind = v2.DELAY
    elif draft.priority is not None:
        kind = v2.PRIORITY
    elif draft.lite_topic is not None:
        kind = v2.LITE
    if kind in accepted or not accepted:
        return kind
    wanted = {
        v2.FIFO: "requires --group",
        v2.DELAY: "requires --delay",
        v2.TRANSACTION: "accepts transactional messages only, which this command cannot send",
        v2.PRIORITY: "requires --priority",
        v2.LITE: "requires --lite-topic",
        v2.NORMAL: "does not accept --group, --delay, --priority or --lite-topic",
    }
    hint = wanted.get(accepted[0], "accepts messages that this command cannot send")
    raise CliError(f"Topic {draft.topic} {hint}.", Exit.USAGE)


def _endpoints(endpoint: str) -> v2.Endpoints:
    """Return the endpoints of the route request."""
    pairs = [part.strip().rpartition(":") for part in endpoint.split(";") if part.strip()]
    is_ipv4 = all(host.replace(".", "").isdigit() for host, _, _ in pairs)
    is_ipv6 = all(host.startswith("[") for host, _, _ in pairs)
    scheme = v2.IPv4 if is_ipv4 else v2.IPv6 if is_ipv6 else v2.DOMAIN_NAME
    return v2.Endpoints(
        scheme=scheme,
        addresses=[v2.Address(host=host.strip("[]"), port=int(port)) for host, _, port in pairs],
    )


def _message_ids() -> Iterator[str]:
    sender = secrets.token_bytes(6)
    pid = (os.getpid() & 0xFFFF).to_bytes(2, "big")
    seconds = (int(time.time()) - _EPOCH_2021_S).to_bytes(4, "big")
    prefix = b"\x01" + sender + pid + seconds
    counter = 0
    while True:
        yield (prefix + counter.to_bytes(4, "big")).hex().upper()
        counter = (counter + 1) & 0xFFFF_FFFF
