"""Searches for messages by key, id, tag, time or offset.

A search is bounded: at most `browse.SCANNED_MAX` messages are read, a page ends once
`SEARCHED_BYTES` of bodies were compared, `ROWS` are shown, and a link goes on where the page ends.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from ..operations import words
from ..operations.broker_groups import answers
from ..proto import paths, v1, v2
from . import bodies, browse
from .browse import Queue
from .cluster import Cluster, problems
from .inputs import bad, moment_ms, whole
from .language import said

#: Messages of a page: a screen, and with the largest bodies one answer of a broker.
ROWS = 32
#: Messages of an export, and bytes of its bodies: it is made in memory.
EXPORTED_MAX, EXPORTED_BYTES = 500, 16 << 20
#: Bytes of decompressed bodies that a page compares with a text: about half a second. A compressed
#: body of 4 KiB may become 4 MiB.
SEARCHED_BYTES = 64 << 20
#: Ways to search, and their titles.
WAYS = {
    "time": said("Time"),
    "key": said("Key"),
    "id": said("Message id"),
    "tag": said("Tag"),
    "offset": said("Queue and offset"),
}
#: The order of a search by time that is not the default.
NEWEST = "newest"
Located = tuple[Queue, v2.Message]


@dataclass(slots=True)
class Found:
    """The messages of a search."""

    messages: list[Located] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: Parameters of the next and the previous page; empty: none.
    following: dict[str, object] = field(default_factory=dict)
    previous: dict[str, object] = field(default_factory=dict)


def contains(message: v2.Message, wanted: str) -> tuple[bool, int]:
    """Return whether a text is in the keys, tag, properties, id or text body of a message, and the
    bytes of its body that were compared."""
    if not wanted:
        return True, 0
    low, properties = wanted.lower(), message.system_properties
    texts = [properties.tag, properties.message_id, properties.message_group, *properties.keys]
    texts += [f"{name}={value}" for name, value in message.user_properties.items()]
    if any(low in text.lower() for text in texts):
        return True, 0
    body = bodies.plain(message)
    is_damaged = properties.body_encoding == v2.GZIP and body == message.body
    # Most of a damaged body may have been decompressed before its end was found to be missing.
    compared = bodies.INFLATED_MAX if is_damaged else len(body)
    return low in body.decode("utf-8", "replace").lower(), compared


def take(
    stream: Iterable[Located],
    wanted: str,
    limit_ms: int,
    room: tuple[int, int],
    *,
    newest_first: bool = False,
) -> tuple[list[Located], dict[Queue, int], bool]:
    """Return messages that match, the offsets at which the next page begins, and whether more may
    follow.

    `limit_ms` is the time of the last ones, 0: there is none; `room` has the messages to return and
    the bytes of their bodies.
    """
    found: list[Located] = []
    behind: dict[Queue, int] = {}
    rows, size = room
    searched = 0
    for scanned, (queue, message) in enumerate(stream, 1):
        stored_ms, step = browse.stored_ms(message), 0 if newest_first else 1
        if limit_ms and (stored_ms < limit_ms if newest_first else stored_ms > limit_ms):
            return found, behind, False
        behind[queue] = browse.offset_of(message) + step
        is_wanted, compared = contains(message, wanted)
        searched += compared
        if is_wanted:
            found.append((queue, message))
            size -= len(message.body)
        full = len(found) == rows or size <= 0
        if full or searched >= SEARCHED_BYTES or scanned == browse.SCANNED_MAX:
            return found, behind, True
    return found, behind, False


class MessageSearch:
    """Finds messages by the parameters of a URL."""

    def __init__(self, cluster: Cluster, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._wall_ms = wall_ms

    def find(self, query: Mapping[str, str], rows: int = ROWS) -> Found:
        """Return the messages of a search. Raises CliError for a bad parameter."""
        way, value = query.get("by", "time"), query.get("value", "").strip()
        topic = query.get("topic", "").strip()
        if way not in WAYS:
            raise bad("Search by one of: {}.", ", ".join(WAYS))
        if not topic and way != "id":
            raise bad("Give the topic.")
        if way == "time":
            return self._by_time(topic, query, rows)
        if way == "offset":
            return self._by_offset(topic, query, rows)
        if not value:
            raise bad("Give a value to search for: {}.", WAYS[way])
        return self._by_index(way, topic, value, query, rows)

    def _by_index(
        self, way: str, topic: str, value: str, query: Mapping[str, str], rows: int
    ) -> Found:
        request = v1.QueryMessagesRequest(topic=topic, count=rows)
        setattr(request, "message_id" if way == "id" else way, value)
        if way != "id":
            request.begin_ms, request.end_ms = self._times(query)
        outcomes = self._cluster.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
        found = Found(notes=problems(outcomes))
        for name, answer in answers(outcomes):
            for each in answer.messages:
                try:
                    message = v2.Message.FromString(each.message)
                except DecodeError:  # properties that are not text
                    found.notes.append(said("The message {} cannot be shown.", each.offset_id))
                    continue
                queue = Queue(message.topic.name, name, message.system_properties.queue_id)
                found.messages.append((queue, message))
            where = f"{name}: " if name else ""
            if answer.left_out:
                found.notes.append(
                    said("{}older messages are left out; give an earlier end.", where)
                )
            if answer.index_behind:
                behind = words.size(answer.index_behind)
                found.notes.append(
                    said("{}the index is {} behind; messages may be missing.", where, behind)
                )
        found.messages.sort(key=lambda one: -browse.stored_ms(one[1]))
        if len(found.messages) >= rows:
            found.notes.append(
                said("Only the newest {} are shown; give an earlier end for others.", rows)
            )
        found.messages = found.messages[:rows]
        return found

    def _times(self, query: Mapping[str, str]) -> tuple[int, int]:
        now_ms = self._wall_ms()
        begin, end = (query.get(name, "").strip() for name in ("begin", "end"))
        return (
            moment_ms(begin, now_ms) if begin else 0,
            moment_ms(end, now_ms) if end else 0,
        )

    def _by_offset(self, topic: str, query: Mapping[str, str], rows: int) -> Found:
        queue = queue_of(topic, query)
        offset = whole(query.get("offset", "").strip() or "0", said("The offset"))
        least, end = browse.bounds_of(self._cluster, queue)
        offset = max(offset, least)
        batch = browse.pull(self._cluster.connection, queue, offset, end, min(rows, ROWS))
        found = Found([(queue, message) for message in batch.messages])
        if found.messages and batch.next_offset < end:
            found.following = {"offset": batch.next_offset}
        if offset > least:
            found.previous = {"offset": max(least, min(offset, end) - ROWS)}
        found.notes.append(
            said("The queue has the offsets {} to {}.", words.number(least), words.number(end - 1))
        )
        return found

    def _by_time(self, topic: str, query: Mapping[str, str], rows: int) -> Found:
        begin_ms, end_ms = self._times(query)
        status = browse.queues_of(self._cluster, topic)
        queues = sorted({Queue(topic, one.broker, one.queue_id) for one in status})
        found = Found()
        if len(queues) > browse.QUEUES_MAX:
            text = said("Only the first {} of {} queues are read.", browse.QUEUES_MAX, len(queues))
            found.notes.append(text)
            queues = queues[: browse.QUEUES_MAX]
        newest_first = query.get("order") == NEWEST
        known = {Queue(topic, one.broker, one.queue_id): one for one in status}
        firsts = {queue: known[queue].min_offset for queue in queues}
        ends = {queue: known[queue].max_offset for queue in queues}
        since_ms, edges = (end_ms and end_ms + 1, ends) if newest_first else (begin_ms, firsts)
        starts = self._starts(queues, query.get("at", ""), since_ms, edges)
        starts = {queue: min(offset, ends[queue]) for queue, offset in starts.items()}
        connection = self._cluster.connection
        if newest_first:
            stream = browse.newest_first(
                starts, firsts, lambda queue, at, end: browse.pull(connection, queue, at, end)
            )
        else:
            stream = browse.in_time_order(
                queues,
                starts.__getitem__,
                lambda queue, offset: browse.pull(connection, queue, offset, ends[queue]),
            )
        room = rows, EXPORTED_BYTES
        wanted = query.get("contains", "").strip()[:200]
        limit_ms = begin_ms if newest_first else end_ms
        found.messages, behind, more = take(
            stream, wanted, limit_ms, room, newest_first=newest_first
        )
        if more:
            at = ",".join(str(behind.get(queue, starts[queue])) for queue in queues)
            found.following = {"at": at}
        return found

    def _starts(
        self, queues: list[Queue], at: str, at_ms: int, edges: dict[Queue, int]
    ) -> dict[Queue, int]:
        """Return where to begin in each queue: where a page ended, by time, or at its edge."""
        if at:
            offsets = [whole(text, said("The position")) for text in at.split(",")]
            if len(offsets) != len(queues):
                raise bad("The topic has other queues now: search again.")
            return dict(zip(queues, offsets, strict=True))
        return browse.offsets_at(self._cluster.connection, queues, at_ms) if at_ms else edges


def queue_of(topic: str, query: Mapping[str, str]) -> Queue:
    """Return the queue that a URL names."""
    number = whole(query.get("queue", "").strip() or "0", said("The queue"), most=1_023)
    return Queue(topic, query.get("broker", "").strip(), number)
