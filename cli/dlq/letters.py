"""Dead letters of a group, read over the wire by PullMessage without a consumer group.

A dead letter is the copy of a message whose delivery attempts are used up, in `%DLQ%GROUP`. Reading
does not change it, and nothing deletes it but retention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...client.message import Message, read_message
from ...operations.broker_groups import BrokerGroups, answers
from ...operations.connection import Connection
from ...operations.pulling import pull, queue_of
from ...operations.redrive import origin_of
from ...proto import paths, v1, v2
from ..cluster.broker_groups import planned

PREFIX = "%DLQ%"
_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters; empty fields select all."""

    group: str
    begin_ms: int = 0
    end_ms: int = 0
    origin: str = ""
    ids: Sequence[str] = ()

    @property
    def narrows(self) -> bool:
        """Return whether the selection may leave out dead letters."""
        return bool(self.begin_ms or self.end_ms or self.origin or self.ids)

    def has(self, letter: Message) -> bool:
        """Return whether a dead letter is selected."""
        return (
            letter.stored_ms >= self.begin_ms
            and (not self.end_ms or letter.stored_ms < self.end_ms)
            and self.origin in ("", origin_of(letter))
            and (not self.ids or letter.message_id in self.ids)
        )


def dead_letters(
    groups: BrokerGroups, connection: Connection, wanted: Selection
) -> Iterator[Message]:
    """Yield the selected dead letters, queue by queue; tell which broker groups are missing.

    Raises CliError.
    """
    topic = PREFIX + wanted.group
    request = v1.DescribeTopicRequest(name=topic)
    outcomes = groups.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
    if all(one.absent for one in outcomes):
        described = v1.DescribeGroupRequest(name=wanted.group)
        # No dead letters; a consumer group that does not exist is an error.
        answers(groups.each(paths.DESCRIBE_GROUP, described, v1.DescribeGroupResponse))
        return
    for _, answer in planned([one for one in outcomes if not one.absent]):
        for queue in answer.queues:
            place = queue_of(topic, queue.broker, queue.queue_id)
            letters = _read(connection, place, queue.min_offset, queue.max_offset)
            yield from filter(wanted.has, letters)


def _read(
    connection: Connection, queue: v2.MessageQueue, offset: int, end: int
) -> Iterator[Message]:
    while offset < end:
        messages, offset = _pull(connection, queue, offset)
        for message in messages:
            if message.offset < end:
                yield message


def _pull(connection: Connection, queue: v2.MessageQueue, offset: int) -> tuple[list[Message], int]:
    """Return a batch and the offset behind it. Raises CliError."""
    batch = pull(connection, queue, offset, timeout_s=_TIMEOUT_S)
    messages = [read_message(message, queue.broker.name) for message in batch.messages]
    behind = messages[-1].offset + 1 if messages else offset
    # At least one ahead, so that an answer without messages ends the loop.
    return messages, max(batch.next_offset, behind, offset + (not messages))
