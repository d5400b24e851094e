"""Consumer groups: list with lag, one group by queue and client; create, pause, reset, delete.

The lag counts messages that are not consumed yet, with those in flight and in retry topics.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...operations import offset_moves as moves
from ...operations import words
from ...operations.broker_groups import Outcome, answers, distinct
from ...operations.errors import CliError, Exit
from ...operations.group_settings import group_settings
from ...proto import paths, v1
from .. import browse
from ..cluster import Cluster, check, problems
from ..consumers import Facts, why
from ..inputs import bad, moment_ms, whole
from ..paging import PAGE_ROWS, page_of
from ..views import Form, Plan, Views, moved, quoted, time_in_zone
from .named import Section, searched

_ATTEMPTS_MAX = 1_000
_GIVEN_MAX = 255
_SORTS = ("name", "lag", "dead letters")
logger = logging.getLogger(__name__)
_SECTION = Section(
    "group",
    "/groups",
    paths.DELETE_GROUP,
    partial(v1.DeleteGroupRequest, force=True),
    v1.DeleteGroupResponse,
    {
        "created": "The group is created.",
        "unchanged": "The group existed with these settings.",
        "deleted": "The group is deleted.",
        "paused": "Consumption is paused: consumers get no messages.",
        "resumed": "Consumption is resumed.",
        "reset": "The offsets are set. Consumers continue there.",
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


@dataclass(slots=True)
class GroupRow(Facts):
    """One consumer group: the sums of all broker groups."""

    orderly: bool = False


def group_rows(
    found: Iterable[tuple[str, list[v1.ListGroupsResponse]]], sort: str = "name"
) -> list[GroupRow]:
    """Return the consumer groups of all broker groups, sorted by one of `_SORTS`."""
    rows: dict[str, GroupRow] = {}
    for page in (page for _, pages in found for page in pages):
        for config, progress in zip(page.groups, page.progress, strict=True):
            row = rows.setdefault(config.name, GroupRow(config.name, orderly=config.orderly))
            row.paused = row.paused or not config.consume_enable
            row.add(progress)
    by_name = sorted(rows.values(), key=lambda row: row.name)
    if sort == "lag":
        return sorted(by_name, key=lambda row: -row.lag)
    if sort == "dead letters":
        return sorted(by_name, key=lambda row: -row.dead_letters)
    return by_name


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


class GroupPages:
    """The section of consumer groups."""

    def __init__(self, cluster: Cluster, views: Views, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._views = views
        self._wall_ms = wall_ms

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
        query = request.query_params
        sort = query.get("sort", "")
        outcomes = all_groups(self._cluster, system=bool(query.get("system")))
        _, found = searched(request, group_rows(answers(outcomes), sort))
        return self._views.page(
            request,
            "groups.html",
            title="Groups",
            **found,
            sort=sort if sort in _SORTS else "name",
            sorts=_SORTS,
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
            holding=holding,
            held_max=_DELIVERIES,
            now_ms=now_ms,
            shown_topic=query.get("topic", ""),
            problems=problems(outcomes),
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

    def _describe(self, name: str, deliveries: int = 0) -> list[Outcome[v1.DescribeGroupResponse]]:
        request = v1.DescribeGroupRequest(name=name, deliveries=deliveries)
        return self._cluster.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)

    def new(self, request: Request) -> Response:
        """Show the form of a new group."""
        return self._views.page(request, "group_new.html", title="New group")

    def create(self, request: Request, form: Form) -> Response:
        """Create a group in every broker group."""
        name = form.text("name")
        if not name:
            raise bad("Give the group a name.")
        attempts = form.text("max_attempts")
        wanted = v1.CreateGroupRequest(
            name=name,
            orderly=bool(form.text("orderly")),
            max_attempts=whole(attempts, "Attempts", least=1, most=_ATTEMPTS_MAX),
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
            effect = f"The {clients} connected clients get messages again."
            verb, enable = "Resume", "yes"
        else:
            effect = (
                f"The {clients} connected clients get no messages until it is resumed. Messages in"
                " flight can still be acknowledged."
            )
            verb, enable = "Pause", ""
        plan = Plan(
            f"{verb} group {name}",
            [effect],
            f"{url}/consumption",
            f"{verb} consumption",
            url,
            fields={"enable": enable},
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
            title=f"Reset offsets of {name}",
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
        set_to = Markup("Set group {} on topic {} to {}.")
        sentences: list[str] = [set_to.format(name, fields["topic"], _where(fields))]
        sentences.append(str(moves.effect(*changes)))
        plan = Plan(
            f"Reset the offsets of {name}",
            sentences + problems(looked),
            f"{url}/reset",
            "Set the offsets",
            url,
            fields=fields,
            rows=rows,
            refusal="" if rows else "Every queue that answered has this offset already.",
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
        f"Topics that are deleted: {', '.join(topics) or 'none'}.",
        f"Pending retries and dead letters that are lost: {sum(p.messages for p in plans):,}.",
        f"Offsets that are lost on: {', '.join(offsets) or 'no topic'}.",
        f"Connected clients, for which the group stays deleted for ten minutes: "
        f"{max(plan.clients for plan in plans)}.",
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
        request.offset = whole(fields["offset"], "The offset")
    else:
        raise bad("Choose the position: earliest, latest, a time, an offset or a shift.")
    if fields["queue"]:
        request.queue_id = _queue_id(fields)
    return request


def _queue_id(fields: dict[str, str]) -> int:
    return whole(fields["queue"], "The queue", most=1_023)


def _shift(fields: dict[str, str]) -> int:
    """Return the number of messages of a shift; negative: back. Raises CliError."""
    text = fields["shift"]
    found = whole(text.lstrip("+-"), "The number of messages", least=1)
    return -found if text.startswith("-") else found


def _where(fields: dict[str, str]) -> str:
    queue = f" of queue {fields['queue']}" if fields["queue"] else ""
    if fields["to"] == "time":
        moment = time_in_zone(int(fields["time"]))
        return Markup("the first message{} stored at {} or later").format(queue, moment)
    if fields["to"] == "shift":
        count = _shift(fields)
        way = "back" if count < 0 else "forward"
        return f"{words.counted(abs(count), 'message')} {way}{queue}"
    if fields["to"] == "offset":
        return f"offset {fields['offset']}{queue}"
    return f"the {'first message' if fields['to'] == 'earliest' else 'end'}{queue}"


def _reset_done(name: str, changes: Sequence[v1.OffsetChange]) -> Response:
    """Lead to the group after a reset, with the numbers of what was done."""
    effect = moves.effect(*changes)
    numbers = {"again": effect.again, "skipped": effect.skipped, "in_flight": effect.in_flight}
    return moved(f"/groups/{quoted(name)}", done="reset", **numbers)


def _notice(request: Request) -> str:
    """Return the notice of a change that has led to this page."""
    numbers = [request.query_params.get(name, "") for name in ("again", "skipped", "in_flight")]
    notice = _SECTION.notice(request)
    if notice and all(number.isascii() and number.isdigit() for number in numbers):
        return f"{notice} {moves.Effect(*map(int, numbers))}"
    return notice


def change_row(change: v1.OffsetChange) -> dict[str, object]:
    """Return a row of the plan of a reset."""
    return {
        "topic": change.topic,
        "broker group": change.broker,
        "queue": change.queue_id,
        "before": change.before if change.before >= 0 else "none",
        "after": change.after,
        "to consume": change.max_offset - change.after,
    }
