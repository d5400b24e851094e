"""The search of every page: topics, groups, clients, and messages by id, key or text.

A name that is that of one object leads to its page. Messages are found by key in the index, and by
their words among the newest of each topic; words may be in key, tag, properties or body, in any
order. The reads of a search are bounded.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from ...operations.broker_groups import answers
from ...operations.errors import CliError
from ...proto import paths, v1, v2
from .. import bodies, browse
from ..browse import Queue
from ..cluster import Cluster
from ..language import said
from ..search import ROWS, Located
from ..views import Views, link, quoted
from .clients import client_rows
from .groups import all_groups
from .messages import message_row

_WANTED_MAX = 200
_NAMES_SHOWN = 20
#: Topics whose messages are looked at, those written last first; each costs some calls.
_TOPICS_MAX = 20
#: Of a topic that has more queues, the first are read.
_QUEUES_MAX = 16
#: Newest messages of a topic that are compared with the words.
_NEWEST = 256
_WORD = re.compile(r"\w+")


def words_match(words: Sequence[str], message: v2.Message) -> bool:
    """Return whether a message has all words in keys, tag, properties or text body.

    A number must be a whole word: 17 is not found in 170.
    """
    properties = message.system_properties
    texts = [properties.tag, *properties.keys]
    texts += [f"{name} {value}" for name, value in message.user_properties.items()]
    texts.append(bodies.plain(message).decode("utf-8", "replace"))
    text = " ".join(texts).lower()
    parts = set(re.findall(r"[^\W\d_]+|\d+", text))
    return all(word in parts if word.isdigit() else word in text for word in words)


class SearchPage:
    """The page of what a search of everything finds."""

    def __init__(self, cluster: Cluster, views: Views) -> None:
        self._cluster = cluster
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the route of this page."""
        return [self._views.show("/search", self.search)]

    def search(self, request: Request) -> Response:
        """Show what has the words of `q`, or lead to the object of this name."""
        wanted = request.query_params.get("q", "").strip()[:_WANTED_MAX]
        found: dict[str, list[str]] = {"topics": [], "groups": [], "clients": []}
        rows: list[dict[str, Any]] = []
        if wanted:
            topics, groups = self._topics(), self._groups()
            exact = [f"/topics/{quoted(name)}" for name in topics if name == wanted]
            exact += [f"/groups/{quoted(name)}" for name in groups if name == wanted]
            if len(exact) == 1:
                return RedirectResponse(request.scope.get("root_path", "") + exact[0], 303)
            low = wanted.lower()
            found["topics"] = [name for name in sorted(topics) if low in name.lower()]
            found["groups"] = [name for name in sorted(groups) if low in name.lower()]
            found["clients"] = self._clients(low)
            newest = sorted(topics, key=lambda name: -topics[name])[:_TOPICS_MAX]
            located = {
                (queue, browse.offset_of(message)): (queue, message)
                for queue, message in self._messages(newest, wanted)
            }
            by_time = sorted(located.values(), key=lambda one: -browse.stored_ms(one[1]))
            rows = [message_row(one) for one in by_time[:ROWS]]
        return self._views.page(
            request,
            "search.html",
            title=said("Search"),
            searched=wanted,
            names={kind: names[:_NAMES_SHOWN] for kind, names in found.items()},
            links={
                "topics": lambda name: f"/topics/{quoted(name)}",
                "groups": lambda name: f"/groups/{quoted(name)}",
                "clients": lambda name: link("/client", id=name),
            },
            rows=rows,
            newest=_NEWEST,
            topics_max=_TOPICS_MAX,
        )

    def _topics(self) -> dict[str, int]:
        """Return the topics of users with the time of their last message."""
        request = v1.ListTopicsRequest(with_traffic=True)
        outcomes = self._cluster.pages(paths.LIST_TOPICS, request, v1.ListTopicsResponse, "topics")
        found: dict[str, int] = {}
        for page in (page for _, pages in answers(outcomes) for page in pages):
            for index, config in enumerate(page.topics):
                # A broker of an earlier version tells no times.
                last = page.traffic[index].last_store_ms if page.traffic else 1
                found[config.name] = max(found.get(config.name, 0), last)
        return found

    def _groups(self) -> list[str]:
        outcomes = all_groups(self._cluster, system=False)
        pages = (page for one in outcomes for page in one.answer or ())
        return sorted({config.name for page in pages for config in page.groups})

    def _clients(self, low: str) -> list[str]:
        outcomes = self._cluster.each(
            paths.LIST_CLIENTS, v1.ListClientsRequest(), v1.ListClientsResponse
        )
        statuses = [status for one in outcomes if one.answer for status in one.answer.clients]
        rows = client_rows(statuses)
        return [row.client.client_id for row in rows if low in row.client.client_id.lower()]

    def _messages(self, topics: Sequence[str], wanted: str) -> Iterator[Located]:
        """Yield messages of topics by key or id, and by words among the newest."""
        words = [word.lower() for word in _WORD.findall(wanted)]
        for topic in topics:
            try:
                yield from self._indexed(topic, wanted)
                yield from (
                    (queue, message)
                    for queue, message in self._newest(topic)
                    if words and words_match(words, message)
                )
            except CliError:  # the user may lack the right to read the topic
                continue

    def _indexed(self, topic: str, wanted: str) -> Iterator[Located]:
        for field in ("key", "message_id"):
            request = v1.QueryMessagesRequest(topic=topic, count=ROWS)
            setattr(request, field, wanted)
            outcomes = self._cluster.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
            for one in outcomes:
                for each in one.answer.messages if one.answer is not None else ():
                    try:
                        message = v2.Message.FromString(each.message)
                    except DecodeError:  # properties that are not text
                        continue
                    number = message.system_properties.queue_id
                    yield Queue(topic, one.broker, number), message

    def _newest(self, topic: str) -> Iterator[Located]:
        queues = browse.queues_of(self._cluster, topic)[:_QUEUES_MAX]
        share = max(1, _NEWEST // max(1, len(queues)))
        connection = self._cluster.connection
        for one in queues:
            queue = Queue(topic, one.broker, one.queue_id)
            offset = max(one.min_offset, one.max_offset - share)
            while offset < one.max_offset:
                batch = browse.pull(connection, queue, offset, one.max_offset)
                yield from ((queue, message) for message in batch.messages)
                if batch.next_offset <= offset:
                    break
                offset = batch.next_offset
