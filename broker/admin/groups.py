"""`cometmq.v1.Admin`, consumer groups: create, alter, delete, list, describe.

Promises: settings that a request does not name keep their value; creating a group again with the
same settings changes nothing; system groups are refused (docs/formats/broker-semantics.md, sections
8.2 and 8.5). A deletion removes the group's retry and dead-letter topics and, unless they are kept,
its offsets.
"""

from __future__ import annotations

import sys
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from ...proto import v1, v2
from ...proto.errors import WireError
from ..base.slices import Slices
from ..maintenance.removal import topics_of_group
from ..messages.validation import MAX_INVISIBLE_MS, check_group
from ..metadata.codec import group_message, retry_policy
from ..metadata.tables import Group, is_system_group
from ..names.lite import BOUND_TOPIC, WILDCARD, bound_topic, is_lite_queue, is_wildcard
from ..names.retry import queue_topics
from .attributes import GROUP_RULES, changed
from .pages import page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ..maintenance.progress import ConsumerProgress
    from ..maintenance.removal import Removal
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Metadata
    from .waiting import WaitingMessages

ATTEMPTS_MAX = 1_000
#: Clients listed for one group; the progress has their number.
CLIENTS_MAX = 1_000
#: Time for the clients of a deleted group to be stopped.
STAYS_DELETED_MS = 600_000
#: Clients that a refusal names.
_NAMED_CLIENTS = 10
_RETRY_QUEUES_MAX = 1_024
_DELAYS_MAX = 100
_MULTIPLIER_MAX = 100
#: Messages in flight of one answer, and those that a call looks at: 20 ms of the event loop.
_DELIVERIES_MAX, _DELIVERIES_EXAMINED_MAX = 500, 10_000


class GroupAdmin:
    """Handlers for consumer groups."""

    def __init__(
        self,
        *,
        clock: Clock,
        metadata: Metadata,
        changes: MetadataChanges,
        progress: ConsumerProgress,
        removal: Removal,
        waiting: WaitingMessages,
        deliveries: Callable[[str], Iterable[v1.GroupDelivery]],
    ) -> None:
        """`deliveries` returns the messages of a group that are in flight."""
        self._clock = clock
        self._metadata = metadata
        self._changes = changes
        self._progress = progress
        self._removal = removal
        self._waiting = waiting
        self._deliveries = deliveries

    async def create(
        self, request: v1.CreateGroupRequest, ctx: RequestContext
    ) -> v1.CreateGroupResponse:
        """Create a group, or change it to the requested settings."""
        check_group(request.name)
        metadata = self._metadata
        known = metadata.group(request.name)
        if known is not None:
            await self._check_waiting(known, _wanted(request, known))
            known = metadata.group(request.name)
        if known is None and request.must_exist:
            raise _unknown(request.name)
        group = _wanted(request, known)
        is_new, differs = known is None, group != known
        if differs and is_wildcard(group) and group.lite_since < 0:
            # It subscribes now: other broker groups may have clients of it, or get them before.
            group.lite_since = self._changes.log_end
        answer = v1.CreateGroupResponse(
            code=v2.OK,
            message="OK",
            group=group_message(group),
            created=is_new,
            altered=differs and not is_new,
        )
        if not differs:
            return answer
        metadata.check_group_limit(group.name)
        self._changes.check_writable()
        if request.dry_run:
            return answer
        write = partial(self._changes.log.write_group, group)
        if is_new:
            made = self._changes.create(write, answer, what="consumer_group", system=False)
            answer.group.CopyFrom(group_message(group))  # with its place in the log
            return await made
        return await self._changes.when_durable(write(), answer)

    async def _check_waiting(self, before: Group, after: Group) -> None:
        """Raise FORBIDDEN if messages wait where the group would no longer look."""
        becomes_ordered = after.orderly and not before.orderly
        binds_other = bound_topic(before) not in ("", bound_topic(after))
        names_topics = is_wildcard(before) and not is_wildcard(after)
        if not (becomes_ordered or binds_other or names_topics):
            return
        retries = waiting = unread = 0
        async for _, row in self._progress.all_group_queues((before.name,)):
            retries += row.lag if row.retry else 0
            if is_lite_queue(row.topic):
                waiting += row.lag
                unread += 0 if self._progress.has_read(before.name, row.topic) else row.lag
        if becomes_ordered:
            retries += await self._waiting.count(topics_of_group(self._metadata, before.name))
        if becomes_ordered and retries:
            raise WireError(
                v2.FORBIDDEN,
                f"{retries} messages of group {before.name} wait for a retry, which an ordered "
                "group does not read: consume them first",
            )
        if not binds_other:
            waiting = unread if names_topics else 0
        if waiting:
            raise WireError(
                v2.FORBIDDEN,
                f"{waiting} messages wait for group {before.name} on lite topics of "
                f"{bound_topic(before)}: consume them first",
            )

    async def delete(
        self, request: v1.DeleteGroupRequest, ctx: RequestContext
    ) -> v1.DeleteGroupResponse:
        """Delete a group, its retry and dead-letter topics and its offsets.

        While clients are connected it must be forced, and the calls of clients do not create the
        group again for `STAYS_DELETED_MS`. The group's own record is written last, so that an
        interrupted deletion can be repeated.
        """
        check_group(request.name)
        rows = await self._progress.group_queues(request.name, rows_max=sys.maxsize)
        group = self._metadata.group(request.name)
        if group is None:
            raise _unknown(request.name)
        topics = topics_of_group(self._metadata, request.name)
        waiting = await self._waiting.count(topics)
        members = self._progress.members_of(request.name)
        progress = self._progress.group_progress(request.name, rows, len(members))
        answer = v1.DeleteGroupResponse(
            code=v2.OK,
            message="OK",
            topics=topics,
            messages=progress.retries + progress.dead_letters + waiting,
            offsets=[] if request.keep_offsets else sorted({row.topic for row in rows}),
            in_flight=sum(row.in_flight for row in rows),
            clients=progress.clients,
            client_ids=sorted({member.client_id for member in members})[:_NAMED_CLIENTS],
        )
        if request.dry_run:
            return answer
        if answer.clients and not request.force:
            raise WireError(
                v2.FORBIDDEN,
                f"consumer group {request.name} has {answer.clients} connected clients "
                f"({', '.join(answer.client_ids)}): stop them, or force the deletion",
            )
        if answer.messages and not request.accept_loss:
            raise WireError(
                v2.FORBIDDEN,
                f"{answer.messages} messages of group {request.name} wait for a retry or are dead "
                "letters: accept the loss",
            )
        self._changes.check_writable()
        if request.keep_offsets:
            self._removal.rewind_to_unacknowledged(group)
        slices = Slices(self._clock)
        for name in topics:
            self._changes.log.delete_topic(name)
            await slices.pause()
        stays_ms = STAYS_DELETED_MS if members else 0
        end = self._changes.log.delete_group(request.name, request.keep_offsets, stays_ms)
        return await self._changes.when_durable(end, answer)

    async def list_all(
        self, request: v1.ListGroupsRequest, ctx: RequestContext
    ) -> v1.ListGroupsResponse:
        """A page of the consumer groups of this broker by name, with their progress."""
        names = (
            name
            for name in self._metadata.groups
            if request.include_system or not is_system_group(name)
        )
        page, more = page_of(names, request.after, request.limit)
        progress = await self._progress.progress_of(page)
        answer = v1.ListGroupsResponse(code=v2.OK, message="OK", more=more)
        slices = Slices(self._clock)
        for name in page:
            group = self._metadata.groups.get(name)
            if group is not None:
                answer.groups.append(group_message(group))
                answer.progress.append(progress[name])
            await slices.pause()
        return answer

    async def describe(
        self, request: v1.DescribeGroupRequest, ctx: RequestContext
    ) -> v1.DescribeGroupResponse:
        """One group: lag, messages in flight, clients."""
        group = self._metadata.group(request.name)
        if group is None:
            raise _unknown(request.name)
        queues = await self._progress.group_queues(group.name, request.topic)
        members = self._progress.members_of(group.name)
        progress = self._progress.group_progress(group.name, queues, len(members))
        return v1.DescribeGroupResponse(
            code=v2.OK,
            message="OK",
            group=group_message(group),
            queues=queues,
            lag=progress.lag,
            in_flight=progress.in_flight,
            clients=members[:CLIENTS_MAX],
            progress=progress,
            deliveries=self._held(request) if request.deliveries > 0 else (),
        )

    def _held(self, request: v1.DescribeGroupRequest) -> list[v1.GroupDelivery]:
        """Return the deliveries that the request lists, those held longest first."""
        topics = queue_topics(request.topic, request.name) if request.topic else ()
        found = (
            one
            for one in islice(self._deliveries(request.name), _DELIVERIES_EXAMINED_MAX)
            if (not topics or one.topic in topics)
            and (not request.HasField("queue_id") or one.queue_id == request.queue_id)
            and (not request.HasField("offset") or one.offset == request.offset)
        )
        most = min(request.deliveries, _DELIVERIES_MAX)
        return nsmallest(most, found, key=lambda one: (one.delivered_ms, one.offset))


def _wanted(request: v1.CreateGroupRequest, known: Group | None) -> Group:
    """Return the group that the request asks for."""
    if not 0 <= request.max_attempts <= ATTEMPTS_MAX:
        raise _bad(f"max_attempts must be 1 to {ATTEMPTS_MAX}")
    if not 0 <= request.retry_queues <= _RETRY_QUEUES_MAX:
        raise _bad(f"retry_queues must be 1 to {_RETRY_QUEUES_MAX}")
    base = known or Group(request.name)
    extra = dict(base.extra)
    if request.HasField("retry"):
        _check_retry(request.retry)
        extra.pop("groupRetryPolicy", None)
        policy = retry_policy(request.retry)
        if policy:
            extra["groupRetryPolicy"] = policy
    attributes = changed(GROUP_RULES, base.attributes, request.attributes, new=known is None)
    return Group(
        base.name,
        request.orderly if request.HasField("orderly") else base.orderly,
        request.max_attempts or base.max_attempts,
        request.consume_enable if request.HasField("consume_enable") else base.consume_enable,
        request.retry_queues or base.retry_queues,
        attributes,
        extra,
        base.lite_since if _same_lite_topics(base.attributes, attributes) else -1,
        base.since,
        base.since_ms,
    )


def _same_lite_topics(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether a wildcard subscription of before means the same lite topics now."""
    return all(before.get(key) == after.get(key) for key in (BOUND_TOPIC, WILDCARD))


def _check_retry(retry: v1.GroupRetry) -> None:
    if len(retry.delays_ms) > _DELAYS_MAX:
        raise _bad(f"a retry policy has at most {_DELAYS_MAX} delays")
    times = [*retry.delays_ms, *((retry.initial_ms, retry.max_ms) if retry.initial_ms else ())]
    if any(not 0 < ms <= MAX_INVISIBLE_MS for ms in times):
        # A push consumer asks for the delay by ChangeInvisibleDuration, which goes no further.
        raise _bad(f"the delays of a retry policy are 1 to {MAX_INVISIBLE_MS} ms")
    if retry.initial_ms > retry.max_ms:
        raise _bad("the first delay of an exponential retry policy is above its longest")
    if retry.initial_ms and not (
        1 <= retry.multiplier <= _MULTIPLIER_MAX and retry.multiplier == int(retry.multiplier)
    ):
        raise _bad(f"the multiplier of a retry policy is a whole number, 1 to {_MULTIPLIER_MAX}")


def _unknown(name: str) -> WireError:
    return WireError(v2.CONSUMER_GROUP_NOT_FOUND, f"consumer group {name} does not exist")


def _bad(sentence: str) -> WireError:
    return WireError(v2.BAD_REQUEST, sentence)
