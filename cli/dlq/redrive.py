"""The work of `cometmq dlq redrive`: send dead letters again, each at most once.

The message id of a copy is derived from the position of its dead letter and from the target. So a
repeated command finds the copies of the first one in the index of the target, as long as retention
keeps them, and omits them. Dead letters are not deleted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ...client.message import Message
from ...operations.broker_groups import BrokerGroups
from ...operations.connection import Connection, refusal
from ...operations.errors import CliError
from ...operations.sending import Draft, message_of, message_type, route_of
from ...pipeline.outbound import unique_key, user_properties
from ...proto import paths, v1, v2
from .letters import origin_of

# Calls in flight.
_BATCH = 32
_ORIGIN_PROPERTY = "dead-letter-message-id"


@dataclass(frozen=True, slots=True)
class Copy:
    """A dead letter and what is sent for it."""

    letter: Message
    topic: str
    message_id: str


@dataclass(slots=True)
class Plan:
    """The copies to send, and what is not sent."""

    copies: list[Copy] = field(default_factory=list)
    #: By target topic.
    sent_before: Counter[str] = field(default_factory=Counter)
    #: Ids of dead letters whose origin is unknown.
    without_target: list[str] = field(default_factory=list)
    #: Wanted ids that no dead letter has.
    missing: list[str] = field(default_factory=list)

    def problems(self) -> list[tuple[str, str]]:
        """Return message id and reason of what is not sent."""
        return [
            *((one, "no such dead letter") for one in self.missing),
            *((one, "its topic is unknown: name one with --to") for one in self.without_target),
        ]

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each target topic."""
        pending = Counter(copy.topic for copy in self.copies)
        return [
            {"topic": topic, "to_send": pending[topic], "sent_before": self.sent_before[topic]}
            for topic in sorted(pending | self.sent_before)
        ]


def plan(
    groups: BrokerGroups, letters: Iterable[Message], to: str, ids: Sequence[str] = ()
) -> Plan:
    """Find the targets of dead letters, and which copies exist already; `ids` are those that the
    user named. Raises CliError."""
    found = Plan()
    absent = dict.fromkeys(ids)
    for batch in _batches(letters):
        copies = []
        for letter in batch:
            absent.pop(letter.message_id, None)
            topic = to or origin_of(letter)
            if not topic:
                found.without_target.append(letter.message_id)
                continue
            key = unique_key("redrive", letter.broker, letter.topic, letter.offset, topic)
            copies.append(Copy(letter, topic, key))
        present = [_exists(groups, copy) for copy in copies]
        for copy, is_present in zip(copies, present, strict=True):
            if is_present:
                found.sent_before[copy.topic] += 1
            else:
                found.copies.append(copy)
    found.missing = list(absent)
    return found


def _batches(letters: Iterable[Message]) -> Iterator[list[Message]]:
    iterator = iter(letters)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def _exists(groups: BrokerGroups, copy: Copy) -> bool:
    request = v1.QueryMessagesRequest(topic=copy.topic, unique_key=copy.message_id, count=1)
    outcomes = groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
    for outcome in outcomes:
        # Without every answer a copy could be sent twice; a topic that a group lacks has none.
        if outcome.error is not None and not outcome.absent:
            raise outcome.error
    return any(one.answer is not None and one.answer.messages for one in outcomes)


def send(connection: Connection, copies: Sequence[Copy]) -> Iterator[CliError | None]:
    """Send copies; yield for each its error, or None. One that fails does not stop the others."""
    routes: dict[str, v2.QueryRouteResponse | CliError] = {}
    for first in range(0, len(copies), _BATCH):
        started: list[Callable[[], v2.SendMessageResponse] | CliError] = []
        for copy in copies[first : first + _BATCH]:
            try:
                started.append(_start(connection, copy, routes))
            except CliError as error:
                started.append(error)
        for result in started:
            yield result if isinstance(result, CliError) else _outcome(result)


def _start(
    connection: Connection, copy: Copy, routes: dict[str, v2.QueryRouteResponse | CliError]
) -> Callable[[], v2.SendMessageResponse]:
    """Send a copy; return what waits for the answer. Raises CliError."""
    draft = _draft(copy)
    if copy.topic not in routes:
        try:
            routes[copy.topic] = route_of(connection, draft)
        except CliError as error:
            routes[copy.topic] = error
    route = routes[copy.topic]
    if isinstance(route, CliError):
        raise route
    if v2.DELAY in route.message_queues[0].accept_message_types:
        draft = replace(draft, delay_ms=0)
    message = message_of(draft, message_type(draft, route), copy.message_id)
    request = v2.SendMessageRequest(messages=[message])
    return connection.start(paths.SEND_MESSAGE, request, v2.SendMessageResponse)


def _outcome(result: Callable[[], v2.SendMessageResponse]) -> CliError | None:
    try:
        answer = result()
    except CliError as error:
        return error
    status = answer.entries[0].status if answer.entries else answer.status
    return None if status.code == v2.OK else refusal(status.code, status.message)


def _draft(copy: Copy) -> Draft:
    letter = copy.letter
    return Draft(
        copy.topic,
        letter.body,
        letter.keys,
        letter.tag or None,
        {**user_properties(letter.properties), _ORIGIN_PROPERTY: letter.message_id},
        group=letter.group or None,
        priority=letter.priority,
    )
