"""Consumer groups: list with lag, one group by queue and client; create, pause, reset, delete.

The lag counts messages that are not consumed yet, with those in flight and in retry topics.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...operations import offset_moves as moves
from ...operations import words
from ...operations.broker_groups import Outcome, answers, distinct
from ...operations.errors import CliError, Exit
from ...operations.group_settings import group_settings
from ...proto import paths, v1, v2
from .. import browse
from ..cluster import CALL_S, Cluster, check, problems
from ..consumers import Facts, why
from ..history import Rates
from ..inputs import bad, moment_ms, whole
from ..language import counted, said
from ..live import Watch
from ..views import Form, Plan, Views, moved, quoted, time_in_zone
from .named import Section, searched
from .paging import PAGE_ROWS, page_of

_ATTEMPTS_MAX = 1_000
_GIVEN_MAX = 255
logger = logging.getLogger(__name__)
_SECTION = Section(
    said("group"),
    "/groups",
    paths.DELETE_GROUP,
    partial(v1.DeleteGroupRequest, force=True),
    v1.DeleteGroupResponse,
    {
        "created": said("The group is created."),
        "unchanged": said("The group existed with these settings."),
        "deleted": said("The group is deleted."),
        "paused": said("Consumption is paused: consumers get no messages."),
        "resumed": said("Consumption is resumed."),
        "reset": said("The offsets are set. Consumers continue there."),
    },
)
_EDGES = {
    "earliest": v1.ResetOffsetsRequest.EARLIEST,
    "latest": v1.ResetOffsetsRequest.LATEST,
}
#: Messages in flight that the page of a group lists, of each broker group.
_DELIVERIES = 100
#: Queues whose oldest message is read for its age: each costs a call.
_OLDEST_OF = 8
#: Clients whose subscriptions are read, those that hold the most messages: each costs a call.
_SUBSCRIPTIONS_OF = 4


@dataclass(slots=True)
class GroupRow(Facts):
    """One consumer group: the sums of all broker groups."""

    orderly: bool = False


#: What the topic of a group's dead letters begins with.
LETTERS = "%DLQ%"
# Properties in which applications write why they gave up; brokers write no reason.
_REASONS = ("reason", "error", "exception")
_COLUMNS: dict[str, Callable[[GroupRow], Any]] = {
    "name": lambda row: row.name,
    "lag": lambda row: row.lag,
    "flight": lambda row: row.in_flight,
    "retries": lambda row: row.retries,
    "dead": lambda row: row.dead_letters,
    "clients": lambda row: row.clients,
}


def group_rows(found: Iterable[tuple[str, list[v1.ListGroupsResponse]]]) -> list[GroupRow]:
    """Return the consumer groups of all broker groups, by name."""
    rows: dict[str, GroupRow] = {}
    for page in (page for _, pages in found for page in pages):
        for config, progress in zip(page.groups, page.progress, strict=True):
            row = rows.setdefault(config.name, GroupRow(config.name, orderly=config.orderly))
            row.paused = row.paused or not config.consume_enable
            row.add(progress)
    return [rows[name] for name in sorted(rows)]


def all_groups(cluster: Cluster, *, system: bool) -> list[Outcome[list[v1.ListGroupsResponse]]]:
    """Read the consumer groups of all broker groups."""
    request = v1.ListGroupsRequest(include_system=system)
    return cluster.pages(paths.LIST_GROUPS, request, v1.ListGroupsResponse, "groups")


def clients_of(found: Iterable[v1.DescribeGroupResponse]) -> list[v1.GroupClient]:
    """Return each client once, with its latest call to any broker group."""
    latest: dict[str, v1.GroupClient] = {}
    for client in (client for answer in found for client in answer.clients):
        known = latest.setdefault(client.client_id, client)
        if client.last_seen_ms_ago < known.last_seen_ms_ago:
            latest[client.client_id] = client
    return [latest[name] for name in sorted(latest)]


def reason_of(message: v2.Message) -> str:
    """Return why an application gave a message up; "" if it does not tell."""
    given = message.user_properties
    return next((given[name] for name in _REASONS if given.get(name)), "")


def subscriptions_of(
    cluster: Cluster, client_ids: Iterable[str]
) -> dict[str, list[v1.ClientSubscription]]:
    """Return what clients have told of their subscriptions; [] if it is not known."""
    found: dict[str, list[v1.ClientSubscription]] = {name: [] for name in client_ids}
    calls = []
    for name in found:
        for broker in cluster.names():
            request = v1.ListClientsRequest(client_id=name, broker=broker)
            call = cluster.connection.start(
                paths.LIST_CLIENTS, request, v1.ListClientsResponse, CALL_S
            )
            calls.append((name, call))
    for name, call in calls:  # which are answered at the same time
        with contextlib.suppress(CliError):  # a broker group may not know the client
            told = max((one.subscriptions for one in call().clients), key=len, default=())
            found[name] = max(found[name], list(told), key=len)
    return found


class GroupPages:
    """The section of consumer groups."""

    def __init__(self, cluster: Cluster, views: Views, watch: Watch) -> None:
        self._cluster = cluster
        self._views = views
        self._wall_ms = watch.wall_ms
        self._absent_ms = watch.absent_ms
        self._rates = Rates()

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/groups", self.groups),
            views.show("/groups/new", self.new),
            views.act("/groups/new", self.create),
            views.show("/groups/{name}", self.group),
            views.show("/groups/{name}/consumption", self.plan_consumption),
            views.act("/groups/{name}/consumption", self.set_consumption),
            views.show("/groups/{name}/reset", self.plan_reset),
            views.act("/groups/{name}/reset", self.reset),
            views.show("/groups/{name}/delete", self.plan_delete),
            views.act("/groups/{name}/delete", self.delete),
        ]

    def groups(self, request: Request) -> Response:
        """List the groups that match `q`."""
        outcomes = all_groups(self._cluster, system=bool(request.query_params.get("system")))
        return self._views.page(
            request,
            "groups.html",
            title=said("Groups"),
            **searched(request, group_rows(answers(outcomes)), _COLUMNS),
            problems=problems(outcomes),
            notice=_notice(request),
        )

    def group(self, request: Request) -> Response:
        """Show one group; its queues in pages, those with the largest lag first."""
        name, query = request.path_params["name"], request.query_params
        outcomes = self._describe(name, deliveries=_DELIVERIES)
        found = [answer for _, answer in answers(outcomes)]
        held = sorted(
            ((broker, one) for broker, answer in answers(outcomes) for one in answer.deliveries),
            key=lambda pair: pair[1].delivered_ms,
        )
        row = GroupRow(name, not found[0].group.consume_enable, orderly=found[0].group.orderly)
        for answer in found:
            row.add(answer.progress)
        queues = sorted(
            (queue for answer in found for queue in answer.queues),
            key=lambda one: (-one.lag, one.topic, one.broker, one.queue_id),
        )
        now_ms = self._wall_ms()
        holding = Counter(one.client_id for _, one in held if one.client_id)
        clients = clients_of(found)
        clients.sort(key=lambda one: -holding[one.client_id])
        came = sum(queue.max_offset for queue in queues if not queue.retry)
        failed = problems(outcomes)
        rates = [] if failed else self._rates.add(name, now_ms, came, came - row.lag)
        row.absent_ms = self._absent_ms(name)
        return self._views.page(
            request,
            "group.html",
            title=name,
            name=name,
            row=row,
            settings=group_settings(found[0].group),
            page=page_of(queues, query.get("topic", ""), query.get("page", ""), _topic),
            topics=distinct(queue.topic for queue in queues if not queue.retry),
            missing=[(queue, each) for queue in queues for each in queue.missing],
            clients=clients,
            clients_max=PAGE_ROWS,
            held=held,
            why=why(row, [one for _, one in held], now_ms, self._oldest_ms(queues)),
            last_reason=self._last_reason(name) if row.dead_letters else "",
            holding=holding,
            held_max=_DELIVERIES,
            now_ms=now_ms,
            shown_topic=query.get("topic", ""),
            rates=rates,
            subscriptions=subscriptions_of(
                self._cluster, [one.client_id for one in clients[:_SUBSCRIPTIONS_OF]]
            ),
            problems=failed,
            notice=_notice(request),
        )

    def _oldest_ms(self, queues: Sequence[v1.GroupQueueStatus]) -> int:
        """Return when the oldest message that waits was stored, of the queues with most lag."""
        found = []
        for one in [queue for queue in queues if queue.lag][:_OLDEST_OF]:
            place = browse.Queue(one.topic, one.broker, one.queue_id)
            offset = max(one.consumer_offset, one.min_offset, 0)
            try:
                batch = browse.pull(self._cluster.connection, place, offset, one.max_offset, 1)
            except CliError:  # the user may lack the right to read the topic
                continue
            found += [browse.stored_ms(message) for message in batch.messages]
        return min(found, default=0)

    def _last_reason(self, name: str) -> str:
        """Return the reason that the newest dead letter of a group gives; "" without one."""
        topic, connection = LETTERS + name, self._cluster.connection
        try:
            known = {
                browse.Queue(topic, one.broker, one.queue_id): one
                for one in browse.queues_of(self._cluster, topic)
            }
            newest = browse.newest_first(
                {queue: one.max_offset for queue, one in known.items()},
                {queue: one.min_offset for queue, one in known.items()},
                lambda queue, at, end: browse.pull(connection, queue, at, end),
            )
            return next((reason_of(message) for _, message in newest), "")
        except CliError:  # the user may lack the right to read the topic
            return ""

    def _describe(self, name: str, deliveries: int = 0) -> list[Outcome[v1.DescribeGroupResponse]]:
        request = v1.DescribeGroupRequest(name=name, deliveries=deliveries)
        return self._cluster.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)

    def new(self, request: Request) -> Response:
        """Show the form of a new group."""
        return self._views.page(request, "group_new.html", title=said("New group"))

    def create(self, request: Request, form: Form) -> Response:
        """Create a group in every broker group."""
        name = form.text("name")
        if not name:
            raise bad("Give the group a name.")
        attempts = form.text("max_attempts")
        wanted = v1.CreateGroupRequest(
            name=name,
            orderly=bool(form.text("orderly")),
            max_attempts=whole(attempts, said("Attempts"), least=1, most=_ATTEMPTS_MAX),
        )
        outcomes = self._cluster.each(paths.CREATE_GROUP, wanted, v1.CreateGroupResponse)
        return _SECTION.created(name, outcomes)

    def plan_consumption(self, request: Request) -> Response:
        """Show what a pause or its end does."""
        name = request.path_params["name"]
        found = [answer for _, answer in answers(self._describe(name))]
        clients = max(answer.progress.clients for answer in found)
        is_paused = not all(answer.group.consume_enable for answer in found)
        url = f"/groups/{quoted(name)}"
        if is_paused:
            effect = said("The {} connected clients get messages again.", clients)
            title, button = said("Resume group {}", name), said("Resume consumption")
        else:
            effect = said(
                "The {} connected clients get no messages until it is resumed. "
                "Messages in flight can still be acknowledged.",
                clients,
            )
            title, button = said("Pause group {}", name), said("Pause consumption")
        plan = Plan(
            title,
            [effect],
            f"{url}/consumption",
            button,
            url,
            fields={"enable": "yes" if is_paused else ""},
            is_dangerous=not is_paused,
        )
        return self._views.plan(request, plan)

    def set_consumption(self, request: Request, form: Form) -> Response:
        """Pause or resume a group."""
        name, enable = request.path_params["name"], bool(form.text("enable"))
        wanted = v1.CreateGroupRequest(name=name, must_exist=True, consume_enable=enable)
        check(self._cluster.each(paths.CREATE_GROUP, wanted, v1.CreateGroupResponse))
        return moved(f"/groups/{quoted(name)}", done="resumed" if enable else "paused")

    def plan_reset(self, request: Request) -> Response:
        """Show the form of a reset, and with a position each queue's offset before and after."""
        if not request.query_params.get("to"):
            return self._reset_form(request)
        try:
            return self._reset_plan(request)
        except CliError as refused:
            if refused.code is not Exit.USAGE:
                raise
            return self._reset_form(request, str(refused))

    def _reset_form(self, request: Request, error: str = "") -> Response:
        """Show the form with the fields that were given; `error` is what is wrong with them."""
        name, query = request.path_params["name"], request.query_params
        found = [answer for _, answer in answers(self._describe(name))]
        queues = [queue for answer in found for queue in answer.queues]
        fields = ("topic", "time", "offset", "shift", "queue", "skip_retries")
        given = {key: query.get(key, "")[:_GIVEN_MAX] for key in fields}
        return self._views.page(
            request,
            "group_reset.html",
            status=400 if error else 200,
            title=said("Reset offsets of {}", name),
            name=name,
            topics=distinct(queue.topic for queue in queues if not queue.retry),
            given={**given, "to": query.get("to") or "time"},
            error=error,
        )

    def _reset_plan(self, request: Request) -> Response:
        query = request.query_params
        name, fields = request.path_params["name"], _reset_fields(query, self._wall_ms())
        looked: list[Outcome[v1.ResetOffsetsResponse]] = []
        if fields["to"] == "shift":
            changes = [move.change for move in self._shifts(name, fields)]
        else:
            wanted = _reset_request(name, fields)
            wanted.dry_run = True
            looked = self._cluster.each(paths.RESET_OFFSETS, wanted, v1.ResetOffsetsResponse)
            changes = [change for _, answer in answers(looked) for change in answer.changes]
        # A reset ends deliveries in flight, also where the offset stays.
        moved = [each for each in changes if each.before != each.after or each.in_flight]
        rows = [change_row(change) for change in moved]
        url = f"/groups/{quoted(name)}"
        where = _where(fields)
        if fields["queue"]:
            where = said("{}, queue {}", where, fields["queue"])
        sentences = [said("Set group {} on topic {} to {}.", name, fields["topic"], where)]
        sentences.append(_effect(moves.effect(*changes)))
        plan = Plan(
            said("Reset the offsets of {}", name),
            sentences + problems(looked),
            f"{url}/reset",
            said("Set the offsets"),
            url,
            fields=fields,
            rows=rows,
            refusal="" if rows else said("Every queue that answered has this offset already."),
        )
        return self._views.plan(request, plan)

    def reset(self, request: Request, form: Form) -> Response:
        """Set the offsets; a time is the one of the plan."""
        name, fields = request.path_params["name"], _reset_fields(form, self._wall_ms())
        if fields["to"] == "shift":
            wanted = v1.ResetOffsetsRequest(group=name, topic=fields["topic"])
            changes = moves.carry_out(self._cluster.groups(), wanted, self._shifts(name, fields))
            return _reset_done(name, changes)
        wanted = _reset_request(name, fields)
        wanted.dry_run = True
        looked = self._cluster.each(paths.RESET_OFFSETS, wanted, v1.ResetOffsetsResponse)
        answers(looked)
        wanted.dry_run = False
        groups = self._cluster.groups()
        done = groups.carry_out(paths.RESET_OFFSETS, wanted, v1.ResetOffsetsResponse, looked)
        check(done)
        return _reset_done(
            name, [change for _, answer in answers(done) for change in answer.changes]
        )

    def _shifts(self, name: str, fields: dict[str, str]) -> list[moves.Move]:
        """Return the change of each queue by a number of messages. Raises CliError."""
        if fields["skip_retries"]:
            raise bad("A shift leaves the messages in retry: choose another position.")
        wanted = v1.ResetOffsetsRequest(group=name, topic=fields["topic"])
        if fields["queue"]:
            wanted.queue_id = _queue_id(fields)
        return moves.shifted(self._cluster.groups(), wanted, _shift(fields), logger.warning)

    def plan_delete(self, request: Request) -> Response:
        """Show what the deletion of a group removes."""
        return _SECTION.show_deletion(request, self._views, self._cluster, _losses)

    def delete(self, request: Request, form: Form) -> Response:
        """Delete a group; its name must have been typed."""
        return _SECTION.delete(request, form, self._cluster)


def _losses(plans: Sequence[v1.DeleteGroupResponse]) -> list[str]:
    topics = distinct(topic for plan in plans for topic in plan.topics)
    offsets = distinct(topic for plan in plans for topic in plan.offsets)
    return [
        said("Topics that are deleted: {}.", ", ".join(topics) or said("none")),
        said(
            "Pending retries and dead letters that are lost: {}.",
            words.number(sum(p.messages for p in plans)),
        ),
        said("Offsets that are lost on: {}.", ", ".join(offsets) or said("no topic")),
        said(
            "Connected clients, for which the group stays deleted for ten minutes: {}.",
            max(plan.clients for plan in plans),
        ),
    ]


def _topic(queue: v1.GroupQueueStatus) -> str:
    return queue.topic


def _reset_fields(form: Mapping[str, str], now_ms: int) -> dict[str, str]:
    """Return the fields of a reset, with its time as milliseconds."""
    fields = {
        key: form.get(key, "").strip()
        for key in ("topic", "to", "time", "offset", "shift", "queue", "skip_retries")
    }
    if not fields["topic"]:
        raise bad("Choose the topic.")
    if fields["to"] == "time":
        fields["time"] = str(moment_ms(fields["time"], now_ms))
    return fields


def _reset_request(group: str, fields: dict[str, str]) -> v1.ResetOffsetsRequest:
    request = v1.ResetOffsetsRequest(
        group=group, topic=fields["topic"], skip_retries=bool(fields["skip_retries"])
    )
    to = fields["to"]
    if to in _EDGES:
        request.edge = _EDGES[to]
    elif to == "time":
        request.timestamp_ms = int(fields["time"])
    elif to == "offset":
        request.offset = whole(fields["offset"], said("The offset"))
    else:
        raise bad("Choose the position: earliest, latest, a time, an offset or a shift.")
    if fields["queue"]:
        request.queue_id = _queue_id(fields)
    return request


def _queue_id(fields: dict[str, str]) -> int:
    return whole(fields["queue"], said("The queue"), most=1_023)


def _shift(fields: dict[str, str]) -> int:
    """Return the number of messages of a shift; negative: back. Raises CliError."""
    text = fields["shift"]
    found = whole(text.lstrip("+-"), said("The number of messages"), least=1)
    return -found if text.startswith("-") else found


def _where(fields: dict[str, str]) -> str:
    if fields["to"] == "time":
        return said("the first message stored at {} or later", time_in_zone(int(fields["time"])))
    if fields["to"] == "shift":
        count = _shift(fields)
        messages = counted(abs(count), "message")
        return said("{} back", messages) if count < 0 else said("{} forward", messages)
    if fields["to"] == "offset":
        return said("offset {}", fields["offset"])
    return said("the first message") if fields["to"] == "earliest" else said("the end")


def _reset_done(name: str, changes: Sequence[v1.OffsetChange]) -> Response:
    """Lead to the group after a reset, with the numbers of what was done."""
    effect = moves.effect(*changes)
    numbers = {"again": effect.again, "skipped": effect.skipped, "in_flight": effect.in_flight}
    return moved(f"/groups/{quoted(name)}", done="reset", **numbers)


def _effect(found: moves.Effect) -> str:
    """Return the sentence of the commands, for translation."""
    return said(
        "{} messages are consumed again, {} are skipped; {} deliveries in flight can no longer be"
        " acknowledged.",
        words.number(found.again),
        words.number(found.skipped),
        words.number(found.in_flight),
    )


def _notice(request: Request) -> str:
    """Return the notice of a change that has led to this page."""
    numbers = [request.query_params.get(name, "") for name in ("again", "skipped", "in_flight")]
    notice = _SECTION.notice(request)
    if notice and all(number.isascii() and number.isdigit() for number in numbers):
        return said("{} {}", notice, _effect(moves.Effect(*map(int, numbers))))
    return notice


def change_row(change: v1.OffsetChange) -> dict[str, object]:
    """Return a row of the plan of a reset."""
    return {
        said("topic"): change.topic,
        said("broker group"): change.broker,
        said("queue"): change.queue_id,
        said("before"): change.before if change.before >= 0 else said("none"),
        said("after"): change.after,
        said("to consume"): change.max_offset - change.after,
    }
