"""SyncLiteSubscription: the lite topics that a client of a group receives, and its start offsets.

Source: docs/formats/grpc-api.md, section 5.13; docs/formats/broker-semantics.md, section 12.2.
Checks are in the order of the specification; a refused request changes nothing. A group that
subscribes to a lite topic for the first time starts at its end as of the subscription, so that
later messages are delivered however late the first poll is; the OffsetOption of a partial
subscription overrides this.
A wildcard group subscribes once, when it is created or becomes one (`admin/groups.py`), to lite
topics that do not exist yet too: its group record in the log holds the log offset of that moment,
and the group starts in each lite topic at the first message behind it. So no restart, election,
new broker group or absence of its clients makes it skip one.
Subscriptions are in memory: clients refresh them every 30 seconds, and those not refreshed for a
minute are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...front.service import OutboundFull
from ...proto import v2
from ...proto.errors import WireError
from ..messages.validation import check_group, check_topic, lite_topic_problem, require_client_id
from ..names.lite import (
    bound_topic,
    events_max,
    is_exclusive,
    is_lite_queue,
    is_parent,
    is_wildcard,
    parse_queue,
    queue_of,
    quota,
    resets_on_takeover,
    resets_on_unsubscribe,
)
from ..pop.request import consuming_group, readable_topic
from .core import Eviction, LiteClient

if TYPE_CHECKING:
    import asyncio

    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Group, Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump
    from ..visible.durability import DurabilityGate
    from .receive import LiteReceive

logger = logging.getLogger(__name__)

#: As in the reference.
CALLS_A_SECOND = 5_000
_SECOND_NS = 1_000_000_000
_PARTIAL = (v2.PARTIAL_ADD, v2.PARTIAL_REMOVE)


class LiteSubscribe:
    """Handler of SyncLiteSubscription."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        changes: MetadataChanges,
        durability: DurabilityGate,
        pump: DispatchPump,
        clients: ClientRegistry,
        offsets: ConsumerOffsets,
        receive: LiteReceive,
    ) -> None:
        self._clock = runtime.clock
        self._clients_max = runtime.config.max_clients
        self._store = store
        self._metadata = metadata
        self._changes = changes
        self._durability = durability
        self._pump = pump
        self._clients = clients
        self._offsets = offsets
        self._table = receive.table
        self._receive = receive
        self._second = 0
        self._calls = 0

    def sync(
        self, request: v2.SyncLiteSubscriptionRequest, ctx: RequestContext
    ) -> v2.SyncLiteSubscriptionResponse | asyncio.Future[v2.SyncLiteSubscriptionResponse]:
        """Handler of SyncLiteSubscription. Raises WireError."""
        require_client_id(ctx)
        now_ns = self._clock.steady_ns()
        self._clients.seen(ctx, now_ns)
        self._limit(now_ns)
        group = self._group(request)
        parent, action, key = request.topic.name, request.action, (group.name, ctx.client_id)
        wildcard = is_wildcard(group)
        if wildcard and action in _PARTIAL:
            raise WireError(
                v2.BAD_REQUEST,
                f"group {group.name} receives every lite topic and cannot name single ones",
            )
        if action == v2.COMPLETE_REMOVE:
            self._leave(key, group)
        elif action == v2.PARTIAL_REMOVE:
            self._remove(key, parent, request.lite_topic_set, group, now_ns)
        else:
            queues = [] if wildcard else self._queues(request)
            self._check_room(key, queues, group, complete=action == v2.COMPLETE_ADD)
            end = self._record_start(group) if wildcard and group.lite_since < 0 else 0
            self._add(request, key, queues, group, now_ns)
            if end and not self._durability.immediate:
                return self._changes.when_durable(end, _ok())
        return _ok()

    def dropped(self, queues: Iterable[str], group: str) -> None:
        """Reset the group on lite topics without a subscriber left, if its attributes say so."""
        known = self._metadata.group(group)
        if known is not None and resets_on_unsubscribe(known):
            for queue in queues:
                if not self._table.subscribers(queue, _parent_of(queue), group):
                    self._receive.forget_queue(queue, group)
                    self._offsets.forget(queue, group)

    # Checks.

    def _limit(self, now_ns: int) -> None:
        second = now_ns // _SECOND_NS
        if second != self._second:
            self._second, self._calls = second, 0
        self._calls += 1
        if self._calls > CALLS_A_SECOND:
            raise WireError(v2.TOO_MANY_REQUESTS, "too many subscriptions of lite topics")

    def _group(self, request: v2.SyncLiteSubscriptionRequest) -> Group:
        parent = request.topic.name
        check_topic(parent)
        check_group(request.group.name)
        if request.action == v2.PARTIAL_ADD:
            for name in request.lite_topic_set:
                problem = lite_topic_problem(name)
                if problem:
                    raise WireError(v2.ILLEGAL_LITE_TOPIC, problem)
        topic = readable_topic(self._metadata, parent)
        group = consuming_group(self._metadata, request.group.name)
        if not is_parent(topic):
            raise WireError(v2.BAD_REQUEST, f"topic {parent} has no lite topics")
        bound = bound_topic(group)
        if bound != parent:
            raise WireError(
                v2.BAD_REQUEST, f"group {group.name} is bound to topic {bound or '(none)'}"
            )
        return group

    def _queues(self, request: v2.SyncLiteSubscriptionRequest) -> list[str]:
        """Return the named LMQs; skip invalid names where the protocol does not check them."""
        names = dict.fromkeys(request.lite_topic_set)
        return [queue_of(request.topic.name, n) for n in names if not lite_topic_problem(n)]

    def _check_room(
        self, key: tuple[str, str], queues: list[str], group: Group, *, complete: bool
    ) -> None:
        client = self._table.get(key)
        known = set() if client is None else set(client.queues)
        after = set(queues) if complete else known | set(queues)
        room = self._table.references_max - self._table.references + len(known)
        if len(after) > quota(group):
            raise WireError(
                v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"a client of group {group.name} may subscribe to {quota(group)} lite topics",
            )
        full = client is None and len(self._table) >= self._clients_max
        if full or len(after) > max(room, len(known)):
            raise WireError(
                v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                "there are too many subscriptions of lite topics: maxLiteSubscriptionCount",
            )

    # Changes.

    def _record_start(self, group: Group) -> int:
        """Write that a wildcard group of an earlier version subscribes now; return the log offset
        behind the record."""
        self._changes.check_writable()
        end = self._changes.log.write_group(replace(group, lite_since=self._store.log_end))
        self._pump.appended()
        return end

    def _add(
        self,
        request: v2.SyncLiteSubscriptionRequest,
        key: tuple[str, str],
        queues: list[str],
        group: Group,
        now_ns: int,
    ) -> None:
        table, parent = self._table, request.topic.name
        wildcard, exclusive = is_wildcard(group), is_exclusive(group)
        fresh_client = table.get(key) is None
        client = table.open(key, parent, events_max(group), now_ns, wildcard=wildcard)
        fresh = [queue for queue in queues if queue not in client.queues]
        if request.action == v2.COMPLETE_ADD:
            before = list(client.queues)
            evicted = table.replace(client, queues, exclusive=exclusive)
            self.dropped([queue for queue in before if queue not in client.queues], group.name)
        else:
            evicted = table.add(client, queues, exclusive=exclusive)
            if resets_on_takeover(group):
                for subscription in evicted:
                    self._restart(subscription.queue, group.name, self._end(subscription.queue))
            if request.HasField("offset_option"):
                self._apply(request.offset_option, queues, group.name)
        if not client.queues and not wildcard:
            table.drop(key)  # an empty refresh must not cost memory: clients choose their ids
            self._receive.left(key)
        self._notify(evicted)
        if wildcard and fresh_client:
            client.behind = True  # its first polls read every lite topic
        self._begin(client, fresh if request.action == v2.COMPLETE_ADD else queues or fresh)

    def _begin(self, client: LiteClient, queues: list[str]) -> None:
        """Set start offsets, and note lite topics with messages for the client."""
        offsets, group = self._offsets, client.key[0]
        for queue in queues:
            if not client.wants(queue):
                continue  # an exclusive lite topic of another client
            position = offsets.position(queue, group, 0)
            if position is None:
                offsets.commit(queue, group, 0, self._end(queue))
            elif position.offset < self._end(queue):
                client.note(queue)
        self._receive.wake([client])

    def _remove(
        self, key: tuple[str, str], parent: str, names: Iterable[str], group: Group, now_ns: int
    ) -> None:
        client = self._table.get(key)
        if client is not None:
            client.seen_ns = now_ns
            gone = self._table.remove(client, [queue_of(parent, name) for name in names])
            self.dropped(gone, group.name)

    def _leave(self, key: tuple[str, str], group: Group) -> None:
        client = self._table.get(key)
        queues = [] if client is None else list(client.queues)
        self._table.drop(key)
        self._receive.left(key)
        self.dropped(queues, group.name)

    def _apply(self, option: v2.OffsetOption, queues: list[str], group: str) -> None:
        """Move the group as the option says. A timestamp, and LAST, change nothing."""
        kind = option.WhichOneof("offset_type")
        for queue in queues:
            first, end = self._store.min_offset(queue, 0), self._end(queue)
            position = self._offsets.position(queue, group, 0)
            if kind == "policy" and option.policy == v2.OffsetOption.MIN:
                self._restart(queue, group, first)
            elif kind == "policy" and option.policy == v2.OffsetOption.MAX:
                self._restart(queue, group, end)
            elif kind == "offset":
                self._restart(queue, group, min(max(option.offset, first), end))
            elif kind == "tail_n" and position is not None:
                self._restart(queue, group, max(first, position.offset - max(option.tail_n, 0)))

    def moved(self, group: str, queue: str, offsets: Mapping[int, int]) -> None:
        """Deliver from the offset that an operator has set, if the queue is a lite topic."""
        if is_lite_queue(queue):
            self._receive.rewind(queue, group, offsets[0])
            self._receive.wake(self._table.ready(queue, _parent_of(queue), group))

    def _restart(self, queue: str, group: str, offset: int) -> None:
        """Move the group to `offset`; drop messages in flight and the lock."""
        self._offsets.commit(queue, group, 0, offset)
        self._receive.rewind(queue, group, offset)

    def _end(self, queue: str) -> int:
        return self._store.writer.next_offset(queue, 0)

    def _notify(self, evicted: list[Eviction]) -> None:
        """Notify clients of lite topics that another client took over."""
        for subscription in evicted:
            client = self._clients.get(subscription.client_id)
            _, lite = parse_queue(subscription.queue) or ("", "")
            command = v2.TelemetryCommand(
                notify_unsubscribe_lite_command=v2.NotifyUnsubscribeLiteCommand(lite_topic=lite)
            )
            for stream in client.streams if client is not None else ():
                if not stream.finished:
                    try:
                        stream.send(command)
                    except OutboundFull:
                        # The client does not read: its next refresh is refused and notified again.
                        logger.info(
                            "lite.notice_dropped client=%s lite=%s", subscription.client_id, lite
                        )


def _ok() -> v2.SyncLiteSubscriptionResponse:
    return v2.SyncLiteSubscriptionResponse(status=v2.Status(code=v2.OK, message="OK"))


def _parent_of(queue: str) -> str:
    return (parse_queue(queue) or ("", ""))[0]
