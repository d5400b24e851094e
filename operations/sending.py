"""Sends for an operator: many calls in flight, every outcome counted.

Message ids have the format of 5.x clients (docs/formats/grpc-api.md, section 6.2): "01", six bytes
that identify the sender, the process id, seconds since 2021 and a counter. Nothing is retried; a
message that was not acknowledged is reported with the broker's error. Ctrl-C sends nothing more and
waits half a second for the calls in flight. The broker chooses the queue of a message and does not
answer it, so the queue is read from the index.
"""

import os
import secrets
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import grpc

from ..proto import paths, v1, v2
from .connection import Connection, refusal
from .errors import CliError, Exit

# Concurrent sends: enough to keep a broker busy, few enough to meet every deadline.
_IN_FLIGHT = 64
_TIMEOUT_S = 10.0
_EPOCH_2021_S = 1_609_459_200
# After Ctrl-C: time for the answers of calls in flight.
_LAST_ANSWERS_S = 0.5
# An answer is awaited in steps, so that Ctrl-C is noticed.
_STEP_S = 0.1
# Longest wait for the index, and the period of its queries.
_INDEX_S, _INDEX_PERIOD_S = 1.0, 0.05
_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True)
class Draft:
    """The message to send."""

    topic: str
    body: bytes
    keys: tuple[str, ...] = ()
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    delay_ms: int | None = None
    priority: int | None = None
    lite_topic: str | None = None

    def kind(self) -> v2.MessageType.ValueType:
        """Return the message type of the options."""
        if self.group is not None:
            return v2.FIFO
        if self.delay_ms is not None:
            return v2.DELAY
        if self.priority is not None:
            return v2.PRIORITY
        return v2.LITE if self.lite_topic is not None else v2.NORMAL


@dataclass(slots=True)
class Result:
    """The outcome: receipts in order, failures by message."""

    topic: str
    receipts: list[dict[str, Any]] = field(default_factory=list)
    #: Reason -> numbers of the messages, from 1.
    failures: dict[str, list[int]] = field(default_factory=dict)
    codes: set[Exit] = field(default_factory=set)
    seconds: float = 0.0
    interrupted: bool = False
    #: After Ctrl-C: calls without an answer, whose outcome is unknown.
    unknown: int = 0

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "topic": self.topic,
            "sent": len(self.receipts),
            "failed": self.failed_total,
            "unknown": self.unknown,
            "seconds": round(self.seconds, 3),
            "messages": self.receipts,
            "failures": [
                {"reason": reason, "numbers": numbers} for reason, numbers in self.failures.items()
            ],
        }

    @property
    def failed_total(self) -> int:
        """Messages that were not acknowledged."""
        return sum(len(numbers) for numbers in self.failures.values())

    @property
    def total(self) -> int:
        """Messages that were tried."""
        return len(self.receipts) + self.failed_total + self.unknown

    def sentence(self, count: int) -> str:
        """Describe how many of `count` messages were sent."""
        text = f"Sent {len(self.receipts)} of {count} messages in {self.seconds:.2f} s"
        if self.interrupted:
            text += "; interrupted"
        if self.unknown:
            text += f", {self.unknown} in flight were not answered"
        return text + "."

    def exit_code(self) -> int:
        """Return 0 only if every message was acknowledged; 130 after Ctrl-C."""
        if self.interrupted:
            return _INTERRUPTED
        if not self.failures:
            return Exit.DONE
        return Exit.NOT_FOUND if self.codes == {Exit.NOT_FOUND} else Exit.FAILED

    def failed(self, error: CliError) -> None:
        """Note that the next message was not acknowledged: outcomes are in the order of sends."""
        self.failures.setdefault(str(error), []).append(self.total + 1)
        self.codes.add(error.code)


class _Interruption:
    """Ctrl-C during the sends: `began_s` is its time, or None.

    The signal does not raise KeyboardInterrupt: that would end grpcio's code at any line, and
    closing the channel could then wait for ever.
    """

    def __init__(self) -> None:
        self.began_s: float | None = None

    @property
    def is_over(self) -> bool:
        """True when calls in flight are not awaited any more."""
        return self.began_s is not None and time.monotonic() > self.began_s + _LAST_ANSWERS_S


@contextmanager
def _interruption() -> Iterator[_Interruption]:
    """Note Ctrl-C instead of raising. Does nothing outside the main thread."""
    noted = _Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(_number: int, _frame: object) -> None:
        noted.began_s = noted.began_s or time.monotonic()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def send_over(connection: Connection, drafts: Iterable[Draft], *, locate: bool) -> Result:
    """Send messages to one topic, until Ctrl-C; with `locate` receipts name the queue.

    The first draft decides the message type of all. Raises CliError without a route.
    """
    drafts = iter(drafts)
    draft = next(drafts, None)
    if draft is None:
        raise CliError("There is no message to send: stdin is empty.", Exit.USAGE)
    kind = message_type(draft, route_of(connection, draft))
    result = Result(draft.topic)
    started = time.monotonic()
    with _interruption() as interruption:
        _send(
            connection,
            chain([draft], drafts),
            kind=kind,
            result=result,
            interruption=interruption,
        )
        result.seconds = time.monotonic() - started
        result.interrupted = interruption.began_s is not None
    if locate and not result.interrupted:
        _add_queues(connection, result)
    return result


def route_of(connection: Connection, draft: Draft) -> v2.QueryRouteResponse:
    """Return the topic's route. Raises CliError; for a missing topic it advises its type."""
    topic, endpoints = v2.Resource(name=draft.topic), endpoints_of(connection.endpoint)
    request = v2.QueryRouteRequest(topic=topic, endpoints=endpoints)
    try:
        return connection.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
    except CliError as error:
        kind = draft.kind()
        if error.code is not Exit.NOT_FOUND or kind == v2.NORMAL:
            raise
        advice = f"topic create {draft.topic}"
        name = v2.MessageType.Name(kind).lower()
        raise CliError(str(error).replace(advice, f"{advice} --type {name}"), error.code) from None


def _send(
    connection: Connection,
    drafts: Iterable[Draft],
    *,
    kind: v2.MessageType.ValueType,
    result: Result,
    interruption: _Interruption,
) -> None:
    method: Any = connection.method(paths.SEND_MESSAGE, v2.SendMessageResponse)
    in_flight: deque[tuple[v2.Message, grpc.Future]] = deque()
    for draft, message_id in zip(drafts, _message_ids(), strict=False):
        if interruption.began_s is not None:
            break
        message = message_of(draft, kind, message_id)
        request = v2.SendMessageRequest(messages=[message])
        future = method.future(request, timeout=_TIMEOUT_S, metadata=connection.metadata)
        in_flight.append((message, future))
        # A message group keeps its order only if one message is in flight at a time.
        while len(in_flight) >= (1 if draft.group else _IN_FLIGHT):
            _settle(*in_flight.popleft(), connection, result, interruption)
    while in_flight:
        _settle(*in_flight.popleft(), connection, result, interruption)


def _settle(
    message: v2.Message,
    future: grpc.Future,
    connection: Connection,
    result: Result,
    interruption: _Interruption,
) -> None:
    while True:
        try:
            answer: v2.SendMessageResponse = future.result(timeout=_STEP_S)
            break
        except grpc.FutureTimeoutError:
            if interruption.is_over:
                future.cancel()
                result.unknown += 1
                return
        except grpc.RpcError as error:
            result.failed(connection.failure(error))
            return
    entry = answer.entries[0] if answer.entries else None
    status = entry.status if entry is not None else answer.status
    if status.code != v2.OK or entry is None:
        result.failed(refusal(status.code or answer.status.code, status.message))
        return
    properties = message.system_properties
    receipt: dict[str, Any] = {"message_id": entry.message_id or properties.message_id}
    if properties.HasField("delivery_timestamp"):  # it has no queue before it is due
        receipt["due_ms"] = properties.delivery_timestamp.ToMilliseconds()
        receipt["recall_handle"] = entry.recall_handle
    else:
        receipt |= {"queue": None, "offset": entry.offset}
    result.receipts.append(receipt)


def _add_queues(connection: Connection, result: Result) -> None:
    """Add the queue to each receipt; it stays unknown if the index does not have the message."""
    method: Any = connection.method(paths.QUERY_MESSAGES, v1.QueryMessagesResponse)
    placed = [receipt for receipt in result.receipts if "queue" in receipt]
    for first in range(0, len(placed), _IN_FLIGHT):
        missing: Sequence[dict[str, Any]] = placed[first : first + _IN_FLIGHT]
        end = time.monotonic() + _INDEX_S
        while missing and time.monotonic() < end:
            futures = []
            for receipt in missing:
                request = v1.QueryMessagesRequest(
                    topic=result.topic, unique_key=receipt["message_id"]
                )
                call = method.future(request, timeout=_TIMEOUT_S, metadata=connection.metadata)
                futures.append((receipt, call))
            missing = [receipt for receipt, call in futures if _waits_for_index(receipt, call)]
            if missing:
                time.sleep(_INDEX_PERIOD_S)


def _waits_for_index(receipt: dict[str, Any], call: grpc.Future) -> bool:
    """Enter the queue of a message; return True if the index does not have the message yet."""
    try:
        answer: v1.QueryMessagesResponse = call.result()
    except grpc.RpcError:
        return False  # the message is sent; without the permission to query its queue is unknown
    for found in answer.messages:
        properties = v2.Message.FromString(found.message).system_properties
        if properties.queue_offset == receipt["offset"]:
            receipt["queue"] = properties.queue_id
            return False
    return answer.index_behind > 0


def message_of(draft: Draft, kind: v2.MessageType.ValueType, message_id: str) -> v2.Message:
    now_ms = time.time_ns() // 1_000_000
    properties = v2.SystemProperties(
        keys=draft.keys,
        message_id=message_id,
        body_encoding=v2.IDENTITY,
        message_type=kind,
        born_host=socket.gethostname(),
    )
    properties.born_timestamp.FromMilliseconds(now_ms)
    if draft.tag is not None:
        properties.tag = draft.tag
    if draft.group is not None:
        properties.message_group = draft.group
    if draft.delay_ms is not None:
        properties.delivery_timestamp.FromMilliseconds(now_ms + draft.delay_ms)
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


def message_type(draft: Draft, route: v2.QueryRouteResponse) -> v2.MessageType.ValueType:
    """Return the message type of the options. Raises CliError if the topic does not accept it."""
    accepted = list(route.message_queues[0].accept_message_types)
    kind = draft.kind()
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


def endpoints_of(endpoint: str) -> v2.Endpoints:
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
