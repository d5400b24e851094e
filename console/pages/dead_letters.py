"""Dead letters: messages that consumers did not acknowledge within the attempts of their group.

They are copies in the topic `%DLQ%GROUP`. To redrive one is to send a copy to its original topic,
where every consumer group gets it; the dead letter stays until retention deletes it. What an
earlier redrive has sent, of the console or of `cometmq dlq redrive`, is shown and omitted.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...operations.broker_groups import answers
from ...operations.errors import CliError
from ...operations.message_states import PAST, StoredMessage, newest, states
from ...operations.redrive import SENDER_PROPERTY, Copy, copy, earlier, send
from ...proto import paths, v1, v2
from .. import browse
from ..browse import Queue
from ..cluster import Cluster, problems
from ..inputs import bad, whole
from ..language import counted, said
from ..search import EXPORTED_MAX, Located, MessageSearch
from ..story import records_of
from ..views import Form, Plan, Views, link, moment, quoted
from .groups import LETTERS, all_groups, group_rows, reason_of
from .messages import copy_of, message_row
from .topics import consumers_of, kind_of

#: Reasons and topics that a page counts, those of most dead letters first.
_CAUSES_MAX = 12
#: Messages of one redrive: each is read and sent while the page waits.
REDRIVEN_MAX = 100


def letter_row(located: Located) -> dict[str, Any]:
    """Return what a list shows of a dead letter."""
    queue, message = located
    properties = message.system_properties
    return {
        **message_row(located),
        "place": f"{queue.broker}:{queue.queue_id}:{properties.queue_offset}",
        "origin": properties.dead_letter_queue.topic,
        "reason": reason_of(message) or "–",
        "attempts": properties.delivery_attempt,
    }


def fate_of(state: str, group: str, at_ms: int = 0) -> str:
    """Return what a group did with a copy, by the state of `operations/message_states.py`.

    `at_ms`: when it acknowledged it, 0 if no trace tells.
    """
    consumed = said("consumed by {}", group)
    if at_ms:
        consumed = said("consumed by {} at {}", group, moment(at_ms))
    fates = {
        PAST: consumed,
        "consumed after a retry": said("{} after a retry", consumed),
        "retrying": said("in retry"),
        "dead letter": said("failed again"),
        "waiting": said("still waiting"),
        "in flight or waiting": said("still waiting"),
    }
    return fates.get(state, state)


def places_of(group: str, texts: Sequence[str]) -> list[tuple[Queue, int]]:
    """Parse BROKER:QUEUE:OFFSET of dead letters. Raises CliError."""
    if not texts:
        raise bad("Select messages.")
    if len(texts) > REDRIVEN_MAX:
        raise bad("Select at most {} messages.", REDRIVEN_MAX)
    found = []
    for text in dict.fromkeys(texts):
        broker, queue, offset = ("::" + text).rsplit(":", 2)
        number = whole(queue, said("The queue"), most=1_023)
        place = Queue(LETTERS + group, broker.removeprefix("::"), number)
        found.append((place, whole(offset, said("The offset"))))
    return found


class DeadLetterPages:
    """The section of dead letters."""

    def __init__(
        self, cluster: Cluster, views: Views, search: MessageSearch, wall_ms: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._views = views
        self._search = search

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/dead-letters", self.groups),
            views.show("/dead-letters/{group}", self.letters),
            views.show("/dead-letters/{group}/redrive", self.plan),
            views.act("/dead-letters/{group}/redrive", self.redrive),
            views.show("/dead-letters/{group}/redrive-all", self.plan_all),
            views.act("/dead-letters/{group}/redrive-all", self.redrive_all),
        ]

    def groups(self, request: Request) -> Response:
        """List the consumer groups with dead letters, those with most of them first."""
        outcomes = all_groups(self._cluster, system=False)
        rows = sorted(group_rows(answers(outcomes)), key=lambda row: (-row.dead_letters, row.name))
        return self._views.page(
            request,
            "dead_letters.html",
            title=said("Dead letters"),
            rows=[row for row in rows if row.dead_letters][:200],
            problems=problems(outcomes),
        )

    def letters(self, request: Request) -> Response:
        """Show the dead letters of a group, the oldest first, and when they were sent again."""
        group, query = request.path_params["group"], request.query_params
        wanted = query.get("contains", "")
        asked = {"by": "time", "topic": LETTERS + group, "contains": wanted}
        found = self._search.find({**asked, "at": query.get("at", "")})
        path = f"/dead-letters/{quoted(group)}"
        kinds: dict[str, str] = {}
        # The first page tells what there is; a page further on, only what it has.
        looked = [] if query.get("at") else self._search.find(asked, EXPORTED_MAX).messages
        causes = Counter((row["reason"], row["origin"]) for row in map(letter_row, looked))
        return self._views.page(
            request,
            "dead_letters_of.html",
            title=said("Dead letters of {}", group),
            group=group,
            wanted=wanted,
            rows=[
                letter_row(one) | self._fate(group, self._sent_again(one, kinds))
                for one in found.messages
            ],
            total=self._total(group),
            causes=causes.most_common(_CAUSES_MAX),
            looked=len(looked),
            notes=found.notes,
            following=link(path, contains=wanted, **found.following) if found.following else "",
            first=link(path, contains=wanted) if query.get("at") else "",
            exports={
                form: link("/messages/export", **asked, format=form) for form in ("json", "csv")
            },
        )

    def _total(self, group: str) -> int:
        """Return the number of dead letters of a group in all broker groups."""
        outcomes = self._cluster.each(
            paths.DESCRIBE_GROUP, v1.DescribeGroupRequest(name=group), v1.DescribeGroupResponse
        )
        return sum(one.answer.progress.dead_letters for one in outcomes if one.answer is not None)

    def _fate(self, group: str, state: dict[str, str]) -> dict[str, str]:
        """Return the state with what the group did with the copy, as `fate`."""
        fate = ""
        if state["copy_id"]:
            groups = self._cluster.groups()
            for broker in self._cluster.names():
                copy = newest(groups, broker, state["target"], state["copy_id"])
                for row in states(groups, StoredMessage(broker, copy), [group]) if copy else ():
                    records = records_of(groups, state["copy_id"])
                    acknowledged = [
                        one.at_ms for one in records if one.group == group and one.retries is None
                    ]
                    fate = fate_of(row["state"], group, max(acknowledged, default=0))
        return {**state, "fate": fate}

    def _read(self, group: str, texts: Sequence[str]) -> list[Located]:
        places = places_of(group, texts)
        return [
            (queue, browse.message_at(self._cluster, queue, offset)) for queue, offset in places
        ]

    def plan(self, request: Request) -> Response:
        """Show where the selected messages would be sent."""
        group = request.path_params["group"]
        found = self._read(group, request.query_params.getlist("m"))
        targets = sorted({origin_of(message) for _, message in found} - {""})
        groups = {name for topic in targets for name in consumers_of(self._cluster, topic)}
        others = sorted(groups - {group})
        kinds: dict[str, str] = {}
        states = [self._sent_again(one, kinds) for one in found]
        sent = sum(bool(state["copy_id"]) for state in states)
        pending = sum(not state["sent_again"] for state in states)
        refusal = ""
        if not targets:
            refusal = said("No selected message names its original topic.")
        elif sent == len(found):
            refusal = said("All selected messages were sent again before.")
        elif not pending:
            refusal = said("No selected message can be sent.")
        sentences = [
            said(
                "To send again: {}, to {}.",
                counted(pending, "dead letter"),
                ", ".join(targets) or said("no topic"),
            ),
            said("Sent again before, and omitted: {}.", sent),
            said(
                "Other consumer groups that get them as well: {}.",
                ", ".join(others) or said("none"),
            ),
            said(
                "The copies are new messages. The dead letters stay until retention deletes them."
            ),
        ]
        rows: list[dict[str, object]] = [
            {
                said("dead letter"): said(
                    "queue {} offset {}", queue.queue_id, browse.offset_of(message)
                ),
                said("to topic"): origin_of(message) or said("unknown: not sent"),
                said("message id"): message.system_properties.message_id,
                said("sent before"): state["sent_again"],
            }
            for (queue, message), state in zip(found, states, strict=True)
        ]
        texts = [letter_row(one)["place"] for one in found]
        path = f"/dead-letters/{quoted(group)}"
        plan = Plan(
            said("Redrive dead letters of {}", group),
            sentences,
            f"{path}/redrive",
            said("Send them again"),
            path,
            fields={"places": " ".join(texts)},
            rows=rows,
            refusal=refusal,
        )
        return self._views.plan(request, plan)

    def redrive(self, request: Request, form: Form) -> Response:
        """Send copies one after another; a failure does not stop the others."""
        group = request.path_params["group"]
        kinds: dict[str, str] = {}
        rows = []
        for queue, offset in places_of(group, form.text("places").split()):
            row = {said("dead letter"): said("queue {} offset {}", queue.queue_id, offset)}
            try:
                wanted, is_sent = self._send(queue, offset, kinds)
                text = (
                    said("sent as {}", wanted.message_id)
                    if is_sent
                    else said("omitted: sent before as {}", wanted.message_id)
                )
                row |= {said("to topic"): wanted.topic, said("result"): text}
            except CliError as error:
                row |= {said("to topic"): "–", said("result"): said("failed: {}", error)}
            rows.append(row)
        return self._views.page(
            request,
            "redriven.html",
            title=said("Result"),
            group=group,
            rows=rows,
            sent=sum(row["result"].startswith("sent") for row in rows),
            omitted=sum(row["result"].startswith("omitted") for row in rows),
        )

    def plan_all(self, request: Request) -> Response:
        """Show what a redrive of every dead letter that matches does."""
        group = request.path_params["group"]
        wanted = request.query_params.get("contains", "")[:200]
        path = f"/dead-letters/{quoted(group)}"
        which = said("Every dead letter of {} that is stored by now is sent again.", group)
        if wanted:
            which = said(
                "Every dead letter of {} with “{}” that is stored by now is sent again.",
                group,
                wanted,
            )
        sentences = [
            which,
            said("They are sent to their original topics, {} at a time.", REDRIVEN_MAX),
            said("What an earlier redrive has sent is omitted."),
            said("Every consumer group of these topics gets the copies."),
            said(
                "The copies are new messages. The dead letters stay until retention deletes them."
            ),
        ]
        plan = Plan(
            said("Redrive all dead letters of {}", group),
            sentences,
            f"{path}/redrive-all",
            said("Send all again"),
            path,
            fields={"contains": wanted, "end": str(self._wall_ms())},
        )
        return self._views.plan(request, plan)

    def redrive_all(self, request: Request, form: Form) -> Response:
        """Send the next part of the dead letters that match; the page goes on with the rest.

        The form carries the position and the counts, so that the console holds no state.
        """
        group = request.path_params["group"]
        names = ("sent", "omitted", "failed")
        counts = {name: whole(form.text(name) or "0", said("The count")) for name in names}
        asked = {"by": "time", "topic": LETTERS + group}
        asked |= {name: form.text(name) for name in ("contains", "end", "at")}
        whole(asked["end"], said("The end"))
        found = self._search.find(asked, REDRIVEN_MAX)
        kinds: dict[str, str] = {}
        failures: list[dict[str, object]] = []
        for queue, message in found.messages:
            offset = browse.offset_of(message)
            try:
                _, is_sent = self._send(queue, offset, kinds)
                counts["sent" if is_sent else "omitted"] += 1
            except CliError as error:
                counts["failed"] += 1
                place = said("queue {} offset {}", queue.queue_id, offset)
                failures.append({said("dead letter"): place, said("failure"): str(error)})
        return self._views.page(
            request,
            "redriving.html",
            title=said("Redrive"),
            group=group,
            counts=counts,
            failures=failures,
            fields={**asked, **counts, **found.following} if found.following else {},
        )

    def _send(self, queue: Queue, offset: int, kinds: dict[str, str]) -> tuple[Copy, bool]:
        """Send a copy unless it was sent before; return it and whether it is sent now.

        `kinds` are the types of the topics seen. Raises CliError.
        """
        wanted = self._copy((queue, browse.message_at(self._cluster, queue, offset)), kinds)
        if earlier(self._cluster.groups(), wanted) is not None:
            return wanted, False
        (result,) = send(self._cluster.groups(), self._cluster.connection, [wanted])
        if isinstance(result, CliError):
            raise result
        return wanted, result

    def _copy(self, letter: Located, kinds: dict[str, str]) -> Copy:
        """Return the copy of a dead letter. Raises CliError."""
        queue, message = letter
        topic = origin_of(message)
        if not topic:
            raise CliError(said("It does not name its original topic."))
        if topic not in kinds:
            kinds[topic] = kind_of(self._cluster, topic)
        draft = copy_of(message, topic, kinds[topic])
        letter_id = message.system_properties.message_id
        return copy(queue.broker, queue.topic, browse.offset_of(message), letter_id, draft)

    def _sent_again(self, letter: Located, kinds: dict[str, str]) -> dict[str, str]:
        """Return when the copy of a dead letter was stored, its id, and who sent it; empty if it
        was not."""
        try:
            wanted = self._copy(letter, kinds)
            found = earlier(self._cluster.groups(), wanted)
        except CliError as error:
            return {
                "sent_again": said("unknown: {}", error),
                "copy_id": "",
                "target": "",
                "sent_by": "",
            }
        if found is None:
            return {"sent_again": "", "copy_id": "", "target": "", "sent_by": ""}
        stored = moment(found.system_properties.store_timestamp.ToMilliseconds())
        return {
            "sent_again": stored,
            "copy_id": wanted.message_id,
            "target": wanted.topic,
            "sent_by": found.user_properties.get(SENDER_PROPERTY, ""),
        }


def origin_of(message: v2.Message) -> str:
    """Return the original topic of a dead letter; "" if it does not name one."""
    return message.system_properties.dead_letter_queue.topic
