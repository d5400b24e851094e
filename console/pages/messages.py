"""Pages of messages: search with export, one message with its body, sending a copy."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...client.message import read_message
from ...operations import words
from ...operations.errors import CliError, Exit
from ...operations.message_states import StoredMessage
from ...operations.sending import Draft, send_over
from ...proto import paths, v1, v2
from ...store.format.property_names import FORBIDDEN_PROPERTIES
from .. import bodies, browse
from ..body_types import KEPT_S, TOO_LARGE, UPLOAD_BYTES_MAX, BodyTypes, Offered
from ..browse import Queue
from ..cluster import Cluster
from ..descriptors import VALUES_MAX, Decoded
from ..inputs import bad
from ..language import said
from ..search import EXPORTED_MAX, NEWEST, ROWS, WAYS, Found, Located, MessageSearch, queue_of
from ..story import Stories, Story, trace_id
from ..views import Form, Views, link, moved, quoted
from .topics import consumers_of, draft_of, kind_of, lines

_PROTOBUF = "protobuf"
# Names the descriptor set of a browser; the same for all clusters of the console.
_COOKIE = "cometmq-console-types"
# Has the form in which this browser showed the last body, and its last protobuf type.
_FORM_COOKIE = "cometmq-console-body"
#: Topics that the form offers.
_OFFERED_MAX = 500
_KEPT = ("topic", "by", "value", "order", "begin", "end", "contains", "broker", "queue")


def message_row(located: Located) -> dict[str, Any]:
    """Return what a list shows of a message."""
    queue, message = located
    properties = message.system_properties
    return {
        "queue": queue,
        "offset": properties.queue_offset,
        "id": properties.message_id,
        "tag": properties.tag,
        "key_text": " ".join(properties.keys),
        "stored_ms": browse.stored_ms(message),
        "preview": bodies.preview(message),
        "size": len(message.body),
        "href": message_link("/message", queue, properties.queue_offset),
        "copy_href": message_link("/message/copy", queue, properties.queue_offset),
    }


def message_link(path: str, queue: Queue, offset: int, **more: str) -> str:
    """Return the URL of a page about one message."""
    place = {"topic": queue.topic, "broker": queue.broker, "queue": queue.queue_id}
    return link(path, **place, offset=offset, **more)


def copy_of(message: v2.Message, topic: str, kind: str) -> Draft:
    """Return a message to send to a topic of a type, with the content of a stored one."""
    properties = message.system_properties
    return Draft(
        topic,
        bodies.plain(message),
        tuple(properties.keys),
        properties.tag or None,
        user_properties(message),
        group=properties.message_group or None if kind in ("fifo", "mixed") else None,
        delay_ms=0 if kind == "delay" else None,
        priority=properties.priority if kind == "priority" else None,
        lite_topic=properties.lite_topic or None if kind == "lite" else None,
    )


def user_properties(message: v2.Message) -> dict[str, str]:
    """Return the properties that a client may set."""
    given = message.user_properties.items()
    return {name: value for name, value in given if name not in FORBIDDEN_PROPERTIES}


@dataclass(frozen=True, slots=True)
class BodyAs:
    """A body in one form; as protobuf, with the types that are offered."""

    shown: bodies.Shown
    #: What is not shown, and why.
    note: str = ""
    type_name: str = ""
    offered: Offered | None = None
    #: Whether the body is shown, and not why it cannot be.
    is_shown: bool = True


def not_shown(decoded: Decoded) -> list[str]:
    """Return sentences about what the text of a protobuf body does not have."""
    found = []
    if decoded.has_more_values:
        shown = said("Only the first {} values of the body are shown", words.number(VALUES_MAX))
        found.append(said("{}, in the order of the field numbers. The download has all.", shown))
    if decoded.unknown_bytes:
        found.append(
            said("The type has no field for {} of the body.", words.size(decoded.unknown_bytes))
        )
    return found


class MessagePages:
    """The section of messages."""

    def __init__(
        self, cluster: Cluster, views: Views, search: MessageSearch, body_types: BodyTypes
    ) -> None:
        """`body_types` has the message types as which a body can be shown."""
        self._body_types = body_types
        self._cluster = cluster
        self._views = views
        self._search = search

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/messages", self.messages),
            views.show("/messages/export", self.export),
            views.show("/message", self.message),
            views.show("/message/body", self.body),
            views.show("/message/copy", self.edit),
            views.act("/message/copy", self.send),
            views.act("/message/types", self.upload, is_own=True, too_large=TOO_LARGE),
            views.act("/message/types/forget", self.forget, is_own=True),
        ]

    def messages(self, request: Request) -> Response:
        """Show the form, and what the search of the URL finds."""
        query = {"order": NEWEST, **request.query_params}
        found, error = Found(), ""
        # A tab leads to an empty form, and keeps the topic.
        has_text = query.get("by") in ("key", "id", "tag")
        asked = "value" in query if has_text else bool(query.get("topic") or query.get("value"))
        if asked:
            try:
                found = self._search.find(query)
            except CliError as refused:
                error = str(refused)
        kept = {name: query.get(name, "") for name in _KEPT}
        return self._views.page(
            request,
            "messages.html",
            status=400 if error else 200,
            title=said("Messages"),
            query={**kept, "by": query.get("by", "time"), "offset": query.get("offset", "")},
            can_follow=query["order"] == NEWEST and not (query.get("at") or query.get("end")),
            is_followed=bool(query.get("follow")),
            ways=WAYS,
            topics=self._topics(),
            asked=asked,
            error=error,
            rows=[message_row(one) for one in found.messages],
            notes=found.notes,
            following=link("/messages", **kept, **found.following) if found.following else "",
            previous=link("/messages", **kept, **found.previous) if found.previous else "",
            exports={
                form: link("/messages/export", **{**query, "format": form})
                for form in ("json", "csv")
            },
            rows_max=ROWS,
            exported_max=EXPORTED_MAX,
        )

    def _topics(self) -> list[str]:
        """Return the names that the form offers; [] without the right to list them."""
        request = v1.ListTopicsRequest(limit=_OFFERED_MAX)
        outcomes = self._cluster.each(paths.LIST_TOPICS, request, v1.ListTopicsResponse)
        found = (one.answer.topics for one in outcomes if one.answer is not None)
        return sorted({config.name for topics in found for config in topics})

    def export(self, request: Request) -> Response:
        """Return the messages of a search as a file, with their bodies."""
        query = request.query_params
        found = self._search.find(query, EXPORTED_MAX)
        documents = [bodies.document(message, queue.broker) for queue, message in found.messages]
        if query.get("format") == "csv":
            return _file(bodies.as_csv(documents).encode(), "messages.csv", "text/csv")
        return _file(bodies.as_json(documents).encode(), "messages.json", "application/json")

    def _read(self, query: Mapping[str, str]) -> tuple[Queue, int, v2.Message]:
        topic = query.get("topic", "").strip()
        if not topic:
            raise bad("Give the topic.")
        queue = queue_of(topic, query)
        text = query.get("offset", "").strip()
        if not text.isdecimal() or len(text) > 18:
            raise bad("Give the offset.")
        return queue, int(text), browse.message_at(self._cluster, queue, int(text))

    def message(self, request: Request) -> Response:
        """Show one message."""
        return self._message(request, request.query_params)

    def upload(self, request: Request, form: Form) -> Response:
        """Keep a descriptor set for this browser, and show the message with the list of types."""
        file = form.files.get("file", UploadFile(io.BytesIO()))
        previous = request.cookies.get(_COOKIE, "")
        data = file.file.read()
        file.file.close()  # a second copy, for as long as the set waits and is examined
        try:
            key = self._body_types.keep(previous, file.filename or "", data)
        except CliError as refused:
            return self._message(request, {**form, "as": _PROTOBUF}, refused)
        found = self._to_types(form)
        # Not Secure: the console serves HTTP, also behind a proxy with TLS.
        found.set_cookie(_COOKIE, key, httponly=True, samesite="lax")
        return found

    def forget(self, request: Request, form: Form) -> Response:
        """Forget the descriptor set of this browser."""
        self._body_types.forget(request.cookies.get(_COOKIE, ""))
        found = self._to_types(form)
        found.delete_cookie(_COOKIE, httponly=True, samesite="lax")
        return found

    def _to_types(self, form: Form) -> Response:
        place = {name: form.text(name) for name in ("topic", "broker", "queue", "offset")}
        return moved("/message", **place, **{"as": _PROTOBUF})

    def _message(
        self, request: Request, query: Mapping[str, str], refused: CliError | None = None
    ) -> Response:
        """Show one message; `refused` tells why an uploaded descriptor set is not used."""
        queue, offset, message = self._read(query)
        body = bodies.plain(message)
        body_as = self._body_as(request.cookies, query, body)
        status = 200 if refused is None else 400 if refused.code == Exit.USAGE else 503
        located = self._located(queue, offset, message.system_properties.message_id)
        origin = message.system_properties.dead_letter_queue
        page = self._views.page(
            request,
            "message.html",
            status=status,
            title=said("Message {} of {}", offset, queue.topic),
            queue=queue,
            offset=offset,
            properties=message.system_properties,
            born_ms=message.system_properties.born_timestamp.ToMilliseconds(),
            stored_ms=browse.stored_ms(message),
            delivery_ms=message.system_properties.delivery_timestamp.ToMilliseconds(),
            user_properties=sorted(message.user_properties.items()),
            origin=origin if origin.topic else None,
            size=len(message.body),
            is_compressed=len(body) != len(message.body),
            body_as=body_as,
            upload_refusal=str(refused or ""),
            upload_bytes_max=UPLOAD_BYTES_MAX,
            too_large=TOO_LARGE,
            kept_ms=KEPT_S * 1_000,
            forms=[
                (form, message_link("/message", queue, offset, **{"as": form}))
                for form in (*bodies.forms(body), _PROTOBUF)
            ],
            body_href=message_link("/message/body", queue, offset),
            copy_href=message_link("/message/copy", queue, offset),
            around_href=link(
                "/messages",
                topic=queue.topic,
                by="offset",
                broker=queue.broker,
                queue=queue.queue_id,
                offset=max(0, offset - ROWS // 2),
            ),
            located=located,
            story=self._story(queue, message, located),
            trace_id=trace_id(message.user_properties.items()),
        )
        if query.get("as") == body_as.shown.kind and body_as.is_shown:
            chosen = f"{body_as.shown.kind}:{quoted(body_as.type_name)}"
            page.set_cookie(_FORM_COOKIE, chosen, httponly=True, samesite="lax")
        return page

    def _body_as(self, cookies: Mapping[str, str], query: Mapping[str, str], body: bytes) -> BodyAs:
        """Return a body in the form of the URL; without one, in the one that was chosen last."""
        last, _, last_type = cookies.get(_FORM_COOKIE, "").partition(":")
        form, name = query.get("as", "") or last, query.get("type", "") or unquote(last_type)
        if form != _PROTOBUF:
            return BodyAs(bodies.shown(body, form), type_name=name)
        found = self._as_protobuf(cookies.get(_COOKIE, ""), name, body)
        if query.get("as") or found.is_shown:
            return found
        note = said("This body is not shown as {}, the last choice. {}", name, found.note)
        return BodyAs(bodies.shown(body, ""), note, name)

    def _as_protobuf(self, key: str, name: str, body: bytes) -> BodyAs:
        """Return a body as the protobuf type `name`, for the browser with this cookie."""
        offered = self._body_types.offered(key, name, body)
        shown, notes = bodies.Shown(_PROTOBUF, ""), [offered.refusal]
        if found := offered.decoded:
            shown = bodies.Shown(_PROTOBUF, found.text, found.is_cut)
            notes = not_shown(found)
        return BodyAs(shown, " ".join(notes), name, offered, is_shown=found is not None)

    def _located(self, queue: Queue, offset: int, message_id: str) -> v1.FoundMessage | None:
        """Return the place in the log; None without the right to ask, or without an id."""
        request = v1.QueryMessagesRequest(topic=queue.topic, unique_key=message_id)
        if not message_id:
            return None
        among = (queue.broker,) if queue.broker in self._cluster.names() else None
        outcomes = self._cluster.groups(among).each(
            paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse
        )
        for found in (found for one in outcomes if one.answer for found in one.answer.messages):
            properties = v2.Message.FromString(found.message).system_properties
            if (properties.queue_id, properties.queue_offset) == (queue.queue_id, offset):
                return found
        return None

    def _story(self, queue: Queue, message: v2.Message, located: v1.FoundMessage | None) -> Story:
        names = self._cluster.names()
        broker = queue.broker if queue.broker in names else names[0]
        found = StoredMessage(broker, read_message(message, broker))
        consumers = consumers_of(self._cluster, queue.topic)
        return Stories(self._cluster).read(found, consumers, located)

    def body(self, request: Request) -> Response:
        """Return the body as a file."""
        queue, offset, message = self._read(request.query_params)
        name = f"{queue.topic}-{queue.queue_id}-{offset}.bin"
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        return _file(bodies.plain(message), safe, "application/octet-stream")

    def edit(self, request: Request) -> Response:
        """Show the form that sends a copy."""
        queue, offset, message = self._read(request.query_params)
        text = bodies.text_of(bodies.plain(message))
        is_text = text is not None and len(text) <= bodies.SHOWN_MAX
        origin = message.system_properties.dead_letter_queue.topic
        draft = copy_of(
            message, origin or queue.topic, kind_of(self._cluster, origin or queue.topic)
        )
        return self._views.page(
            request,
            "message_copy.html",
            title=said("Send a copy"),
            queue=queue,
            offset=offset,
            draft=draft,
            text=text if is_text else None,
            back=message_link("/message", queue, offset),
            groups=consumers_of(self._cluster, draft.topic),
        )

    def send(self, request: Request, form: Form) -> Response:
        """Send the edited copy; a body that is not in the form is that of the message."""
        queue, offset, message = self._read(form)
        topic = form.text("to_topic")
        if not topic:
            raise bad("Give the topic.")
        draft = draft_of(topic, form)
        body = bodies.plain(message)
        if "body" not in form or draft.body == lines(body.decode("utf-8", "replace")).encode():
            draft = replace(draft, body=body)  # not edited: also its line ends are unchanged
        result = send_over(self._cluster.connection, [draft], locate=True)
        if result.failures:
            raise CliError(next(iter(result.failures)))
        return self._views.page(
            request,
            "message_sent.html",
            title=said("The copy is sent"),
            topic=topic,
            receipt=result.receipts[0],
            back=message_link("/message", queue, offset),
        )


def _file(data: bytes, name: str, kind: str) -> Response:
    """Return a download; it never runs in the browser."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type=kind, headers=headers)
