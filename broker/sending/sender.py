"""SendMessage: checks, queue choice, and one append for everything that was collected.

Promises: a plain function that never waits; what it accepts is appended in the order in which it
came, by one `append_many` a loop turn, or every one to two milliseconds while many send at once through
a door that hands requests over one by one (decision 2);
several messages of a request get one entry each, in their order, and an answer that fails as a whole
has no entries (gRPC API, sections 5.5 and 10.2). An OK answer means what the durability table says
(design, section 4). Records of the broker itself come through here too, behind what was sent before.
What waits is bounded, in number, bytes and time: beyond it TOO_MANY_REQUESTS, with the guard's name.
Who does what: `fast_path.py` and `checked_path.py` make records of a request, `answer.py` makes its
answer, `dedup.py` leaves out what was sent before, `held_sends.py` keeps what another replica may take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ...front.reply_future import ReplyFuture
from ...proto import paths, v2
from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.record import Message, pack_host
from ...store.format.results import AppendResult, PutStatus
from ..messages.validation import check_messages, check_topic, require_client_id
from .answer import BYTES_FULL, FAILURES, QUEUE_FULL, TOO_OLD, answer_to, failed, failure, refused
from .checked_path import Sending, SpecialType, prepare_typed, writable_topic
from .dedup import SendDedup
from .fast_path import Origin, Prepared, TopicTemplate, lane_of, prepare_plain
from .held_sends import HeldSends

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..metadata.tables import Topic
    from ..node import Node

log = logging.getLogger(__name__)

# Sends that were collected wait in memory; requests are bounded by the configuration, bytes by this.
PENDING_BYTES_MAX = 256 << 20
# Many senders: wait a moment for company instead of a loop turn. A request alone costs three times as
# much as one of five (the interpreter's code and data have left the caches in between), and while
# requests queue for the processor the moment is not felt. It begins when a turn brings three sends at
# once, which one or two senders never do, and ends when a millisecond brings no second one.
GATHER_FROM = 3
GATHER_ON = 2
GATHER_S = 0.001
# So many in a moment leave enough in flight for a longer one; four senders would only wait in it.
GATHER_LONG_FROM = 5
GATHER_LONG_S = 0.002
# So many are appended without waiting for the turn's end: when a leader is back, all that was held for it comes
# in one turn, and the first of them must not grow too old in it.
APPEND_AT = 1_000
# A new leader's first moments bring all that was held, and parts that begin: what waits then is not old.
_SETTLING_NS = 5_000_000_000
_LANES_SPARE = 1_000
_UNKNOWN_HOST = "0.0.0.0"

_PUT_OK = PutStatus.PUT_OK
_Pending: TypeAlias = "tuple[v2.SendMessageRequest, RequestContext, ReplyFuture]"


Hold: TypeAlias = "Callable[[str, v2.SendMessageRequest, RequestContext], Coroutine[Any, Any, Any]]"

_Batch: TypeAlias = "tuple[ReplyFuture, Prepared]"
"""One request whose messages are ready for the log."""


class Sender:
    """Takes SendMessage requests and the broker's own records to the log."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self._capacity = config.send_thread_pool_queue_capacity
        self.origin = Origin(
            config.region_id,
            config.broker_cluster_name,
            node.store.config.max_message_size,
            _packed(f"{config.broker_ip1}:{config.grpc_server_port}"),
        )
        self.gathers = True
        """Whether many senders wait for company; not behind a door that hands over in batches."""
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._gather_s = 0.0
        self._busy_ns = node.store.config.os_page_cache_busy_time_out_mills * 1_000_000
        self._busy = False
        """The last write hung: what was sent meanwhile is refused, so that it does not pile up."""
        self._lanes: dict[str, TopicTemplate] = {}
        self.hold: Hold | None = None
        """The access point's: keeps a request until somebody takes it."""
        self._held = HeldSends(node.loop)
        self._settled_ns = 0
        """From then on it counts how long a request waited."""
        self.types: dict[int, SpecialType] = {}
        """Message types whose messages another part makes records of; it enters itself here."""
        self._since_ns = 0
        """When the oldest of what is pending came."""
        self._wait_ns = config.wait_time_mills_in_send_queue * 1_000_000
        self._fast_failure = config.broker_fast_failure_enable
        self.repeats = SendDedup(node) if config.message_deduplication_enable else None
        """Knows what was sent before; opt-in."""

    @property
    def store_host(self) -> bytes:
        """Stored with every record; the server corrects it when the port was chosen by the OS."""
        return self.origin.store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self.origin.store_host = packed

    def lead(self) -> None:
        """This replica leads from now on: what was sent before, it knows from the log alone."""
        self._settled_ns = self._node.clock.steady_ns() + _SETTLING_NS
        if self.repeats is not None:
            self.repeats.lead()

    def close(self) -> None:
        """What is held for another leader is given up: its clients are."""
        self._held.close()

    def send(self, request: v2.SendMessageRequest, ctx: RequestContext) -> ReplyFuture:
        """Handler of SendMessage."""
        require_client_id(ctx)
        if len(self._pending) >= APPEND_AT:
            self.append_pending()
        pending = self._pending
        if len(pending) + len(self._node.durability) >= self._capacity:
            raise WireError(v2.TOO_MANY_REQUESTS, QUEUE_FULL)
        if self._pending_bytes >= PENDING_BYTES_MAX:
            raise WireError(v2.TOO_MANY_REQUESTS, BYTES_FULL)
        answer = ReplyFuture()
        if not pending:
            self._since_ns = self._node.clock.steady_ns()
            loop = self._node.loop
            if self._gather_s:
                loop.call_later(self._gather_s, self.append_pending)
            else:
                loop.call_soon(self.append_pending)
        pending.append((request, ctx, answer))
        self._pending_bytes += ctx.request_bytes
        return answer

    @property
    def waiting(self) -> int:
        """Requests that wait for the next append."""
        return len(self._pending)

    def append(self, message: Message) -> AppendResult:
        """Append one record of the broker itself, after what is pending. Raises WireError."""
        return self.append_internal([message])[0]

    def append_internal(self, messages: list[Message]) -> list[AppendResult]:
        """Append records of the broker itself, after what is pending; results in order.

        Raises WireError when the log takes none of them, and then nothing was written. A single
        message that the store refuses (too large) has a result that is not PUT_OK.
        """
        self.append_pending()
        if not messages:
            return []
        refusal = self._closed()
        if refusal is not None:
            raise refusal
        try:
            results = self._node.store.append_many(messages)
        except (StoreError, OSError) as error:
            raise WireError(v2.INTERNAL_SERVER_ERROR, str(error)) from error
        if all(result.status is not _PUT_OK for result in results):
            raise WireError(*failure(self._node.store, results[0].status))
        self._node.pump.appended()
        return results

    def append_pending(self) -> None:
        """Check and append what was collected, and answer or hand over to the durability gate."""
        pending = self._pending
        if not pending:
            return
        self._pending = []
        self._pending_bytes = 0
        if self.gathers:
            self._gather_s = next_gather_s(self._gather_s, len(pending))
        begin_ns = self._node.clock.steady_ns()
        batches = self._checked(pending, begin_ns)
        self._busy = False
        if not batches:
            return
        if len(batches) == 1:
            everything = batches[0][1].messages
        else:
            everything = [message for _, ready in batches for message in ready.messages]
        try:
            results = self._node.store.append_many(everything)
        except (StoreError, OSError) as error:
            log.error("send.append_failed messages=%d error=%s", len(everything), error)
            self._give_up(batches, failed(v2.INTERNAL_SERVER_ERROR, str(error)))
            return
        self._busy = self._node.clock.steady_ns() - begin_ns >= self._busy_ns
        at = 0
        repeats = []
        for answer, ready in batches:
            count = len(ready.messages)
            own = results[at : at + count]
            at += count
            if ready.claim is not None and self.repeats is not None:
                self.repeats.settle(ready.claim, own)
            if ready.specials is not None and not _noted(answer, ready, own):
                continue
            if ready.claim is not None and ready.claim.repeats:
                repeats.append((answer, ready))
                continue
            self._settle(answer, ready, own)
        for answer, ready in repeats:
            self._settle_repeated(answer, ready)
        self._node.pump.appended()

    def _checked(self, pending: list[_Pending], now_ns: int) -> list[_Batch]:
        """The requests that may be appended; the others' answers say why not."""
        refusal = self._refusal(now_ns)
        if (
            refusal is not None
            and self.hold is not None
            and self._node.leadership.writes_elsewhere()
        ):
            self._node.leadership.pause()
            for each in pending:
                self._pass_on(*each)
            return []
        now_ms = self._node.clock.wall_ms()
        batches = []
        for request, ctx, answer in pending:
            try:
                ready = self._prepared(request.messages, ctx, now_ms)
            except WireError as error:
                # Bytes, not the exception: it would hold this frame, and with it every request of
                # the turn, in a ring with the answer until the garbage collector comes.
                _resolve(answer, refused(error))
            except Exception as error:  # a bug: the door logs where it is
                if not answer.done():
                    answer.set_exception(error)
            else:
                if refusal is None:
                    if self.repeats is not None:
                        self.repeats.claim(ready, now_ms)
                    batches.append((answer, ready))
                else:
                    _resolve(answer, refused(refusal))
        return batches

    def _give_up(self, batches: list[_Batch], content: bytes) -> None:
        """Nothing was stored."""
        for answer, ready in batches:
            if ready.claim is not None and self.repeats is not None:
                self.repeats.forget(ready.claim)
            _resolve(answer, content)

    def _prepared(self, sent: Sequence[v2.Message], ctx: RequestContext, now_ms: int) -> Prepared:
        """The messages of one request; most take the short way. Raises WireError."""
        peer = _peer(ctx.peer)
        if sent:
            name = sent[0].topic.name
            check_topic(name)
            topic = self._node.metadata.topics.get(name)
            if topic is not None:
                lane = self._lane(topic)
                plain = prepare_plain(sent, lane, self.origin, peer, now_ms)
                if plain is not None:
                    return plain
        max_delay_ms = self._node.config.max_delay_time_mills
        drafts = check_messages(sent, now_ms, self.origin.max_body, max_delay_ms)
        name = sent[0].topic.name
        topic = writable_topic(self._node.auto_topics.topic_or_new(name), name)
        sending = Sending(ctx, peer, now_ms)
        return prepare_typed(drafts, self._lane(topic), self.origin, self.types, sender=sending)

    def _lane(self, topic: Topic) -> TopicTemplate:
        lane = self._lanes.get(topic.name)
        if lane is None or lane.topic is not topic:
            if len(self._lanes) > _LANES_SPARE + 2 * len(self._node.metadata.topics):
                self._lanes.clear()  # most are of topics that are gone
            lane = lane_of(topic, self.origin, 0 if lane is None else lane.turn)
            self._lanes[topic.name] = lane
        return lane

    def _refusal(self, now_ns: int) -> WireError | None:
        """Why no client's message may be appended now; before anything is written."""
        if self._fast_failure and now_ns >= self._settled_ns:
            if self._busy:
                return WireError(*FAILURES[PutStatus.OS_PAGE_CACHE_BUSY])
            if now_ns - self._since_ns > self._wait_ns:
                return WireError(v2.TOO_MANY_REQUESTS, TOO_OLD)
        return self._closed()

    def _closed(self) -> WireError | None:
        """Why the log takes nothing, the broker's own records included."""
        node = self._node
        if not node.leadership.is_leader:
            # The access point holds or forwards; a forwarded call that lands here is refused.
            return WireError(v2.HA_NOT_AVAILABLE, "this replica follows: its leader takes writes")
        if not node.store.writable:
            return WireError(v2.INTERNAL_SERVER_ERROR, node.store.refusal)
        refusal = node.leadership.write_refusal()
        return WireError(v2.HA_NOT_AVAILABLE, refusal) if refusal is not None else None

    def _pass_on(
        self, request: v2.SendMessageRequest, ctx: RequestContext, answer: ReplyFuture
    ) -> None:
        """Another node may take it, or this one in a moment: the access point finds out who."""
        assert self.hold is not None
        self._held.add(self.hold(paths.SEND_MESSAGE, request, ctx), answer)

    def _settle(self, answer: ReplyFuture, ready: Prepared, results: list[AppendResult]) -> None:
        node = self._node
        end = -1
        for result in results:
            if result.status is _PUT_OK:
                end = result.physical_offset + result.size
        if end >= 0:
            node.counters.add_sent(ready.topic, ready.message_type, len(results), ready.size)
            if node.trace is not None:
                node.trace.sent(ready, results)
        if end < 0 or node.durability.immediate:
            self._answer(answer, ready, results)
        else:
            node.durability.wait(end, partial(self._durable, answer, ready, results))

    def _settle_repeated(self, answer: ReplyFuture, ready: Prepared) -> None:
        """Answer a request of which something was sent before as it was answered then.

        It waits for the end of the log, after everybody else of the turn, because who waits for the
        log does so in its order.
        """
        claim = ready.claim
        assert claim is not None
        if claim.fresh:
            self._node.counters.add_sent(
                ready.topic, ready.message_type, len(claim.fresh), ready.size
            )
        self._node.counters.repeated += claim.repeats
        ready.specials = [sent.special for sent in claim.sent]
        results = [sent.result for sent in claim.sent if sent.result is not None]
        self._node.durability.wait(
            self._node.store.log_end, partial(self._durable, answer, ready, results)
        )
        # Nothing may have been appended: no flush and no replica's word would come.
        self._node.durability.advance()

    def _durable(
        self, answer: ReplyFuture, ready: Prepared, results: list[AppendResult], outcome: PutStatus
    ) -> None:
        if outcome is _PUT_OK:
            self._answer(answer, ready, results)
        else:
            _resolve(answer, failed(*FAILURES[outcome]))

    def _answer(self, answer: ReplyFuture, ready: Prepared, results: list[AppendResult]) -> None:
        if not answer.done():
            answer.set_result(answer_to(self._node.store, ready.ids, results, ready.specials))


def next_gather_s(gather_s: float, count: int) -> float:
    """How long the next sends wait for company, when `gather_s` brought `count` requests; 0: a turn."""
    if count >= GATHER_LONG_FROM:
        return GATHER_LONG_S
    return GATHER_S if count >= (GATHER_ON if gather_s else GATHER_FROM) else 0.0


def _noted(answer: ReplyFuture, ready: Prepared, results: list[AppendResult]) -> bool:
    """Tell the owners of special messages where they lie; the others of the turn must not suffer."""
    try:
        ready.note(results)
    except Exception as error:  # a bug: the door logs where it is
        if not answer.done():
            answer.set_exception(error)
        return False
    return True


def _resolve(answer: ReplyFuture, content: bytes) -> None:
    if not answer.done():
        answer.set_result(content)


@lru_cache(maxsize=4096)
def _packed(address: str) -> bytes:
    """A peer's address as the store keeps it; what is no IP address (a unix socket) becomes 0.0.0.0."""
    host, _, port = address.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (OSError, ValueError):
        return pack_host(_UNKNOWN_HOST, 0)


@lru_cache(maxsize=4096)
def _peer(address: str) -> tuple[str, bytes]:
    """A peer's host as text, and its address as the store keeps it."""
    return address.rpartition(":")[0] or _UNKNOWN_HOST, _packed(address)
