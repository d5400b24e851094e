"""Order of recorded requests in which one client after another gets the recorded answers.

A recorder between clients and server sees when requests and answers pass. The server took two
requests that were in progress at the same time in either order; the answers tell which one it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.remoting.recordings import Closed, Recorded

Event = Recorded | Closed
#: Ends of queues and offsets of groups, by topic and queue, or group, topic and queue.
State = dict[tuple[str, ...], int]

SENDS = (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)
PULLS = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)
#: Bit of a pull's `sysFlag`: it commits an offset, too.
COMMITS = 1
#: Properties of messages that reach their queue later.
LATER = ("TIMER_DELIVER_MS", "DELAY", "TRAN_MSG")


def event_key(event: Recorded) -> tuple[int, int]:
    return event.connection, event.command.opaque


def is_ordinary(sent: Command) -> bool:
    """Return whether a message goes to its queue at once."""
    return not any(name in sent.fields.get(properties_field(sent), "") for name in LATER)


def properties_field(sent: Command) -> str:
    """Return the name of the field with the properties of a sent message."""
    return "i" if "b" in sent.fields else "properties"


def topic_of(sent: Mapping[str, str]) -> str:
    """Return the topic of a send in either form of its fields."""
    return sent["b"] if "b" in sent else sent["topic"]


def as_answered(recorded: list[Event]) -> list[Event]:
    """Return the events in an order in which the requests get the recorded answers.

    Requests stay where they are unless their answer needs another place: a read is delayed until
    the write that it has seen, a write until the read that has not seen it.
    """
    return _Order(recorded).run()


class _Order:
    def __init__(self, recorded: list[Event]) -> None:
        self._recorded = recorded
        self._answers = {
            event_key(event): (index, event.command)
            for index, event in enumerate(recorded)
            if isinstance(event, Recorded) and not event.from_client and event.command.is_response
        }
        self._found: list[Event] = []
        #: After the events found.
        self._state: State = {}
        #: Reads that need a later write.
        self._early: list[Recorded] = []

    def run(self) -> list[Event]:
        for index, event in enumerate(self._recorded):
            if not is_request(event):
                self._answered(event)
            elif self._fits(event, self._state):
                self._add(event)
            elif writes := self._seen_too_early(index, event):
                self._found = [each for each in self._found if not is_in(each, writes)]
                for each in (event, *writes):
                    self._add(each)
            elif self._fits_later(index, event):
                self._early.append(event)
            else:
                self._add(event)
        return self._found

    def _answered(self, event: Event) -> None:
        """Take an event that is no request; one that is answered now has been sent."""
        if isinstance(event, Recorded):
            for early in [each for each in self._early if event_key(each) == event_key(event)]:
                self._early.remove(early)
                self._add(early)
        self._found.append(event)

    def _add(self, event: Recorded) -> None:
        self._found.append(event)
        self._state |= self._changes(event)
        for early in [each for each in self._early if self._fits(each, self._state)]:
            self._early.remove(early)
            self._add(early)

    def _seen_too_early(self, index: int, event: Recorded) -> list[Recorded]:
        """Return the writes in progress at this index without which the read fits."""
        without: list[Recorded] = []
        for write in reversed(self._found):
            if is_request(write) and self._changes(write) and self._is_in_progress(write, index):
                without.insert(0, write)
                rest = (each for each in self._found if not is_in(each, without))
                if self._fits(event, self._state_after(rest)):
                    return without
        return []

    def _is_in_progress(self, write: Recorded, index: int) -> bool:
        if write.command.is_oneway:
            return True
        return event_key(write) in self._answers and self._answers[event_key(write)][0] > index

    def _fits_later(self, index: int, event: Recorded) -> bool:
        """Return whether the read fits after a write that came before its answer."""
        state = dict(self._state)
        for later in self._recorded[index + 1 : self._answers[event_key(event)][0]]:
            if is_request(later):
                state |= self._changes(later)
                if self._fits(event, state):
                    return True
        return False

    def _state_after(self, events: Iterable[Event]) -> State:
        state: State = {}
        for event in events:
            if is_request(event):
                state |= self._changes(event)
        return state

    def _changes(self, event: Recorded) -> State:
        _, answer = self._answers.get(event_key(event), (0, Command(-1)))
        return changes(event.command, answer)

    def _fits(self, event: Recorded, state: State) -> bool:
        if event_key(event) not in self._answers:
            return True
        return fits(event.command, self._answers[event_key(event)][1], state)


def is_request(event: Event) -> TypeGuard[Recorded]:
    """Return whether the event is a request of a client."""
    return isinstance(event, Recorded) and event.from_client and not event.command.is_response


def is_in(event: Event, events: Iterable[Event]) -> bool:
    return any(event is each for each in events)


def changes(asked: Command, answer: Command) -> State:
    """Return what a request changes, as its answer tells."""
    fields = asked.fields
    if asked.code == Request.UPDATE_CONSUMER_OFFSET:
        return {offset_of(fields): int(fields["commitOffset"])}
    if asked.code in PULLS and int(fields["sysFlag"]) & COMMITS:
        return {offset_of(fields): int(fields["commitOffset"])}
    if asked.code in SENDS and "queueOffset" in answer.fields and is_ordinary(asked):
        stored = len(answer.fields["msgId"].split(","))
        end = int(answer.fields["queueOffset"]) + stored
        return {(topic_of(fields), answer.fields["queueId"]): end}
    return {}


def fits(asked: Command, answer: Command, state: State) -> bool:
    """Return whether a read gets this answer; one that nothing is known about does."""
    fields = asked.fields
    if asked.code == Request.QUERY_CONSUMER_OFFSET:
        committed = state.get(offset_of(fields))
        if committed is not None:
            return answer.fields.get("offset") == str(committed)
        end = state.get((fields["topic"], fields["queueId"]))
        return end is None or (answer.code == Reply.QUERY_NOT_FOUND) == (end == 0)
    if asked.code in PULLS and "maxOffset" in answer.fields:
        end = state.get((fields["topic"], fields["queueId"]))
        wanted = int(answer.fields["maxOffset"])
        waits = not answer.code and end == int(fields["queueOffset"]) == wanted - 1
        return end is None or end == wanted or waits
    return True


def offset_of(fields: Mapping[str, str]) -> tuple[str, ...]:
    return fields["consumerGroup"], fields["topic"], fields["queueId"]
