"""Story of one message as a timeline: sent, stored, replicated, delivered, retried, acknowledged.

Sources: the message itself, the positions of the replicas, the state of each consumer group with
its messages in flight, and, with `traceTopicEnable`, the trace records of the broker, which have
the time of every delivery and acknowledgement. Without them only the offset of a group is known: if
it is past the message, a consumer acknowledged it, a filter left it out, or a reset skipped it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..client.message import Message
from ..operations import words
from ..operations.broker_groups import BrokerGroups
from ..operations.errors import CliError
from ..operations.message_states import PAST, StoredMessage, states
from ..proto import paths, v1, v2
from .cluster import Cluster
from .language import counted, said
from .overview import BAD, OK, WARNING
from .views import link, quoted, time_in_zone

#: Consumer groups whose state is read: each costs some calls.
GROUPS_MAX = 20
# Trace messages that are read: each has the records of a second.
_TRACES_MAX = 32
_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_TRACE_ID_AT, _TRACE_ID_DIGITS = 1, 32
#: Sorts events without a time of their own behind all others.
_LAST = 1 << 62


@dataclass(frozen=True, slots=True)
class Event:
    """One step; `at_ms` is 0 if its time is not known."""

    at_ms: int
    title: str
    detail: str = ""
    level: str = ""
    href: str = ""
    #: Place among the others, if it has no time.
    order_ms: int = 0


@dataclass(frozen=True, slots=True)
class Traced:
    """One trace record of a delivery or an acknowledgement."""

    at_ms: int
    group: str
    #: Delivered: the number of earlier attempts; acknowledged: None.
    retries: int | None
    took_ms: int = 0


@dataclass(slots=True)
class Story:
    """What is known of a message: the state in each group, the timeline, what is missing."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def trace_id(properties: Iterable[tuple[str, str]]) -> str:
    """Return the trace id of the W3C property `traceparent`; "" without a valid one."""
    parts = dict(properties).get("traceparent", "").split("-")
    found = parts[_TRACE_ID_AT] if len(parts) > _TRACE_ID_AT else ""
    is_hex = all(c in "0123456789abcdef" for c in found)
    return found if len(found) == _TRACE_ID_DIGITS and is_hex else ""


def traced(bodies: Iterable[bytes], message_id: str) -> list[Traced]:
    """Return the deliveries and acknowledgements of a message in trace messages, in order."""
    found = []
    for row in (row for body in bodies for row in body.decode("utf-8", "replace").split("\x02")):
        cells = row.split("\x01")
        try:
            if cells[0] == "SubBefore" and cells[5] == message_id:
                found.append(Traced(int(cells[1]), cells[3], int(cells[6])))
            elif cells[0] == "SubAfter" and cells[2] == message_id:
                found.append(Traced(int(cells[7]), cells[8], None, int(cells[3])))
        except (IndexError, ValueError):
            continue  # a record of another version or of another program
    return sorted(found, key=lambda one: one.at_ms)


def records_of(groups: BrokerGroups, message_id: str) -> list[Traced]:
    """Return the trace records of a message; [] if the brokers write none."""
    request = v1.QueryMessagesRequest(topic=_TRACE_TOPIC, key=message_id, count=_TRACES_MAX)
    if not message_id:
        return []
    outcomes = groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
    found = [each for one in outcomes if one.answer for each in one.answer.messages]
    return traced((v2.Message.FromString(one.message).body for one in found), message_id)


def replicated(members: Sequence[v1.MemberStatus], end: int, stored_ms: int) -> Event:
    """Return which replicas have the log up to the end of the record."""
    having = [one for one in members if one.log_end >= end]
    names = ", ".join(
        said(
            "broker {} ({})",
            one.replica.broker_id,
            said("leader") if one.role == v1.LEADER else said("follower"),
        )
        for one in having
    )
    confirmed = any(one.confirm >= end for one in members)
    missing = [one for one in members if one.in_sync and one.log_end < end]
    level = OK if confirmed and not missing else WARNING
    text = said(
        "{} of {}: {}", len(having), counted(len(members), "replica"), names or said("none")
    )
    if not confirmed:
        text = said("{}; not confirmed by the group yet", text)
    return Event(0, said("Replicated"), text, level, order_ms=stored_ms)


def is_acknowledged(records: Iterable[Traced]) -> bool:
    """Return whether trace records have an acknowledgement."""
    return any(one.retries is None for one in records)


def of_group(
    row: dict[str, Any], held: Sequence[v1.GroupDelivery], records: Sequence[Traced]
) -> list[Event]:
    """Return the events in one consumer group."""
    group = row["group"]
    href = f"/groups/{quoted(group)}"
    events = []
    for one in records:
        if one.retries is None:
            text = said("after {}", words.span(one.took_ms))
            events.append(Event(one.at_ms, said("Acknowledged by {}", group), text, OK, href))
        else:
            text = said("attempt {}", one.retries + 1)
            events.append(Event(one.at_ms, said("Delivered to {}", group), text, "", href))
    for each in held:
        text = said(
            "attempt {} of its record; invisible to other consumers until {}",
            each.attempt,
            time_in_zone(each.visible_ms),
        )
        if each.client_id:
            text = said("{}, held by {}", text, each.client_id)
        events.append(
            Event(each.delivered_ms, said("In flight in {}", group), text, "", href, _LAST)
        )
    state, at_ms = row["state"], row["at_ms"] or 0
    attempts = said("after {}", counted(row["attempts"], "attempt")) if row["attempts"] else ""
    if state == "dead letter":
        text = said("not acknowledged {}", attempts) if attempts else said("not acknowledged")
        letters = f"/dead-letters/{quoted(group)}"
        events.append(Event(at_ms, said("Dead letter of {}", group), text, BAD, letters))
    elif state == "retrying":
        events.append(Event(at_ms, said("Stored again for {}", group), attempts, WARNING, href))
    elif state == "consumed after a retry":
        events.append(Event(at_ms, said("Stored again for {}", group), attempts, "", href))
        events.append(
            Event(0, said("Consumed by {}", group), said("its offset is past the copy"), OK, href)
        )
    elif state == PAST and not is_acknowledged(records):
        text = said(
            "it is {}; it is not known whether a consumer acknowledged the message, "
            "its filter left it out, or a reset skipped it",
            words.number(row["consumer_offset"]),
        )
        events.append(Event(0, said("The offset of {} is past it", group), text, "", href))
    elif state.startswith(("waiting", "in flight")) and not held and not records:
        events.append(Event(0, said("Waits for {}", group), said("not delivered yet"), "", href))
    return events


def timeline(events: Iterable[Event]) -> list[Event]:
    """Return the events in order of time; those without one at their place."""
    return sorted(events, key=lambda one: one.at_ms or one.order_ms or _LAST)


class Stories:
    """Reads the story of a message from the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def read(
        self,
        found: StoredMessage,
        groups: Sequence[str],
        located: v1.FoundMessage | None,
    ) -> Story:
        """Return what the cluster tells; what it refuses or lacks is a note."""
        story, message = Story(), found.message
        story.events = sent_and_stored(message, found.broker, located)
        broker = self._cluster.groups((found.broker,) if found.broker else None)
        try:
            story.rows = states(self._cluster.groups(), found, groups[:GROUPS_MAX])
            if located is not None:
                story.events.append(self._replicated(broker, located, message.stored_ms))
            records = records_of(broker, message.message_id)
            for row in story.rows:
                held = self._held(broker, row["group"], message)
                own = [one for one in records if one.group == row["group"]]
                story.events += of_group(row, held, own)
                if row["state"] == PAST and is_acknowledged(own):
                    row["state"] = "acknowledged"
        except CliError as error:
            story.notes.append(str(error))
        if len(groups) > GROUPS_MAX:
            story.notes.append(said("{} more groups consume the topic.", len(groups) - GROUPS_MAX))
        story.events = timeline(story.events)
        return story

    def _replicated(self, broker: BrokerGroups, located: v1.FoundMessage, stored_ms: int) -> Event:
        (outcome,) = broker.each(
            paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
        )[:1]
        if outcome.answer is None:
            raise outcome.error or CliError("no answer")
        end = located.physical_offset + located.size
        return replicated(outcome.answer.members, end, stored_ms)

    def _held(self, broker: BrokerGroups, group: str, message: Message) -> list[v1.GroupDelivery]:
        request = v1.DescribeGroupRequest(
            name=group,
            topic=message.topic,
            deliveries=GROUPS_MAX,
            queue_id=message.queue_id,
            offset=message.offset,
        )
        outcomes = broker.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
        found = [each for one in outcomes if one.answer for each in one.answer.deliveries]
        return [one for one in found if one.topic == message.topic]


def sent_and_stored(message: Message, broker: str, located: v1.FoundMessage | None) -> list[Event]:
    """Return the first events, from the message itself."""
    where = said("queue {} at offset {}", message.queue_id, message.offset)
    if broker:
        where = said("{} of {}", where, broker)
    if located is not None:
        where = said("{}, {} in the log", where, words.number(located.physical_offset))
    events = [
        Event(message.born_ms, said("Sent by the producer"), ""),
        Event(
            message.stored_ms, said("Stored"), where, OK, link("/topics/" + quoted(message.topic))
        ),
    ]
    if message.deliver_ms:
        events.append(
            Event(message.deliver_ms, said("Due"), said("a delayed message waits until then"))
        )
    return events
