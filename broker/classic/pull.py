"""Pulls of classic clients: the body of an answer is the records as they are in the log.

Source: docs/formats/remoting.md, section 12. Reading and waiting are those of the pull service;
this module checks the request and makes the answer. The subscription is the group's, from
heartbeats, or in the request. The offset in a request is committed before it waits, by the leader
only. The answer to a pull of old records names an in-sync follower (`suggestWhichBrokerId`), which
the client asks from then on, until the answer names the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...proto import v2
from ...remoting.broker_ids import LEADER_ID
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import PullMessage
from ...store.format.record import decode_delivery
from ...store.format.results import GetStatus
from ..messages.filters import Filter, parse_filter
from ..messages.validation import MAX_BATCH, SEARCHED_TOPICS, TOOLS_GROUP, check_group
from ..names.retry import is_retry_topic
from ..pop.request import consuming_group
from ..pop.turn import matches
from ..pull.service import Pull
from .base.errors import known_topic

if TYPE_CHECKING:
    from ...store.format.results import GetResult
    from ...store.message_store import MessageStore
    from ..base.counters import Counters
    from ..base.leadership import Leadership
    from ..metadata.tables import Metadata
    from ..pull.service import PullService
    from ..visible.dispatch_pump import DispatchPump
    from .base.members import Members
    from .followers import Followers
    from .offsets import ClassicOffsets

_COMMIT, _SUSPEND, _SUBSCRIPTION = 1, 2, 4
#: Bytes of an answer, as in RocketMQ; one record alone may be larger.
_BYTES_MAX = 256 << 10
#: A client gives up after 30 s.
_SUSPEND_MS_MAX = 30_000
_SQL = "SQL92"
_TOPIC_FORBIDDEN = 3

_CODES = {
    GetStatus.FOUND: Reply.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: Reply.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: Reply.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: Reply.PULL_NOT_FOUND,
}


class ClassicPulls:
    """Handler of PULL_MESSAGE and LITE_PULL_MESSAGE."""

    def __init__(
        self,
        *,
        store: MessageStore,
        metadata: Metadata,
        pump: DispatchPump,
        pulls: PullService,
        members: Members[Connection],
        offsets: ClassicOffsets,
        followers: Followers,
        leadership: Leadership,
        counters: Counters,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._pump = pump
        self._pulls = pulls
        self._members = members
        self._offsets = offsets
        self._followers = followers
        self._leadership = leadership
        self._counters = counters

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {Request.PULL_MESSAGE: self.pull, Request.LITE_PULL_MESSAGE: self.pull}

    def pull(self, command: Command, _: Connection) -> Any:
        """Answer a pull, at once or with a future. Raises WireError, RemotingError."""
        header = command.header(PullMessage)
        self._check_group(header.consumer_group)
        is_tool = header.consumer_group == TOOLS_GROUP
        topic = known_topic(self._metadata, header.topic, SEARCHED_TOPICS if is_tool else ())
        if not topic.readable:
            fields = self._fields(header.topic, header.queue_id, header.queue_offset)
            fields["forbiddenType"] = str(_TOPIC_FORBIDDEN)
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            return reply(Reply.NO_PERMISSION, remark, fields)
        if not 0 <= header.queue_id < topic.read_queues:
            raise RemotingError(
                Reply.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}]",
            )
        wanted = self._filter(header)
        self._pump.catch_up()
        if header.sys_flag & _COMMIT and self._leadership.is_leader:
            queue = header.topic, header.consumer_group, header.queue_id
            self._offsets.commit(*queue, header.commit_offset)
        pull = Pull(
            header.topic,
            header.queue_id,
            header.queue_offset,
            min(max(header.max_messages, 1), MAX_BATCH),
            wanted,
            _RecordForm(self, header.consumer_group),
            "" if is_tool else header.consumer_group,
            _BYTES_MAX,
        )
        wait_ms = header.suspend_timeout_ms if header.sys_flag & _SUSPEND else 0
        return self._pulls.read_or_wait(pull, min(max(wait_ms, 0), _SUSPEND_MS_MAX))

    def _check_group(self, name: str) -> None:
        """Raise WireError unless the group may consume; create it if that is allowed."""
        if name != TOOLS_GROUP:  # of mqadmin; not created
            check_group(name)
            consuming_group(self._metadata, name)

    def _filter(self, header: PullMessage) -> Filter | None:
        """Return the filter of the request or of the group. Raises WireError, RemotingError."""
        expression, kind = header.subscription, header.expression_type
        if not header.sys_flag & _SUBSCRIPTION:
            known = self._members.subscription(header.consumer_group, header.topic)
            if known is None:
                raise RemotingError(
                    Reply.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
                )
            if known.version_ms < header.sub_version:
                raise RemotingError(
                    Reply.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
                )
            expression, kind = known.expression, known.kind
        return filter_of(expression or "", kind)

    def code_of(self, pull: Pull, status: GetStatus) -> Reply:
        """Return the response code for the outcome of a read."""
        known = _CODES.get(status)
        if known is not None:
            return known
        empty = status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
        return Reply.PULL_NOT_FOUND if empty and not pull.offset else Reply.PULL_OFFSET_MOVED

    def at_end(self, pull: Pull) -> GetStatus:
        """Return the outcome of a read that found nothing at `pull.offset`."""
        end = self._store.max_offset(pull.topic, pull.queue_id)
        if not end:
            return GetStatus.NO_MESSAGE_IN_QUEUE
        at_end = pull.offset >= end
        return GetStatus.OFFSET_OVERFLOW_ONE if at_end else GetStatus.NO_MATCHED_MESSAGE

    def _fields(self, topic: str, queue_id: int, following: int) -> dict[str, str]:
        low = self._store.min_offset(topic, queue_id)
        return _fields(following, low, self._store.max_offset(topic, queue_id))

    def count(self, topic: str, group: str, messages: int, size: int) -> None:
        """Count messages that are handed to a group."""
        self._counters.add_received(topic, group, is_retry_topic(topic), messages, size)

    def fields(self, pull: Pull) -> dict[str, str]:
        """Return the fields of an answer without records."""
        return self._fields(pull.topic, pull.queue_id, pull.offset)

    def where_next(self, pull: Pull, following: int) -> str:
        """Return the id in routes of the replica for the client's next pull."""
        store = self._store
        is_cold = store.reader.is_cold(pull.topic, pull.queue_id, following)
        return str(self._followers.next_id() if is_cold else LEADER_ID)


class _RecordForm(Struct, frozen=True):
    """Answers of PULL_MESSAGE."""

    owner: ClassicPulls
    group: str

    def outside(self, pull: Pull, result: GetResult) -> Command:
        fields = _fields(result.next_offset, result.min_offset, result.max_offset)
        return reply(self.owner.code_of(pull, result.status), result.status.name, fields)

    def found(self, pull: Pull, result: GetResult) -> Command | None:
        """Return the matching records as they are; they are at most a batch."""
        if result.status is not GetStatus.FOUND:
            return None
        following = result.next_offset
        parts: list[bytes] = []
        size = 0
        for stored in result.records:
            if len(parts) == pull.batch or size >= pull.bytes_max:
                following = stored.queue_offset
                break
            if pull.tags is None or matches(decode_delivery(stored.data), pull.tags):
                parts.append(stored.data)
                size += len(stored.data)
        if not parts:
            return None
        fields = _fields(following, result.min_offset, result.max_offset)
        fields["suggestWhichBrokerId"] = self.owner.where_next(pull, following)
        self.owner.count(pull.topic, self.group, len(parts), size)
        return reply(Reply.SUCCESS, GetStatus.FOUND.name, fields, b"".join(parts))

    def empty(self, pull: Pull, sentence: str) -> Command:
        status = self.owner.at_end(pull)
        return reply(self.owner.code_of(pull, status), status.name, self.owner.fields(pull))


def filter_of(expression: str, kind: str) -> Filter | None:
    """Return the filter of a subscription; None matches everything. Raises WireError."""
    number = v2.SQL if kind == _SQL else v2.TAG
    return parse_filter(v2.FilterExpression(type=number, expression=expression))


def _fields(following: int, low: int, high: int) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": str(LEADER_ID),
        "groupSysFlag": "0",
        "nextBeginOffset": str(following),
        "maxOffset": str(high),
        "minOffset": str(low),
        "topicSysFlag": "0",
    }
