"""Compares a checkpoint with the logs of now: what is lost, and where reading goes on.

A queue of a log that still has the checkpoint's mark (`marks.py`) has lost messages if it begins
above its next offset. It was deleted and created again if the message before its next offset lies
behind the mark. A log without the mark was restored from a backup or lost its end: messages stored
after the mark's time are new ones, in whatever offsets, and those before it are the common history.
Store times follow the clock: one that was set back behind the mark's store time makes new messages
look old, and only failOnDataLoss=true reports them.

A queue that the checkpoint does not have was empty when the mark was the log's end. If it begins
above 0 and the log was deleted beyond the mark, its first messages are lost.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from .log import BrokerLog, Log, QueueName
from .loss import queue_text, report_loss, warn_of_loss
from .marks import Mark
from .offsets import Checkpoint, Queue

#: Gaps that one error names; a log may have tens of thousands of queues.
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Gap:
    """One loss: a sentence, and how the queue goes on."""

    text: str
    queue: Queue | None = None  # None: of a whole log
    following: int | None = None  # next offset; None: the queue is gone
    lost: int = 0  # messages that are known to be lost
    may_pass: bool = False  # a failover or a restart may show it for a moment
    is_loss: bool = True  # False: there may have been nothing to lose


class _History(enum.Enum):
    SAME = "the log has the mark, or retention has deleted it"
    UNKNOWN = "the checkpoint has no mark"
    WAITING = "the mark is written and not readable yet"
    REPLACED = "the log has no such record"


def compare(
    log: Log,
    logs: Mapping[str, BrokerLog],
    known: Checkpoint,
    wants: Callable[[Queue], bool],
    *,
    named: bool,
) -> list[Gap]:
    """Return what the logs lack of the checkpoint.

    `wants` selects the queues to read. `named`: topics are read by name, so that a deleted one is
    missed.
    """
    gaps: list[Gap] = []
    for broker, one in sorted(logs.items()):
        begun = {
            queue[1:]: offset
            for queue, offset in known.offsets.items()
            if queue[0] == broker and wants(queue)
        }
        mark = known.marks.get(broker)
        gaps += _LogComparison(log, broker, one, mark, named=named).gaps(begun)
    return gaps


def report_gaps(gaps: list[Gap], *, fail_on_loss: bool) -> None:
    """Raise DataLossError for a loss or, without `fail_on_loss`, log every gap."""
    losses = [gap.text for gap in gaps if gap.is_loss]
    if losses and fail_on_loss:
        more = f" There are {len(losses) - _SHOWN} more losses." if len(losses) > _SHOWN else ""
        report_loss(" ".join(losses[:_SHOWN]) + more, fail_on_loss=True)
    for gap in gaps:
        if gap.is_loss:
            report_loss(gap.text, fail_on_loss=False)
        else:
            warn_of_loss(gap.text)


def missing_brokers(known: Checkpoint, logs: Mapping[str, BrokerLog]) -> list[str]:
    """Return the brokers of the checkpoint that there are no logs of."""
    return sorted(({broker for broker, _, _ in known.offsets} | set(known.marks)) - set(logs))


class _LogComparison:
    """Comparison of one broker's log."""

    def __init__(
        self, log: Log, broker: str, one: BrokerLog, mark: Mark | None, *, named: bool
    ) -> None:
        self._log = log
        self._broker = broker
        self._one = one
        self._mark = mark
        self._named = named

    def gaps(self, begun: Mapping[QueueName, int]) -> Iterator[Gap]:
        """Yield the gaps of these queues, next offsets of the checkpoint."""
        history = self._history()
        if history is _History.REPLACED:
            yield self._replaced()
        following = self._following(history, begun)
        for name, offset in begun.items():
            if name in self._one.queues:
                yield from self._of_queue(history, name, offset, following[name])
            elif offset and history is not _History.WAITING:
                text = f"{self._text(name)} is gone: the topic was deleted. Its messages from "
                yield Gap(
                    f"{text}{offset} on are lost.",
                    self._queue(name),
                    may_pass=True,
                    is_loss=self._named,
                )
        yield from self._of_new_queues(history, self._one.queues.keys() - begun.keys())

    def _history(self) -> _History:
        mark, one = self._mark, self._one
        if mark is None:
            return _History.UNKNOWN
        if not mark.is_record:
            return _History.SAME if mark.position <= one.log_end else _History.REPLACED
        if mark.position < one.log_start:
            return _History.SAME
        if self._log.mark_at(self._broker, mark.position) != mark:
            return _History.REPLACED
        return _History.SAME if mark.position < one.log_end else _History.WAITING

    def _following(
        self, history: _History, begun: Mapping[QueueName, int]
    ) -> Mapping[QueueName, int]:
        """Return where each queue's common history with the checkpoint ends, at most its next
        offset there."""
        if history is _History.WAITING:
            return begun
        queues = self._one.queues
        ends = {name: queues[name][1] for name in begun if name in queues}
        if history is _History.REPLACED and self._mark is not None and self._mark.is_record:
            new = self._log.offsets_at_time(self._broker, self._mark.stored_ms + 1)
        elif history is _History.SAME and self._restarted(begun):
            assert self._mark is not None
            new = self._log.offsets_at_position(self._broker, self._mark.position + 1)
        else:
            new = {}
        return {name: min(begun[name], end, new.get(name, end)) for name, end in ends.items()}

    def _restarted(self, begun: Mapping[QueueName, int]) -> bool:
        """Whether the last message that was read of a queue lies behind the mark."""
        assert self._mark is not None
        bounds = self._one.queues
        last = [
            (*name, offset - 1)
            for name, offset in begun.items()
            if name in bounds and bounds[name][0] < offset <= bounds[name][1]
        ]
        places = self._log.positions(self._broker, last) if last else []
        limit = self._mark.position
        behind = any(place is not None and place[0] > limit for place in places)
        return behind or any(offset > bounds.get(name, (0, 0))[1] for name, offset in begun.items())

    def _of_queue(
        self, history: _History, name: QueueName, offset: int, following: int
    ) -> Iterator[Gap]:
        first, end = self._one.queues[name]
        at = f"{self._text(name)} has messages {first} to {end}, and the checkpoint is at {offset}"
        if offset < first:
            # Of another log, those below the checkpoint may be new ones too.
            what = f"messages {offset} to {first} are lost"
            if history is _History.REPLACED:
                what = f"messages 0 to {first} are lost, except those of the common history"
            yield Gap(
                f"{at}: {what}. Retention deleted them, or the topic was deleted.",
                self._queue(name),
                first,
                first - offset,
            )
        elif following < offset:
            # Retention may have deleted new ones already: nothing tells where those began.
            begin = following if following > first else 0
            yield Gap(
                f"{at}: messages {begin} to {offset} are not those of the checkpoint. The log "
                "was replaced or lost its end, or the topic was deleted and created again, or "
                "startingOffsets was beyond the end.",
                self._queue(name),
                following,
                may_pass=end < offset,
            )

    def _of_new_queues(self, history: _History, names: Iterable[QueueName]) -> Iterator[Gap]:
        mark, start = self._mark, self._one.log_start
        # Nothing was deleted since the queue was empty; without marks nothing is known.
        is_whole = start <= mark.position if mark is not None else self._log.physical
        for name in () if is_whole and history is not _History.REPLACED else sorted(names):
            first = self._one.queues[name][0]
            if first:
                text = f"{self._text(name)} is new to the checkpoint and begins at {first}"
                yield Gap(
                    f"{text}: messages 0 to {first} are lost. Retention deleted them before the "
                    "first batch that would have read them.",
                    self._queue(name),
                    first,
                    first,
                )

    def _replaced(self) -> Gap:
        mark, end = self._mark, self._one.log_end
        assert mark is not None
        what = f"its log offset {mark.position}"
        if mark.is_record:
            stored = datetime.fromtimestamp(mark.stored_ms / 1000, UTC)
            what = f"the record at {what[4:]}, stored {stored.isoformat(timespec='milliseconds')},"
        return Gap(
            f"The log of {self._broker} is not the one of the checkpoint: {what} is not in the "
            f"present log, which has offsets {self._one.log_start} to {end}. It was restored from "
            "a backup or lost its end.",
            may_pass=end <= mark.position,
        )

    def _queue(self, name: QueueName) -> Queue:
        return (self._broker, *name)

    def _text(self, name: QueueName) -> str:
        text = queue_text(self._queue(name))
        return text[0].upper() + text[1:]
