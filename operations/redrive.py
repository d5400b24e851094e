"""Redrive of dead letters, by command and console: each is sent again at most once.

The message id of a copy is derived from the position of its dead letter and from the target. So a
later redrive, wherever it comes from, finds the copies of an earlier one in the index of the
target, as long as retention keeps them, and omits them. Redrives at the same time send a copy to
the broker group of its dead letter, which stores it once (`Admin.SendOnce`), also after a failover.
A copy has the id of its dead letter and who sent it. Dead letters are not deleted.
"""

import getpass
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..client.identity import unique_key
from ..client.message import Message
from ..proto import paths, v1, v2
from ..store.format.property_names import FORBIDDEN_PROPERTIES
from .broker_groups import BrokerGroups
from .connection import Connection
from .errors import CliError
from .sending import Draft, message_of, message_type, route_of

# Calls in flight.
_BATCH = 32
_WRITABLE = (v2.WRITE, v2.READ_WRITE)
_ORIGIN_PROPERTY = "dead-letter-message-id"
SENDER_PROPERTY = "dead-letter-sent-by"


@dataclass(frozen=True, slots=True)
class Copy:
    """What is sent for a dead letter."""

    letter_id: str
    #: The broker group of the dead letter.
    broker: str
    draft: Draft
    message_id: str

    @property
    def topic(self) -> str:
        """The target."""
        return self.draft.topic


def copy(broker: str, letters: str, offset: int, letter_id: str, draft: Draft) -> Copy:
    """Return the copy of the dead letter at an offset of the topic `letters`; `draft` is its
    content, for the target."""
    key = unique_key("redrive", broker, letters, offset, draft.topic)
    named = {**draft.properties, _ORIGIN_PROPERTY: letter_id}
    return Copy(letter_id, broker, replace(draft, properties=named), key)


def origin_of(letter: Message) -> str:
    """Return the topic to which the message was sent first; "" if it is unknown."""
    names = (letter.dead_letter_of, letter.properties.get("RETRY_TOPIC", ""))
    return next((name for name in names if name and not name.startswith("%")), "")


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
        pending = Counter(one.topic for one in self.copies)
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
    for letter in letters:
        absent.pop(letter.message_id, None)
        topic = to or origin_of(letter)
        if not topic:
            found.without_target.append(letter.message_id)
            continue
        wanted = copy_of(letter, topic)
        if earlier(groups, wanted) is not None:
            found.sent_before[topic] += 1
        else:
            found.copies.append(wanted)
    found.missing = list(absent)
    return found


def copy_of(letter: Message, topic: str) -> Copy:
    """Return the copy of a dead letter for a topic."""
    place = (letter.broker, letter.topic, letter.offset)
    return copy(*place, letter.message_id, _draft(letter, topic))


def earlier(groups: BrokerGroups, wanted: Copy) -> v2.Message | None:
    """Return the copy that an earlier redrive has sent. Raises CliError if it cannot be known."""
    request = v1.QueryMessagesRequest(topic=wanted.topic, unique_key=wanted.message_id, count=1)
    found, behind = None, 0
    for outcome in groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse):
        # Without every answer a copy could be sent twice; a topic that a group lacks has none.
        if outcome.error is not None and not outcome.absent:
            raise outcome.error
        if (answer := outcome.answer) is None:
            continue
        if answer.messages:
            found = v2.Message.FromString(answer.messages[0].message)
        behind += answer.index_behind
    if found is None and behind:
        raise CliError(
            f"The index is {behind} bytes behind the log: a copy may be in it. Try again later."
        )
    return found


def send(
    groups: BrokerGroups, connection: Connection, copies: Sequence[Copy]
) -> Iterator[CliError | bool]:
    """Send copies; yield for each whether it is sent now (not by another redrive), or its error.
    One that fails does not stop the others."""
    routes: dict[str, v2.QueryRouteResponse | CliError] = {}
    for first in range(0, len(copies), _BATCH):
        started: list[Callable[[], v1.SendOnceResponse] | CliError | bool] = []
        for wanted in copies[first : first + _BATCH]:
            try:
                started.append(_start(groups, connection, wanted, routes))
            except CliError as error:
                started.append(error)
        for result in started:
            yield _outcome(result) if callable(result) else result


def _start(
    groups: BrokerGroups,
    connection: Connection,
    wanted: Copy,
    routes: dict[str, v2.QueryRouteResponse | CliError],
) -> Callable[[], v1.SendOnceResponse] | bool:
    """Send a copy; return what waits for the answer, or False if there is one. Raises CliError."""
    draft = wanted.draft
    if wanted.topic not in routes:
        try:
            routes[wanted.topic] = route_of(connection, draft)
        except CliError as error:
            routes[wanted.topic] = error
    route = routes[wanted.topic]
    if isinstance(route, CliError):
        raise route
    queues = route.message_queues
    if v2.DELAY in queues[0].accept_message_types:
        draft = replace(draft, delay_ms=0)
    if v2.LITE not in queues[0].accept_message_types:
        draft = replace(draft, lite_topic=None)
    writable = {queue.broker.name for queue in queues if queue.permission in _WRITABLE}
    broker = wanted.broker
    if broker not in writable:
        # Its group takes no copies any more: those that it has are in its index.
        if earlier(groups, wanted) is not None:
            return False
        broker = min(writable, default="")
    named = {**draft.properties, SENDER_PROPERTY: _sender(connection)}
    draft = replace(draft, properties=named)
    message = message_of(draft, message_type(draft, route), wanted.message_id)
    request = v1.SendOnceRequest(broker=broker, message=message)
    return connection.start(paths.SEND_ONCE, request, v1.SendOnceResponse)


def _sender(connection: Connection) -> str:
    """Return who sends: the user of the cluster, or else of this machine."""
    if connection.user:
        return connection.user
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container without an entry for its user
        return socket.gethostname()


def _outcome(result: Callable[[], v1.SendOnceResponse]) -> CliError | bool:
    try:
        return not result().repeated
    except CliError as error:
        return error


def _draft(letter: Message, topic: str) -> Draft:
    given = letter.properties.items()
    return Draft(
        topic,
        letter.body,
        letter.keys,
        letter.tag or None,
        {name: value for name, value in given if name not in FORBIDDEN_PROPERTIES and value},
        group=letter.group or None,
        priority=letter.priority,
        lite_topic=letter.lite_topic or None,
    )
