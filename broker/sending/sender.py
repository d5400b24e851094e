"""SendMessage: who may send, and the append of a turn's requests.

Promises: `send` never waits; accepted requests are appended in the order of arrival, by one append
per slice of the queue (`send_queue.py`) or a few. Several messages of a request get one entry
each, in their order; an answer that fails as a whole has no entries (docs/formats/grpc-api.md,
sections 5.5 and 10.2). Records of the broker itself are appended after the requests that are
already collected. The age of collected requests is bounded; above the bound, and at a quota, the
answer is TOO_MANY_REQUESTS with the name of the guard.

Refusals, holds and quotas are decided here, before records are made. `crate_planner.py` then
appends common requests, if the native crate is installed and messages are not deduplicated;
`python_planner.py` appends the others. `settlement.py` answers.
docs/design/a-send.md follows a send through the files.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from ...proto import paths, v1, v2
from ...proto.errors import WireError
from ...proto.native import Native
from ...store.format.errors import StoreError
from ...store.format.record import Message
from ...store.format.results import AppendResult, PutStatus
from ..messages.validation import require_client_id
from .answer import FAILURES, TOO_OLD, failure_status, refused_answer
from .crate_planner import ClassicFormat, CratePlanner
from .dedup import SendDedup
from .grpc_records import GrpcRecords, TypeHandler
from .grpc_send import GrpcRow, GrpcSend, OnceSend, SendRequest
from .held_sends import HeldSends
from .planner import Batch, Planner
from .python_planner import PythonPlanner
from .send import Send, packed_host
from .send_queue import SendQueue
from .settlement import Settlement
from .topic_template import Origin, TopicTemplates

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...front.service import ClientRun, Together
    from ...store.message_store import MessageStore
    from ..access.quotas import Quotas
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.auto_topics import AutoTopics
    from ..metadata.tables import Metadata
    from ..trace.service import TraceService
    from ..trace.spans import Spans
    from ..visible.dispatch_pump import DispatchPump
    from ..visible.durability import DurabilityGate

# After a promotion held requests arrive while other parts are still starting: for this long the age
# of a collected request does not count.
_SETTLING_NS = 5_000_000_000

_PUT_OK = PutStatus.PUT_OK

Hold: TypeAlias = "Callable[[str, Any, RequestContext], Coroutine[Any, Any, Any]]"


class Sender:
    """Appends requests of clients and the broker's own records to the log.

    It is the `front.service.TurnHandler` of SendMessage, too.
    """

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
        self._store = store
        self._metadata = metadata
        self._leadership = leadership
        self._pump = pump
        self._quotas = quotas
        self._spans = spans
        self._origin = Origin(
            config.region_id,
            config.broker_cluster_name,
            store.config.max_message_size,
            packed_host(f"{config.broker_ip1}:{config.grpc_server_port}"),
        )
        self._busy_ns = store.config.os_page_cache_busy_time_out_mills * 1_000_000
        #: The last append was too slow: requests collected meanwhile are refused.
        self._busy = False
        self._hold: Hold | None = None
        self._together: Together = nullcontext
        self._held = HeldSends(runtime.loop)
        #: Steady time from which the age of collected requests counts.
        self._settled_ns = 0
        self._wait_ns = config.wait_time_mills_in_send_queue * 1_000_000
        self._fast_failure = config.broker_fast_failure_enable
        self._dedup = SendDedup(config, self._clock, store, metadata)
        #: Not only of what is to be stored once.
        self._dedups = config.message_deduplication_enable
        self._settlement = Settlement(runtime.counters, durability)
        self._queue = SendQueue(
            runtime=runtime,
            durability=durability,
            append=self._append_slice,
            count=self._count,
            counted=self._settlement.counted,
        )
        templates = TopicTemplates(metadata)
        self.records = GrpcRecords(
            auto_topics=auto_topics,
            templates=templates,
            origin=self._origin,
            max_delay_ms=config.max_delay_time_mills,
            wall_ms=self._clock.wall_ms,
        )
        self._python = PythonPlanner(
            store=store,
            counters=runtime.counters,
            settlement=self._settlement,
            dedup=self._dedup,
            dedups=self._dedups,
            trace=trace,
            spans=spans,
        )
        self._native = self._crate_planner(native, runtime, templates, trace)
        both = (self._native, self._python)
        self._planners: list[Planner] = [planner for planner in both if planner is not None]

    def _crate_planner(
        self,
        native: Native | None,
        runtime: Runtime,
        templates: TopicTemplates,
        trace: TraceService | None,
    ) -> CratePlanner | None:
        # Deduplication reads the ids of all messages.
        if native is None or self._dedups or not self._store.writer.takes_encoded:
            return None
        return CratePlanner(
            native,
            runtime=runtime,
            store=self._store,
            metadata=self._metadata,
            origin=self._origin,
            templates=templates,
            trace=trace,
        )

    def set_wait(self, limit_ms: int) -> None:
        """Refuse requests that have waited longer than this (`waitTimeMillsInSendQueue`)."""
        self._wait_ns = limit_ms * 1_000_000

    def register(self, message_type: int, handler: TypeHandler) -> None:
        """Let `handler` make the records of all messages of a type."""
        self.records.handlers[message_type] = handler

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
        self._dedup.lead()

    def close(self) -> None:
        """Cancel the held requests."""
        self._held.close()

    def send(self, request: v2.SendMessageRequest | SendRequest, ctx: RequestContext) -> Send:
        """Handle SendMessage. Raises WireError; later errors are in the answer."""
        require_client_id(ctx)
        return self.add(GrpcSend(request, ctx, self.records))

    __call__ = send

    async def send_once(
        self, request: v1.SendOnceRequest, ctx: RequestContext
    ) -> v1.SendOnceResponse:
        """Handle SendOnce. Raises WireError."""
        message = request.message
        self._pump.catch_up()
        if self._dedup.has_stored(message.topic.name, message.system_properties.message_id):
            return v1.SendOnceResponse(code=v2.OK, message="OK", repeated=True)
        send = OnceSend(message, ctx, self.records, self._dedup)
        status = v2.SendMessageResponse.FromString(await self.add(send)).status
        return v1.SendOnceResponse(
            code=status.code, message=status.message, repeated=send.is_repeated
        )

    def add(self, send: Send) -> Send:
        """Append a request in this turn of the loop; return it, as the future of its answer.
        Raises WireError."""
        self._queue.add(send)
        return send

    def take(
        self,
        requests: Sequence[bytes],
        clients: Sequence[ClientRun],
        may_send: Callable[[str], bool] | None = None,
    ) -> GrpcRow | None:
        """Append the first requests of a turn, up to one that is not common, without a future for
        each; see `TurnHandler`. `requests` come from the native door. `may_send` tells whether all
        clients may send to a topic.

        None if there is none, or if requests must wait, be refused, be counted by a quota, or may
        have spans: then `send` decides about each of them.
        """
        begin_ns = self._clock.steady_ns()
        native = self._native
        if (
            native is None
            or self._metadata.quotas
            or self._spans is not None
            or not self._queue.has_room(len(requests))
            or self._busy
            or self._append_refusal() is not None
        ):
            return None
        row = GrpcRow(requests, clients, may_send, self._settlement)
        while row.count < len(row):
            try:
                plan = native.plan(row, row.count)
            except Exception:  # a bug
                if not row.count:
                    raise
                break  # what is stored is answered; `send` meets the error again for the others
            if plan is None or not plan.records:
                break
            self._note_busy(begin_ns)
            row.add(plan)
        if not row.count:
            return None
        self._pump.appended()
        return row

    def accept_frames(self, classic: ClassicFormat) -> None:
        """Let the crate plan the frames of classic clients."""
        if self._native is not None:
            self._native.accept_frames(classic)

    def frame_target(self, frame: bytes) -> tuple[str, int] | None:
        """Return topic and opaque of a classic client's send that the crate accepts, as far as
        that is known before the append; else None."""
        if self._native is None or self._metadata.quotas or self._spans is not None:
            return None
        return self._native.frame_target(frame)

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
        """Let a message with this id be stored again: it was recalled, or rolled back."""
        self._dedup.forget(topic, message_id)

    def removed(self, topic: str | None, _group: str | None) -> None:
        """A topic or group was deleted."""
        if topic is not None:
            self._dedup.forget_topic(topic)

    def append_pending(self) -> None:
        """Check and append the collected requests, and answer them or wait for durability."""
        self._queue.append_all()

    def _count(self, send: Send) -> int:
        """Return the number of messages of a request."""
        if self._native is not None and send.raw is not None and not send.is_frame:
            return self._native.count_messages(send.raw)
        return send.count

    def _append_slice(self, sends: list[Send]) -> None:
        begin_ns = self._clock.steady_ns()
        refusal = self._send_refusal(begin_ns)
        self._busy = False
        with self._together():
            if refusal is not None:
                self._refuse(sends, refusal)
                return
            end = self._store.log_end
            self._append(Batch(self._within_quotas(sends), self._spans))
        if self._store.log_end != end:
            self._note_busy(begin_ns)
            self._pump.appended()

    def _refuse(self, sends: list[Send], refusal: WireError) -> None:
        """Refuse all valid requests, or hold those that another replica may accept."""
        if self._hold is None or not self._leadership.writes_elsewhere():
            for send, _ in self._python.made(sends):
                self._settlement.fail(send, refusal)
            return
        self._leadership.pause()
        for send in sends:
            if send.held is None:
                send.resolve(refused_answer(refusal))
            else:
                self._held.add(self._hold(paths.SEND_MESSAGE, send.held, send.ctx), send)

    def _within_quotas(self, sends: list[Send]) -> list[Send]:
        """Return the requests that the quotas allow; answer the others."""
        # Not earlier: a held request comes here again, and a refused one takes nothing.
        if not self._metadata.quotas:
            return sends
        allowed = []
        for send in sends:
            try:
                if send.is_readable():
                    self._quotas.charge(send.topic, send.count, send.ctx)
                    allowed.append(send)
            except Exception as error:
                self._settlement.fail(send, error)
        return allowed

    def _append(self, batch: Batch) -> None:
        """Append the requests that the crate accepts there, the others in between in Python."""
        at = 0
        while at < len(batch.sends):
            until = len(batch.sends)
            for planner in self._planners:
                if at < until:
                    appended = planner.append(batch, at, until)
                    at, until = appended.at, appended.until
                    self._settlement.settle(appended)

    def _note_busy(self, begin_ns: int) -> None:
        """Note whether an append was too slow."""
        self._busy = self._clock.steady_ns() - begin_ns >= self._busy_ns

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
