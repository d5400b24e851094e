"""Resets with a target for each queue: by a number of messages, or to another group's offsets.

A broker resets to a time, an edge or one offset. Here the targets are computed from the present
offsets, and each queue is set by a call of its own. A target outside the queue becomes its nearest
end.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..proto import paths, v1
from .broker_groups import BrokerGroups, Outcome, answers
from .errors import CliError, Exit

_LITE = "%LMQ%"
#: Of a queue: its broker group and its id.
Queue = tuple[str, int]
#: Gets a sentence about each broker group and queue without a move.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a reset means for a group: numbers of messages."""

    again: int
    skipped: int
    #: Deliveries that can no longer be acknowledged.
    in_flight: int

    def __str__(self) -> str:
        return (
            f"{self.again:,} messages are consumed again, {self.skipped:,} are skipped;"
            f" {self.in_flight:,} deliveries in flight can no longer be acknowledged."
        )


def effect(*changes: v1.OffsetChange) -> Effect:
    """Return what these changes mean together.

    A group reads a queue from its first message on where it has no offset, and where retention has
    deleted the message at its offset.
    """
    again = skipped = 0
    for change in changes:
        begin = max(change.before, change.min_offset)
        again += max(0, begin - change.after)
        skipped += max(0, change.after - begin)
    return Effect(again, skipped, sum(change.in_flight for change in changes))


@dataclass(frozen=True, slots=True)
class Move:
    """The change of one queue; `broker` is the group as `BrokerGroups` names it."""

    broker: str
    change: v1.OffsetChange


def shifted(
    groups: BrokerGroups, request: v1.ResetOffsetsRequest, shift: int, tell: Tell
) -> list[Move]:
    """Return the moves by `shift` messages. Raises CliError."""

    def target(_queue: Queue, change: v1.OffsetChange) -> int | None:
        return change.before + shift if change.before >= 0 else None

    return _moves(groups, request, target, "the group has no offset there yet", tell)


def like(
    groups: BrokerGroups, request: v1.ResetOffsetsRequest, other: str, tell: Tell
) -> list[Move]:
    """Return the moves to the offsets of another group. Raises CliError."""
    asked = v1.DescribeGroupRequest(name=other, topic=request.topic)
    outcomes = groups.each(paths.DESCRIBE_GROUP, asked, v1.DescribeGroupResponse)
    offsets: Mapping[Queue, int] = {
        (name, queue.queue_id): queue.consumer_offset
        for name, answer in answers(outcomes)
        for queue in answer.queues
        if queue.topic == request.topic and not queue.retry and queue.consumer_offset >= 0
    }
    if not offsets:
        raise CliError(f"Group {other} has no offsets on topic {request.topic}.")
    return _moves(
        groups,
        request,
        lambda queue, _: offsets.get(queue),
        f"group {other} has no offset there",
        tell,
    )


def _moves(
    groups: BrokerGroups,
    request: v1.ResetOffsetsRequest,
    target: Callable[[Queue, v1.OffsetChange], int | None],
    missing: str,
    tell: Tell,
) -> list[Move]:
    """Return the moves of the queues with a target; tell which have none, and which broker groups
    do not answer."""
    asked = v1.ResetOffsetsRequest()
    asked.CopyFrom(request)
    asked.edge, asked.dry_run = v1.ResetOffsetsRequest.LATEST, True
    moves = []
    looked = groups.each(paths.RESET_OFFSETS, asked, v1.ResetOffsetsResponse)
    plans = answers(looked)
    for outcome in looked:
        if outcome.error is not None:
            tell(f"{outcome.broker}: {outcome.error}")
    for name, plan in plans:
        for change in plan.changes:
            if change.topic.startswith(_LITE):
                raise CliError(
                    f"Group {request.group} consumes lite topics of {request.topic}, which are"
                    " reset to a time, an edge or an offset only; --lite-topics selects some.",
                    Exit.USAGE,
                )
            if change.topic != request.topic:
                continue
            after = target((name, change.queue_id), change)
            if after is None:
                tell(f"{change.broker} queue {change.queue_id} is left: {missing}.")
                continue
            change.after = min(max(after, change.min_offset), change.max_offset)
            moves.append(Move(name, change))
    if not moves:
        raise CliError(f"There is no queue to reset: {missing}.")
    return moves


def carry_out(
    groups: BrokerGroups, request: v1.ResetOffsetsRequest, moves: Sequence[Move]
) -> list[v1.OffsetChange]:
    """Set the queues one after another, and return the changes. One that fails does not stop the
    others. Raises CliError with the reason and the command of each that is left."""
    left: list[str] = []
    changes: list[v1.OffsetChange] = []
    for move in moves:
        outcome = _set(groups, request, move)
        if outcome.error is not None:
            left.append(f"{move.change.broker} queue {move.change.queue_id}: {outcome.error}")
            left.append(_command(request, move.change))
        elif outcome.answer is not None:
            changes += outcome.answer.changes
    if left:
        words = f"{len(left) // 2} of {len(moves)} queues are not reset. To finish, run:"
        raise CliError("\n".join([words, *left]))
    return changes


def _set(
    groups: BrokerGroups, request: v1.ResetOffsetsRequest, move: Move
) -> Outcome[v1.ResetOffsetsResponse]:
    wanted = v1.ResetOffsetsRequest(
        group=request.group,
        topic=request.topic,
        queue_id=move.change.queue_id,
        offset=move.change.after,
    )
    (outcome,) = groups.each(paths.RESET_OFFSETS, wanted, v1.ResetOffsetsResponse, [move.broker])
    return outcome


def _command(request: v1.ResetOffsetsRequest, change: v1.OffsetChange) -> str:
    place = ("--queue", str(change.queue_id), "--broker", change.broker)
    words = ("offset", "reset", request.group, request.topic, "--offset", str(change.after))
    return shlex.join(["cometmq", *words, *place])
