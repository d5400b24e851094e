"""Topics: list with search, one topic with its queues, create, alter, delete, send a test message.

A search reads the names of all topics and shows one page of those that match.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from ...operations import words
from ...operations.broker_groups import Outcome, answers, distinct
from ...operations.errors import CliError
from ...operations.sending import Draft, send_over
from ...operations.topic_values import PERMISSIONS, TOPIC_TYPE_NAMES, TOPIC_TYPES, permission_name
from ...proto import paths, v1
from ..cluster import Cluster, check, problems
from ..consumers import Facts
from ..history import Rates
from ..inputs import bad, choice, whole
from ..language import said
from ..views import Form, Plan, Views, moved, quoted
from .groups import subscriptions_of
from .named import Section, searched

_QUEUES_MAX = 1_024
#: Consumer groups of which a topic's page has the progress: each costs a call.
_CONSUMERS_MAX = 50
#: Consumers whose filter is read.
_FILTERS_OF = 8
#: Timers and transactions of a topic that are counted.
_COUNTED_MAX = 100
#: Lite topics of a page.
_LITES_MAX = 100
#: Types whose messages `send_over` can make: a transaction needs a producer that answers checks.
_SENT_TYPES = tuple(name for name in TOPIC_TYPES if name != "transaction")
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC")
_SECTION = Section(
    said("topic"),
    "/topics",
    paths.DELETE_TOPIC,
    v1.DeleteTopicRequest,
    v1.DeleteTopicResponse,
    {
        "created": said("The topic is created."),
        "unchanged": said("The topic existed with these settings."),
        "altered": said("The topic is changed."),
        "deleted": said("The topic is deleted."),
    },
)


@dataclass(slots=True)
class TopicRow:
    """One topic in the list: the settings of the first broker group, the sums of all."""

    name: str
    kind: str
    permission: str
    queues: int
    brokers: list[str]
    #: Whether the settings differ between broker groups.
    differs: bool = False
    #: Messages that it holds, that came a second, and the time of the last one.
    messages: int = 0
    sent_per_s: float = 0
    last_store_ms: int = 0


_COLUMNS: dict[str, Callable[[TopicRow], Any]] = {
    "name": lambda row: row.name,
    "type": lambda row: row.kind,
    "messages": lambda row: row.messages,
    "rate": lambda row: row.sent_per_s,
    "last": lambda row: row.last_store_ms,
    "queues": lambda row: row.queues,
}
_TRAFFIC = ("messages", "rate", "last")


def topic_rows(found: Iterable[tuple[str, list[v1.ListTopicsResponse]]]) -> list[TopicRow]:
    """Return the topics of all broker groups by name."""
    rows: dict[str, TopicRow] = {}
    for broker, pages in found:
        pairs = (pair for page in pages for pair in zip_longest(page.topics, page.traffic))
        for config, traffic in pairs:
            kind = TOPIC_TYPE_NAMES.get(config.message_type, "normal")
            allowed = permission_name(config.perm)
            row = rows.setdefault(config.name, TopicRow(config.name, kind, allowed, 0, []))
            row.differs = row.differs or (kind, allowed) != (row.kind, row.permission)
            row.queues += config.write_queues
            row.brokers.append(broker)
            if traffic is not None:  # a broker of an earlier version tells none
                row.messages += traffic.messages
                row.sent_per_s += traffic.sent_per_s
                row.last_store_ms = max(row.last_store_ms, traffic.last_store_ms)
    return [rows[name] for name in sorted(rows)]


@dataclass(slots=True)
class Consumer(Facts):
    """The progress of a consumer group on one topic, and what it takes of it."""

    client_ids: list[str] = field(default_factory=list)
    expression: str = ""

    def enter_filter(self, topic: str, told: Mapping[str, Sequence[v1.ClientSubscription]]) -> None:
        """Enter the filter of its first client: those of a group have the same."""
        own = told.get(self.client_ids[0], ()) if self.client_ids else ()
        self.expression = " ".join(one.expression or "*" for one in own if one.topic == topic)


class TopicPages:
    """The section of topics."""

    def __init__(self, cluster: Cluster, views: Views, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._views = views
        self._wall_ms = wall_ms
        self._rates = Rates()

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/topics", self.topics),
            views.show("/topics/new", self.new),
            views.act("/topics/new", self.create),
            views.show("/topics/{name}", self.topic),
            views.show("/topics/{name}/figures", self.figures),
            views.act("/topics/{name}/send", self.send),
            views.act("/topics/{name}/alter", self.alter),
            views.show("/topics/{name}/delete", self.plan_delete),
            views.act("/topics/{name}/delete", self.delete),
        ]

    def topics(self, request: Request) -> Response:
        """List the topics that match `q`."""
        system = bool(request.query_params.get("system"))
        # The traffic of all topics costs as much as all else: it is read if they are in its order.
        by_traffic = request.query_params.get("sort", "").removeprefix("-") in _TRAFFIC
        asked = v1.ListTopicsRequest(include_system=system, with_traffic=by_traffic)
        outcomes = self._cluster.pages(paths.LIST_TOPICS, asked, v1.ListTopicsResponse, "topics")
        rows = topic_rows(answers(outcomes))
        found = searched(request, rows, _COLUMNS)
        if not by_traffic:
            self._enter_traffic(found["page"].items, [row.name for row in rows], asked)
        return self._views.page(
            request,
            "topics.html",
            title=said("Topics"),
            **found,
            several=any(row.brokers != [""] for row in rows),
            problems=problems(outcomes),
            notice=_SECTION.notice(request),
        )

    def _enter_traffic(
        self, shown: Sequence[TopicRow], names: Sequence[str], asked: v1.ListTopicsRequest
    ) -> None:
        """Enter the traffic of the topics of a page, which lie between two of all names."""
        if not shown:
            return
        first = names.index(min(row.name for row in shown))
        last = names.index(max(row.name for row in shown))
        asked.with_traffic, asked.limit = True, last - first + 1
        asked.after = names[first - 1] if first else ""
        outcomes = self._cluster.each(paths.LIST_TOPICS, asked, v1.ListTopicsResponse)
        read = topic_rows((one.broker, [one.answer]) for one in outcomes if one.answer is not None)
        traffic = {row.name: row for row in read}
        for row in shown:
            if known := traffic.get(row.name):
                row.messages, row.sent_per_s = known.messages, known.sent_per_s
                row.last_store_ms = known.last_store_ms

    def topic(self, request: Request, *, sent: object = None, status: int = 200) -> Response:
        """Show one topic."""
        name = request.path_params["name"]
        described = self._describe(name)
        found = answers(described)
        groups = consumers_of(self._cluster, name)
        values = self._figures(name, described)
        consumers = [self._consumer(group, name) for group in groups[:_CONSUMERS_MAX]]
        asked = [one.client_ids[0] for one in consumers if one.client_ids][:_FILTERS_OF]
        told = subscriptions_of(self._cluster, asked)
        for one in consumers:
            one.enter_filter(name, told)
        lites, failed = self._lites(name) if values["kind"] == "lite" else ([], [])
        return self._views.page(
            request,
            "topic.html",
            status=status,
            title=name,
            **values,
            settings=[(broker, answer.topic) for broker, answer in found],
            config=found[0][1].topic,
            consumers=consumers,
            further=len(groups) - _CONSUMERS_MAX,
            producers=self._producers(name),
            lites=lites,
            is_system=name.startswith(_SYSTEM_PREFIXES),
            can_send=values["kind"] in _SENT_TYPES or values["kind"] == "transaction",
            problems=[*problems(described), *failed],
            permissions=list(PERMISSIONS),
            notice=_SECTION.notice(request),
            sent=sent,
        )

    def figures(self, request: Request) -> Response:
        """Return the part of an open page that changes: figures and the curve."""
        name = request.path_params["name"]
        text = self._views.part("topic_part.html", **self._figures(name, self._describe(name)))
        return HTMLResponse(text)

    def _figures(
        self, name: str, described: Sequence[Outcome[v1.DescribeTopicResponse]]
    ) -> dict[str, Any]:
        """Return what the page shows of the messages of a topic."""
        found = [answer for _, answer in answers(described)]
        kind = TOPIC_TYPE_NAMES.get(found[0].topic.message_type, "normal")
        queues = [queue for answer in found for queue in answer.queues]
        came = sum(queue.max_offset for queue in queues)
        is_whole = not problems(described)
        return {
            "name": name,
            "kind": kind,
            "permission": permission_name(found[0].topic.perm),
            "queues": queues,
            "messages": sum(queue.max_offset - queue.min_offset for queue in queues),
            "last_store_ms": max((queue.last_store_ms for queue in queues), default=0),
            "rates": self._rates.add(name, self._wall_ms(), came) if is_whole else [],
            "waiting": self._waiting(name) if kind in ("delay", "mixed") else None,
            "open": self._open(name) if kind in ("transaction", "mixed") else None,
        }

    def _waiting(self, topic: str) -> str:
        """Return how many messages of a topic wait for their time."""
        request = v1.ListTimersRequest(topic=topic, count=_COUNTED_MAX)
        outcomes = self._cluster.each(paths.LIST_TIMERS, request, v1.ListTimersResponse)
        found = [one.answer for one in outcomes if one.answer is not None]
        more = any(one.next_slot_ms or one.left_out for one in found)
        return words.number(sum(len(one.timers) for one in found)) + "+" * more

    def _open(self, topic: str) -> str:
        """Return how many transactions of a topic have no outcome."""
        request = v1.ListTransactionsRequest(topic=topic, count=_COUNTED_MAX)
        outcomes = self._cluster.each(paths.LIST_TRANSACTIONS, request, v1.ListTransactionsResponse)
        found = [one.answer for one in outcomes if one.answer is not None]
        more = any(one.left_out for one in found)
        return words.number(sum(len(one.transactions) for one in found)) + "+" * more

    def _lites(self, parent: str) -> tuple[list[tuple[str, str, int, int]], list[str]]:
        """Return the lite topics with group, lag and messages, the largest lag first, and what
        failed. One that no group has subscribed to has the group ""."""
        request = v1.DescribeTopicRequest(name=parent, lite_topics="*")
        outcomes = self._cluster.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
        lags: Counter[tuple[str, str]] = Counter()
        messages: Counter[tuple[str, str]] = Counter()
        for one in outcomes:
            for lite in one.answer.lite_topics if one.answer is not None else ():
                for group in lite.groups or (v1.LiteTopicGroup(),):
                    lags[lite.name, group.group] += group.lag
                    messages[lite.name, group.group] += lite.messages
        first = sorted(lags, key=lambda key: (-lags[key], -messages[key], key))[:_LITES_MAX]
        return [(*key, lags[key], messages[key]) for key in first], problems(outcomes)

    def _consumer(self, group: str, topic: str) -> Consumer:
        """Return the progress of a consumer group on a topic."""
        row = Consumer(group)
        request = v1.DescribeGroupRequest(name=group, topic=topic)
        for one in self._cluster.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse):
            if one.answer is not None:
                row.add(one.answer.progress)
                row.client_ids += [client.client_id for client in one.answer.clients[:1]]
        return row

    def _producers(self, topic: str) -> list[str]:
        """Return the ids of connected producers that name a topic."""
        request = v1.ListClientsRequest()
        outcomes = self._cluster.each(paths.LIST_CLIENTS, request, v1.ListClientsResponse)
        found = (one for each in outcomes if each.answer for one in each.answer.clients)
        return sorted({one.client.client_id for one in found if topic in one.topics})

    def _describe(self, name: str) -> list[Outcome[v1.DescribeTopicResponse]]:
        request = v1.DescribeTopicRequest(name=name)
        return self._cluster.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)

    def new(self, request: Request) -> Response:
        """Show the form of a new topic."""
        return self._views.page(
            request,
            "topic_new.html",
            title=said("New topic"),
            types=list(TOPIC_TYPES),
            permissions=list(PERMISSIONS),
        )

    def create(self, request: Request, form: Form) -> Response:
        """Create a topic in every broker group."""
        name = form.text("name")
        if not name:
            raise bad("Give the topic a name.")
        wanted = v1.CreateTopicRequest(
            name=name,
            message_type=choice(TOPIC_TYPES, form.text("kind"), said("type")),
            queues=whole(form.text("queues"), said("Queues"), least=1, most=_QUEUES_MAX),
            perm=choice(PERMISSIONS, form.text("permission"), said("permission")),
        )
        outcomes = self._cluster.each(paths.CREATE_TOPIC, wanted, v1.CreateTopicResponse)
        return _SECTION.created(name, outcomes)

    def alter(self, request: Request, form: Form) -> Response:
        """Plan new settings, then, confirmed, make them."""
        name = request.path_params["name"]
        wanted = v1.CreateTopicRequest(
            name=name,
            must_exist=True,
            dry_run=True,
            read_queues=whole(
                form.text("read_queues"), said("Read queues"), least=1, most=_QUEUES_MAX
            ),
            write_queues=whole(
                form.text("write_queues"), said("Write queues"), least=1, most=_QUEUES_MAX
            ),
            perm=choice(PERMISSIONS, form.text("permission"), "permission"),
        )
        before = dict(answers(self._describe(name)))
        planned = self._cluster.each(paths.CREATE_TOPIC, wanted, v1.CreateTopicResponse)
        check(planned)
        if not form.text("confirmed"):
            rows = [
                row
                for broker, answer in answers(planned)
                for row in _changes(broker, before[broker].topic, answer.topic)
            ]
            return self._views.plan(request, _alter_plan(name, rows, form))
        wanted.dry_run = False
        check(self._cluster.each(paths.CREATE_TOPIC, wanted, v1.CreateTopicResponse))
        return moved(f"/topics/{quoted(name)}", done="altered")

    def plan_delete(self, request: Request) -> Response:
        """Show what the deletion of a topic removes."""
        return _SECTION.show_deletion(request, self._views, self._cluster, _losses)

    def delete(self, request: Request, form: Form) -> Response:
        """Delete a topic with its messages; its name must have been typed."""
        return _SECTION.delete(request, form, self._cluster)

    def send(self, request: Request, form: Form) -> Response:
        """Send one message and show where it is stored."""
        draft = draft_of(request.path_params["name"], form)
        result = send_over(self._cluster.connection, [draft], locate=True)
        if result.failures:
            raise CliError(next(iter(result.failures)))
        return self.topic(request, sent=result.receipts[0])


def _losses(plans: Sequence[v1.DeleteTopicResponse]) -> list[str]:
    topics = distinct(topic for plan in plans for topic in plan.topics)
    groups = distinct(group for plan in plans for group in plan.groups)
    messages = sum(plan.messages for plan in plans)
    in_flight = sum(plan.in_flight for plan in plans)
    return [
        said("Topics that are deleted: {}.", ", ".join(topics)),
        said(
            "Messages that are lost: {} ({} in flight).",
            words.number(messages),
            words.number(in_flight),
        ),
        said("Consumer groups that lose their offsets: {}.", ", ".join(groups) or said("none")),
    ]


def consumers_of(cluster: Cluster, name: str) -> list[str]:
    """Return the groups with offsets on a topic; [] without the right to plan its deletion."""
    plans = [one.answer for one in _SECTION.deletions(cluster, name) if one.answer is not None]
    return sorted({group for plan in plans for group in plan.groups})


def kind_of(cluster: Cluster, topic: str) -> str:
    """Return the type of a topic. Raises CliError."""
    request = v1.DescribeTopicRequest(name=topic)
    outcomes = cluster.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
    _, first = answers(outcomes)[0]
    return TOPIC_TYPE_NAMES.get(first.topic.message_type, "normal")


def lines(text: str) -> str:
    """Return a text with the line ends of the user: browsers send CR LF for each of a form."""
    return text.replace("\r\n", "\n")


def draft_of(topic: str, form: Form) -> Draft:
    """Return the message of a form. Raises CliError for a malformed field."""
    properties = {}
    for line in form.get("properties", "").splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and not (name.strip() and equals):
            raise bad("A property is NAME=VALUE, but is '{}'.", line[:80])
        if line.strip():
            properties[name.strip()] = value.strip()
    delay, priority = form.text("delay_s"), form.text("priority")
    return Draft(
        topic,
        lines(form.get("body", "")).encode(),
        tuple(form.text("keys").split()),
        form.text("tag") or None,
        properties,
        group=form.text("message_group") or None,
        delay_ms=1_000 * whole(delay, said("Delay"), most=40 * 86_400) if delay else None,
        priority=whole(priority, said("Priority"), most=1_000) if priority else None,
        lite_topic=form.text("lite_topic") or None,
    )


def _alter_plan(name: str, rows: list[dict[str, object]], form: Form) -> Plan:
    fields = {key: form.text(key) for key in ("read_queues", "write_queues", "permission")}
    url = f"/topics/{quoted(name)}"
    return Plan(
        said("Change topic {}", name),
        [said("Producers and consumers use the new settings within 30 s.")] if rows else [],
        f"{url}/alter",
        said("Change the topic"),
        url,
        {**fields, "confirmed": "yes"},
        rows,
        refusal="" if rows else said("The topic has these settings already."),
        is_dangerous=False,
    )


def _changes(
    broker: str, before: v1.TopicConfig, after: v1.TopicConfig
) -> Iterable[dict[str, object]]:
    pairs = (
        (said("read queues"), before.read_queues, after.read_queues),
        (said("write queues"), before.write_queues, after.write_queues),
        (said("permission"), permission_name(before.perm), permission_name(after.perm)),
    )
    for setting, old, new in pairs:
        if old != new:
            at = {said("broker group"): broker} if broker else {}
            yield {**at, said("setting"): setting, said("before"): old, said("after"): new}
