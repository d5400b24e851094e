"""Quotas: limits what users and topics send, and how many clients and receives they have.

A send counts at the node that stores it, a client and a waiting receive at every node that they
reach: so a limit holds for each broker group. A refused call gets TOO_MANY_REQUESTS with the name
of the quota, takes nothing from any limit, and is counted. Only calls that begin after a quota is
set count. In memory: a restart or another leader begins with full buckets. Bytes stored are
measured (`stored_bytes.py`); between two rounds the sends that were accepted are added.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...auth.quota import USER, Quota, TokenBucket
from ...front.service import Kind
from ...proto import paths, v2
from ...proto.errors import WireError
from .stored_bytes import StoredBytes

if TYPE_CHECKING:
    import asyncio
    from asyncio import Future
    from collections.abc import Callable, Iterable, Mapping

    from ...front.context import RequestContext
    from ...front.service import Method, Outbound, Session
    from ...store.queue.consume_queue import ConsumeQueue
    from ..metadata.tables import Metadata

# Users and topics with counts, about 500 bytes each. At the limit the idle ones are dropped: they
# begin with full buckets again.
_METERS_MAX = 20_000
_POLLS = frozenset((paths.RECEIVE_MESSAGE, paths.PULL_MESSAGE))
_UNITS = {
    "messages": "messages a second",
    "bytes": "bytes a second",
    "connections": "connected clients",
    "polls": "waiting receives",
    "stored": "bytes stored",
}
#: Lines of the metric.
_SHOWN_MAX = 1_000


class _Meter:
    """What one user or topic uses."""

    __slots__ = ("_bytes", "_messages", "clients", "polls", "quota", "round", "stored", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.quota: Quota | None = None
        #: Telemetry streams by client id.
        self.clients: Counter[str] = Counter()
        self.polls = 0
        #: Bytes in the log at the end of a round of `StoredBytes`, and of what was accepted since.
        self.stored = 0
        #: Number of that round; -1: not known.
        self.round = -1
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None

    def apply(self, quota: Quota, now_ns: int) -> None:
        """Begin with the rates of a new or changed quota."""
        self.quota = quota
        self._messages = TokenBucket(quota.messages, now_ns) if quota.messages else None
        self._bytes = TokenBucket(quota.bytes, now_ns) if quota.bytes else None

    def refused_limit(self, now_ns: int) -> str:
        """Return the name of the limit of sends that is reached, or an empty text."""
        if self.quota is not None and 0 < self.quota.stored <= self.stored:
            return "stored"
        if self._messages is not None and not self._messages.admits(now_ns):
            return "messages"
        if self._bytes is not None and not self._bytes.admits(now_ns):
            return "bytes"
        return ""

    def take(self, messages: int, size: int) -> None:
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(size)
        self.stored += size

    def refusal(self, kind: str) -> WireError:
        limit = getattr(self.quota, kind)
        text = f"[QUOTA] {self.subject} is limited to {limit} {_UNITS[kind]}"
        if kind == "stored":
            text += f", and has {self.stored}: raise the quota, or let retention delete messages"
        return WireError(v2.TOO_MANY_REQUESTS, text)


class Quotas:
    """Enforces the quotas on one broker."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        steady_ns: Callable[[], int],
        refused: Counter[tuple[str, str]],
        loop: asyncio.AbstractEventLoop,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        authorize: bool,
    ) -> None:
        """`refused` counts refusals by subject's kind and limit: ("Topic", "messages"). Without
        `authorize` a user may send to all topics."""
        self._metadata = metadata
        self._steady_ns = steady_ns
        self._refused = refused
        self._authorize = authorize
        self._stored = StoredBytes(
            loop, queues, lambda topic: topic in metadata.topics, self._has_stored
        )
        self._user_of: Callable[[RequestContext], str] | None = None
        self._meters: dict[str, _Meter] = {}

    def identify(self, user_of: Callable[[RequestContext], str]) -> None:
        """Set the function that returns a call's user; without it users have no quotas."""
        self._user_of = user_of

    def charge(self, topic: str, messages: int, ctx: RequestContext) -> None:
        """Count a send of `messages` messages to `topic`; empty: unknown. Raises WireError.

        Called when its messages can be appended; the caller skips it while `Metadata.quotas` is
        empty.
        """
        meters = self._meters_of(ctx, (topic,) if topic else ())
        now_ns = self._steady_ns()
        for meter in meters:
            if meter.quota is not None and meter.quota.stored:
                self._measure(meter)
        for meter in meters:
            kind = meter.refused_limit(now_ns)
            if kind:
                raise self._refusal(meter, kind)
        for meter in meters:
            meter.take(messages, ctx.request_bytes)

    def close(self) -> None:
        """Measure no more."""
        self._stored.close()

    def stored(self) -> list[tuple[str, int]]:
        """Return the bytes stored of the first subjects with a quota of their own."""
        of_own = (each.subject for each in self._metadata.quotas.values() if each.stored)
        named = [subject for subject in of_own if not subject.endswith(":*")]
        if named:
            self._stored.start()
        return [(subject, self._stored_of(subject)) for subject in sorted(named)[:_SHOWN_MAX]]

    def _measure(self, meter: _Meter) -> None:
        """Take the result of the last round, once. Here, because the end of a round would hold the
        event loop with thousands of meters."""
        self._stored.start()
        if meter.round != self._stored.rounds:
            meter.round = self._stored.rounds
            meter.stored = self._stored_of(meter.subject)

    def _has_stored(self) -> bool:
        return any(each.stored for each in self._metadata.quotas.values())

    def _stored_of(self, subject: str) -> int:
        kind, _, name = subject.partition(":")
        if kind != USER:
            return self._stored.of_topic(name)
        user = self._metadata.users.get(name) if self._authorize else None
        return self._stored.of_user(user)

    def watching(self, method: Method) -> Method:
        """Return a method that receives messages or opens Telemetry with its limits."""
        if method.path in _POLLS:
            return replace(method, handler=partial(self._poll, method))
        if method.kind is Kind.BIDI:
            return replace(method, handler=partial(self._open_session, method))
        return method

    def _poll(self, method: Method, request: Any, ctx: RequestContext) -> Any:
        answer = method.handler(request, ctx)
        if not self._metadata.quotas or isinstance(answer, list) or answer.done():
            return answer
        meters = self._meters_of(ctx, (request.message_queue.topic.name,))
        for meter in meters:
            if meter.quota is not None and 0 < meter.quota.polls <= meter.polls:
                answer.cancel()  # as if the client had cancelled the call
                raise self._refusal(meter, "polls")
        for meter in meters:
            meter.polls += 1
        answer.add_done_callback(partial(_poll_ended, meters))
        return answer

    def _open_session(self, method: Method, ctx: RequestContext, outbound: Outbound) -> Session:
        session: Session = method.handler(ctx, outbound)
        return _CountedSession(self, session, ctx) if self._metadata.quotas else session

    def connect(self, topics: Iterable[str], ctx: RequestContext) -> list[_Meter]:
        """Count a client; return where. Raises WireError."""
        meters = self._meters_of(ctx, topics)
        for meter in meters:
            limit = meter.quota.connections if meter.quota is not None else 0
            if limit and ctx.client_id not in meter.clients and len(meter.clients) >= limit:
                raise self._refusal(meter, "connections")
        for meter in meters:
            meter.clients[ctx.client_id] += 1
        return meters

    def _refusal(self, meter: _Meter, kind: str) -> WireError:
        self._refused[meter.subject.partition(":")[0], kind] += 1
        return meter.refusal(kind)

    def _meters_of(self, ctx: RequestContext, topics: Iterable[str]) -> list[_Meter]:
        """Return the meters of the call's user and topics that have a quota."""
        quotas = self._metadata.quotas
        found = []
        user = self._user_of(ctx) if self._user_of is not None else ""
        if user:
            subject = f"{USER}:{user}"
            quota = quotas.get(subject) or quotas.get("User:*")
            if quota is not None:
                found.append(self._meter(subject, quota))
        for topic in topics:
            subject = f"Topic:{topic}"
            quota = quotas.get(subject)
            if quota is None and topic in self._metadata.topics:
                quota = quotas.get("Topic:*")
            if quota is not None:
                found.append(self._meter(subject, quota))
        return found

    def _meter(self, subject: str, quota: Quota) -> _Meter:
        meter = self._meters.get(subject)
        if meter is None:
            if len(self._meters) >= _METERS_MAX:
                self._meters = {
                    name: each for name, each in self._meters.items() if each.clients or each.polls
                }
            meter = self._meters[subject] = _Meter(subject)
        if meter.quota is not quota:
            meter.apply(quota, self._steady_ns())
        return meter


class _CountedSession:
    """A Telemetry session whose client counts from its settings to its end."""

    __slots__ = ("_ctx", "_meters", "_quotas", "_session")

    def __init__(self, quotas: Quotas, session: Session, ctx: RequestContext) -> None:
        self._quotas = quotas
        self._session = session
        self._ctx = ctx
        self._meters: list[_Meter] | None = None

    def receive(self, message: Any) -> Future[Any] | None:
        """Count the client with its first settings. Raises WireError, which ends the stream."""
        if self._meters is None and message.HasField("settings"):
            self._meters = self._quotas.connect(_topics(message.settings), self._ctx)
        return self._session.receive(message)

    def close(self, reason: str) -> Future[Any] | None:
        """Close the session."""
        client_id = self._ctx.client_id
        for meter in self._meters or ():
            meter.clients[client_id] -= 1
            if meter.clients[client_id] <= 0:
                del meter.clients[client_id]
        self._meters = []
        return self._session.close(reason)


def _topics(settings: v2.Settings) -> set[str]:
    """Return the topics that a client publishes or subscribes to."""
    named = [*settings.publishing.topics]
    named += [each.topic for each in settings.subscription.subscriptions]
    return {topic.name for topic in named}


def _poll_ended(meters: list[_Meter], _answer: Future[Any]) -> None:
    for meter in meters:
        meter.polls -= 1
