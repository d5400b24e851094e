"""SendMessage: checks, choice of the queue, and the append of a turn's requests.

Promises: `send` never waits; accepted requests are appended in the order of arrival, by one
`append_many` per slice of the queue (`send_queue.py`). Several messages of a request get one entry
each, in their order; an answer that fails as a whole has no entries (docs/formats/grpc-api.md,
sections 5.5 and 10.2). Records of the broker itself are appended after the requests that are
already collected. The age of collected requests is bounded; above the bound, and at a quota, the
answer is TOO_MANY_REQUESTS with the name of the guard.

`native_path.py` appends common requests with the native crate, if it is installed and neither
deduplication nor tracing nor a quota needs the decoded messages. Otherwise
`checked_path.py` makes the records of a request. `settlement.py` counts the requests and answers
them. `dedup.py` removes duplicates, `held_sends.py` keeps requests that another replica may accept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from ...front.reply_future import ReplyFuture
from ...proto import paths, v2
from ...proto.errors import RpcFailure, WireError
from ...proto.native import Native
from ...store.format.errors import StoreError
from ...store.format.record import Message, pack_host
from ...store.format.results import AppendResult, PutStatus
from ..messages.validation import (
    check_messages,
    check_total,
    has_client_id,
    require_client_id,
)
from .answer import FAILURES, TOO_OLD, failed_answer, failure_status, refused_answer
from .checked_path import SendContext, TypeHandler, prepare_checked, writable_topic
from .dedup import SendDedup
from .held_sends import HeldSends
from .late_send import LateSend
from .native_path import ClassicFormat, NativePath, PeerRun, Plan
from .send import Prepared
from .send_queue import Pending, Request, SendQueue
from .send_request import SendRequest
from .settlement import Batch, Settlement, resolve
from .taken_sends import TakenSends
from .topic_template import Origin, TopicTemplate

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...front.service import ClientRun, Together
    from ...store.message_store import MessageStore
    from ..access.quotas import Quotas
    from ..admin.auto_topics import AutoTopics
    from ..dispatch_pump import DispatchPump
    from ..leadership import Leadership
    from ..metadata.tables import Metadata, Topic
    from ..runtime import Runtime
    from ..trace.service import TraceService
    from ..trace.spans import Spans
    from .durability import DurabilityGate

logger = logging.getLogger(__name__)

# After a promotion held requests arrive while other parts are still starting: for this long the age
# of a collected request does not count.
_SETTLING_NS = 5_000_000_000
_TEMPLATES_SPARE = 1_000
_UNKNOWN_HOST = "0.0.0.0"

_PUT_OK = PutStatus.PUT_OK

Hold: TypeAlias = "Callable[[str, Any, RequestContext], Coroutine[Any, Any, Any]]"


class Sender:
    """Appends SendMessage requests and the broker's own records to the log."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        leadership: Leadership,
        pump: DispatchPump,
        durability: DurabilityGate,
        auto_topics: AutoTopics,
        quotas: Quotas,
        trace: TraceService | None,
        spans: Spans | None = None,
        native: Native | None = None,
    ) -> None:
        config = runtime.config
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._store = store
        self._metadata = metadata
        self._leadership = leadership
        self._pump = pump
        self._auto_topics = auto_topics
        self._quotas = quotas
        self._trace = trace
        self._spans = spans
        self._max_delay_ms = config.max_delay_time_mills
        self._origin = Origin(
            config.region_id,
            config.broker_cluster_name,
            store.config.max_message_size,
            _packed(f"{config.broker_ip1}:{config.grpc_server_port}"),
        )
        self._busy_ns = store.config.os_page_cache_busy_time_out_mills * 1_000_000
        #: The last append was too slow: requests collected meanwhile are refused.
        self._busy = False
        self._templates: dict[str, TopicTemplate] = {}
        self._hold: Hold | None = None
        self._together: Together = nullcontext
        self._held = HeldSends(runtime.loop)
        #: Steady time from which the age of collected requests counts.
        self._settled_ns = 0
        self._handlers: dict[int, TypeHandler] = {}
        self._wait_ns = config.wait_time_mills_in_send_queue * 1_000_000
        self._fast_failure = config.broker_fast_failure_enable
        self._dedup = (
            SendDedup(config, self._clock, store) if config.message_deduplication_enable else None
        )
        self._settlement = Settlement(
            store=store,
            counters=runtime.counters,
            durability=durability,
            dedup=self._dedup,
            trace=trace,
        )
        self._queue = SendQueue(
            runtime=runtime,
            durability=durability,
            append=self._append_slice,
            count=self._count,
            counted=self._settlement.counted,
        )
        self._native = self._native_path(native)

    def set_wait(self, limit_ms: int) -> None:
        """Refuse requests that have waited longer than this (`waitTimeMillsInSendQueue`)."""
        self._wait_ns = limit_ms * 1_000_000

    def _native_path(self, native: Native | None) -> NativePath | None:
        """Return the native path, unless a feature reads the decoded messages of every request."""
        reads = (self._trace, self._spans, self._dedup)
        if (
            native is None
            or any(part is not None for part in reads)
            or not self._store.writer.takes_encoded
        ):
            return None
        return NativePath(
            native,
            store=self._store,
            metadata=self._metadata,
            counters=self._counters,
            origin=self._origin,
            template_of=self._template,
            wall_ms=self._clock.wall_ms,
        )

    def register(self, message_type: int, handler: TypeHandler) -> None:
        """Let `handler` make the records of all messages of a type."""
        self._handlers[message_type] = handler

    def connect(self, hold: Hold, *, linger: bool, together: Together) -> None:
        """Connect the front door: requests this replica cannot accept go to `hold`.

        `linger` is False if the door delivers requests in batches; `together` is `Door.together`.
        """
        self._hold = hold
        self._queue.lingers = linger
        self._together = together

    @property
    def takes_bytes(self) -> bool:
        """Return whether requests are best passed undecoded (`SendRequest`)."""
        return self._native is not None

    @property
    def store_host(self) -> bytes:
        """The address that every record carries: packed host and port."""
        return self._origin.store_host

    def set_store_host(self, packed: bytes) -> None:
        """Set the address again, once the operating system has chosen the port."""
        self._origin.store_host = packed

    def lead(self) -> None:
        """Start to lead: duplicates of earlier messages are found through the log only."""
        self._settled_ns = self._clock.steady_ns() + _SETTLING_NS
        if self._dedup is not None:
            self._dedup.lead()

    def close(self) -> None:
        """Cancel the held requests."""
        self._held.close()

    def send(
        self, request: v2.SendMessageRequest | SendRequest, ctx: RequestContext
    ) -> ReplyFuture:
        """Handle SendMessage. Raises WireError; later errors are in the answer."""
        require_client_id(ctx)
        return self._queue.add(request, ctx)

    def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> TakenSends | None:
        """Append the first requests of a turn, up to one that is not common, without a future for
        each; see `TurnHandler`. `requests` come from the native door.

        None if there is none, or if requests must wait, be refused, or be counted by a quota: then
        `send` decides about each of them.
        """
        begin_ns = self._clock.steady_ns()
        native = self._native
        if (
            native is None
            or self._metadata.quotas
            or not self._queue.has_room(len(requests))
            or self._busy
            or self._append_refusal() is not None
        ):
            return None
        peers = _peer_runs(clients)
        count = sum(run for _, _, run in peers)
        answers: list[bytes] = []
        while len(answers) < count:
            append = partial(native.append_row, requests, peers, len(answers))
            try:
                plan = self._append_plan(append, begin_ns)
            except Exception:  # a bug
                if not answers:
                    raise
                break  # what is stored is answered; `send` meets the error again for the others
            if plan is None or not plan.records:
                break
            answers += plan.answers
        if not answers:
            return None
        self._pump.appended()
        return TakenSends(answers, self._store.log_end, self._settlement)

    def send_prepared(self, ready: Prepared, ctx: RequestContext) -> ReplyFuture:
        """Append the records that another protocol made of a client's request, as `send` does.

        The answer is an encoded SendMessageResponse; `on_stored` of the extras gets the positions.
        Not for messages that another replica may accept: they are refused, not held. Duplicates
        are not removed. Raises WireError.
        """
        return self._queue.add(ready, ctx)

    def accept_frames(self, classic: ClassicFormat) -> None:
        """Let the native path append the frames of classic clients."""
        if self._native is not None:
            self._native.accept_frames(classic)

    def frame_target(self, frame: bytes) -> tuple[str, int] | None:
        """Return topic and opaque of a classic client's send that the native path accepts, as far
        as that is known before the append; else None."""
        if self._native is None or self._metadata.quotas:
            return None
        return self._native.frame_target(frame)

    def send_late(self, request: LateSend, ctx: RequestContext) -> None:
        """Append a message as `send_prepared` does, by the native path if that is possible. The
        request gets its answer. Raises WireError."""
        self._queue.add(request, ctx, request)

    def topic_to_send(self, name: str, template_queues: int = 0) -> Topic:
        """Return the topic, created if that is allowed, if it accepts messages. Raises WireError.

        `name` is a legal topic name; `template_queues`: see `AutoTopics.topic_or_new`.
        """
        return writable_topic(self._auto_topics.topic_or_new(name, template_queues), name)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for the next append."""
        return len(self._queue)

    @property
    def lingers(self) -> bool:
        """Whether appends linger under load."""
        return self._queue.lingers

    def append(self, message: Message) -> AppendResult:
        """Append one record of the broker itself; see `InternalAppender`."""
        return self.append_internal([message])[0]

    def append_internal(self, messages: list[Message]) -> list[AppendResult]:
        """Append records of the broker itself; see `InternalAppender`."""
        self._queue.append_all()
        if not messages:
            return []
        refusal = self._append_refusal()
        if refusal is not None:
            raise refusal
        try:
            results = self._store.writer.append_many(messages)
        except (StoreError, OSError) as error:
            raise WireError(v2.INTERNAL_SERVER_ERROR, str(error)) from error
        if all(result.status is not _PUT_OK for result in results):
            raise WireError(*failure_status(self._store, results[0].status))
        self._pump.appended()
        return results

    def forget(self, topic: str, message_id: str) -> None:
        """Let a message with this id be stored again: it was recalled."""
        if self._dedup is not None:
            self._dedup.forget(topic, message_id)

    def append_pending(self) -> None:
        """Check and append the collected requests, and answer them or wait for durability."""
        self._queue.append_all()

    def _count(self, request: Request) -> int:
        if self._native is not None and isinstance(request, SendRequest):
            return self._native.count_messages(request)
        return _number_of(request)

    def _append_slice(self, pending: list[Pending]) -> None:
        begin_ns = self._clock.steady_ns()
        refusal = self._send_refusal(begin_ns)
        self._busy = False
        with self._together():
            if self._native is not None and refusal is None and not self._metadata.quotas:
                appended = self._append_native(self._native, pending, begin_ns)
            else:
                appended = self._append_checked(pending, refusal, begin_ns)
        if appended:
            self._pump.appended()

    def _append_native(self, native: NativePath, pending: list[Pending], begin_ns: int) -> bool:
        """Append the requests that the native path accepts there, the others in between; return
        whether anything was tried."""
        requests = [
            (
                request.raw if isinstance(request, (SendRequest, LateSend)) else None,
                *_peer(ctx.peer),
                isinstance(request, LateSend),
            )
            for request, ctx, _ in pending
        ]
        settle = self._settlement.settle_native
        appended = False
        at = 0
        while at < len(pending):
            plan = self._append_plan(partial(native.append, requests, at), begin_ns)
            if plan is None:
                return self._append_checked(pending[at:], None, begin_ns) or appended
            if plan.records:
                appended = True
                for (_, _, answer), content, end in zip(
                    pending[at:], plan.answers, plan.ends, strict=False
                ):
                    settle(answer, content, end)
            at += len(plan.ends)
            if at < plan.resume:
                appended |= self._append_checked(pending[at : plan.resume], None, begin_ns)
                at = plan.resume
        return appended

    def _append_plan(self, append: Callable[[], Plan | None], begin_ns: int) -> Plan | None:
        """Append by the native path, and meter it; the turn's append began at `begin_ns`."""
        store = self._store
        begin, from_ns = store.log_end, self._clock.steady_ns()
        plan = append()
        if plan is not None and plan.records:
            now_ns = self._note_busy(begin_ns)
            store.meter.put(plan.records, 0, store.log_end - begin, now_ns - from_ns)
        return plan

    def _note_busy(self, begin_ns: int) -> int:
        """Note whether an append was too slow; return the steady time."""
        now_ns = self._clock.steady_ns()
        self._busy = now_ns - begin_ns >= self._busy_ns
        return now_ns

    def _append_checked(
        self, pending: list[Pending], refusal: WireError | None, begin_ns: int
    ) -> bool:
        """Check and append requests in Python; return whether anything was tried.

        `refusal` is the error for all valid ones.
        """
        batches = self._checked(pending, refusal)
        if not batches:
            return False
        everything = [message for _, ready in batches for message in ready.messages]
        try:
            results = self._store.writer.append_many(everything)
        except (StoreError, OSError) as error:
            logger.error("send.append_failed messages=%d error=%s", len(everything), error)
            self._settlement.fail(batches, failed_answer(v2.INTERNAL_SERVER_ERROR, str(error)))
            return False
        self._note_busy(begin_ns)
        self._settlement.settle(batches, results)
        return True

    def _checked(self, pending: list[Pending], refusal: WireError | None) -> list[Batch]:
        """Return the requests that may be appended; answer or hold the others."""
        if refusal is not None and self._hold is not None and self._leadership.writes_elsewhere():
            self._leadership.pause()
            for request, ctx, answer in pending:
                if isinstance(request, (Prepared, LateSend)):
                    resolve(answer, refused_answer(refusal))
                else:
                    self._held.add(self._hold(paths.SEND_MESSAGE, request, ctx), answer)
            return []
        now_ms = self._clock.wall_ms()
        batches = []
        # Not earlier: a held request comes here again, and a refused one takes nothing.
        counted = refusal is None and bool(self._metadata.quotas)
        for request, ctx, answer in pending:
            if isinstance(request, SendRequest) and not _is_decoded(request, answer):
                continue
            try:
                ready = self._ready(request, ctx, now_ms, counted=counted)
            except WireError as error:
                self._settlement.refuse(answer, error)
            except Exception as error:  # a bug: the front door logs its position
                if not answer.done():
                    answer.set_exception(error)
            else:
                if refusal is None:
                    if self._spans is not None:
                        ready.spans = self._spans.arrived(ready, ctx.begin_ns)
                    if self._dedup is not None and ready is not request:
                        self._dedup.reserve(ready)
                    batches.append((answer, ready))
                else:
                    self._settlement.refuse(answer, refusal)
        return batches

    def _ready(
        self, request: Request, ctx: RequestContext, now_ms: int, *, counted: bool
    ) -> Prepared:
        """Return the records of one request; `counted`: it takes from the quotas. Raises
        WireError."""
        if counted:
            self._quotas.charge(_topic_of(request), _number_of(request), ctx)
        if isinstance(request, Prepared):
            return request
        if isinstance(request, LateSend):
            return request.prepared()
        return self._prepared(request.messages, ctx, now_ms)

    def _prepared(self, sent: Sequence[v2.Message], ctx: RequestContext, now_ms: int) -> Prepared:
        """Return the records of one request. Raises WireError."""
        peer = _peer(ctx.peer)
        max_body = self._origin.max_body
        if ctx.request_bytes > max_body and len(sent) > 1:
            check_total(sent, max_body)
        drafts = check_messages(sent, now_ms, max_body, self._max_delay_ms)
        name = sent[0].topic.name
        topic = self.topic_to_send(name)
        context = SendContext(ctx, peer, now_ms)
        template = self._template(topic)
        return prepare_checked(drafts, template, self._origin, self._handlers, context=context)

    def _template(self, topic: Topic) -> TopicTemplate:
        template = self._templates.get(topic.name)
        if template is None or template.topic is not topic:
            if len(self._templates) > _TEMPLATES_SPARE + 2 * len(self._metadata.topics):
                self._templates.clear()  # most belong to deleted topics
            turn = 0 if template is None else template.turn
            template = TopicTemplate(topic, turn)
            self._templates[topic.name] = template
        return template

    def _send_refusal(self, now_ns: int) -> WireError | None:
        """Return the error for all requests of this turn, or None if they may be appended."""
        if self._fast_failure and now_ns >= self._settled_ns:
            if self._busy:
                return WireError(*FAILURES[PutStatus.OS_PAGE_CACHE_BUSY])
            if now_ns - self._queue.since_ns > self._wait_ns:
                return WireError(v2.TOO_MANY_REQUESTS, TOO_OLD)
        return self._append_refusal()

    def _append_refusal(self) -> WireError | None:
        """Return the error for every append, the broker's own records included, or None."""
        if not self._leadership.is_leader:
            # The access point holds or forwards; a forwarded call that arrives here is refused.
            return WireError(v2.HA_NOT_AVAILABLE, "this replica follows: its leader takes writes")
        if not self._store.writable:
            return WireError(v2.INTERNAL_SERVER_ERROR, self._store.refusal)
        refusal = self._leadership.write_refusal()
        return WireError(v2.HA_NOT_AVAILABLE, refusal) if refusal is not None else None


def _peer_runs(clients: Sequence[ClientRun]) -> list[PeerRun]:
    """Return the first clients for the native path, up to one without an id."""
    known = takewhile(lambda run: has_client_id(run[0]), clients)
    return [(*_peer(ctx.peer), count) for ctx, count in known]


def _number_of(request: Request) -> int:
    """Return the number of messages."""
    return 1 if isinstance(request, LateSend) else len(request.messages)


def _topic_of(request: Request) -> str:
    """Return the topic that quotas count; empty for a request without messages."""
    if isinstance(request, (Prepared, LateSend)):
        return request.topic
    return request.messages[0].topic.name if request.messages else ""


def _is_decoded(request: SendRequest, answer: ReplyFuture) -> bool:
    """Decode a request; if that fails, so does its answer, as for a method that the front door
    decodes."""
    try:
        _ = request.messages
    except (RpcFailure, WireError) as error:
        if not answer.done():
            answer.set_exception(error.with_traceback(None))
        return False
    return True


@lru_cache(maxsize=4096)
def _packed(address: str) -> bytes:
    """Return a peer's address as records hold it; 0.0.0.0 for anything but an IP address."""
    host, _, port = address.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (OSError, ValueError):
        return pack_host(_UNKNOWN_HOST, 0)


@lru_cache(maxsize=4096)
def _peer(address: str) -> tuple[str, bytes]:
    """Return a peer's host as text, and its address as records hold it."""
    return address.rpartition(":")[0] or _UNKNOWN_HOST, _packed(address)
