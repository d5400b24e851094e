"""Topics: list with search, one topic with its queues, create, alter, delete, send a test message.

A search reads the names of all topics and shows one page of those that match.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...operations.broker_groups import Outcome, answers, distinct
from ...operations.errors import CliError
from ...operations.sending import Draft, send_over
from ...operations.topic_values import PERMISSIONS, TOPIC_TYPE_NAMES, TOPIC_TYPES, permission_name
from ...proto import paths, v1
from ..cluster import Cluster, check, problems
from ..consumers import Facts
from ..inputs import bad, choice, whole
from ..paging import Slice
from ..views import Form, Plan, Views, moved, quoted
from .named import Section, searched

_QUEUES_MAX = 1_024
#: Consumer groups of which a topic's page has the progress: each costs a call.
_CONSUMERS_MAX = 50
#: Types whose messages `send_over` can make: a transaction needs a producer that answers checks.
_SENT_TYPES = tuple(name for name in TOPIC_TYPES if name != "transaction")
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC")
_SECTION = Section(
    "topic",
    "/topics",
    paths.DELETE_TOPIC,
    v1.DeleteTopicRequest,
    v1.DeleteTopicResponse,
    {
        "created": "The topic is created.",
        "unchanged": "The topic existed with these settings.",
        "altered": "The topic is changed.",
        "deleted": "The topic is deleted.",
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
    #: Messages that it holds; None if they were not read.
    messages: int | None = None


def topic_rows(found: Iterable[tuple[str, list[v1.ListTopicsResponse]]]) -> list[TopicRow]:
    """Return the topics of all broker groups by name."""
    rows: dict[str, TopicRow] = {}
    for broker, pages in found:
        for config in (config for page in pages for config in page.topics):
            kind = TOPIC_TYPE_NAMES.get(config.message_type, "normal")
            allowed = permission_name(config.perm)
            row = rows.get(config.name)
            if row is None:
                rows[config.name] = TopicRow(
                    config.name, kind, allowed, config.write_queues, [broker]
                )
                continue
            row.differs = row.differs or (kind, allowed) != (row.kind, row.permission)
            row.queues += config.write_queues
            row.brokers.append(broker)
    return [rows[name] for name in sorted(rows)]


class TopicPages:
    """The section of topics."""

    def __init__(self, cluster: Cluster, views: Views) -> None:
        self._cluster = cluster
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/topics", self.topics),
            views.show("/topics/new", self.new),
            views.act("/topics/new", self.create),
            views.show("/topics/{name}", self.topic),
            views.act("/topics/{name}/send", self.send),
            views.act("/topics/{name}/alter", self.alter),
            views.show("/topics/{name}/delete", self.plan_delete),
            views.act("/topics/{name}/delete", self.delete),
        ]

    def topics(self, request: Request) -> Response:
        """List the topics that match `q`."""
        system = bool(request.query_params.get("system"))
        outcomes = self._cluster.pages(
            paths.LIST_TOPICS,
            v1.ListTopicsRequest(include_system=system),
            v1.ListTopicsResponse,
            "topics",
        )
        rows = topic_rows(answers(outcomes))
        page, found = searched(request, rows)
        self._count(page)
        return self._views.page(
            request,
            "topics.html",
            title="Topics",
            **found,
            several=any(row.brokers != [""] for row in rows),
            problems=problems(outcomes),
            notice=_SECTION.notice(request),
        )

    def _count(self, page: Slice[TopicRow]) -> None:
        """Enter how many messages the topics of a page hold; the right to read it may lack."""
        names = [row.name for row in page.items]
        if not names:
            return
        request = v1.LocateLogRequest(topics=names)
        found: dict[str, int] = {}
        for one in self._cluster.each(paths.LOCATE_LOG, request, v1.LocateLogResponse):
            if one.answer is None:
                return
            for queue in one.answer.queues:
                held = queue.max_offset - queue.min_offset
                found[queue.topic] = found.get(queue.topic, 0) + held
        for row in page.items:
            row.messages = found.get(row.name, 0)

    def topic(self, request: Request, *, sent: object = None, status: int = 200) -> Response:
        """Show one topic."""
        name = request.path_params["name"]
        described = self._describe(name)
        found = answers(described)
        config = found[0][1].topic
        queues = [queue for _, answer in found for queue in answer.queues]
        kind = TOPIC_TYPE_NAMES.get(config.message_type, "normal")
        groups = consumers_of(self._cluster, name)
        return self._views.page(
            request,
            "topic.html",
            status=status,
            title=name,
            name=name,
            kind=kind,
            permission=permission_name(config.perm),
            settings=[(broker, answer.topic) for broker, answer in found],
            config=config,
            queues=queues,
            messages=sum(queue.max_offset - queue.min_offset for queue in queues),
            last_store_ms=max((queue.last_store_ms for queue in queues), default=0),
            consumers=[self._consumer(group, name) for group in groups[:_CONSUMERS_MAX]],
            further=len(groups) - _CONSUMERS_MAX,
            producers=self._producers(name),
            is_system=name.startswith(_SYSTEM_PREFIXES),
            can_send=kind in _SENT_TYPES or kind == "transaction",
            problems=problems(described),
            permissions=list(PERMISSIONS),
            notice=_SECTION.notice(request),
            sent=sent,
        )

    def _consumer(self, group: str, topic: str) -> Facts:
        """Return the progress of a consumer group on a topic."""
        row = Facts(group)
        request = v1.DescribeGroupRequest(name=group, topic=topic)
        for one in self._cluster.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse):
            if one.answer is not None:
                row.add(one.answer.progress)
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
            title="New topic",
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
            message_type=choice(TOPIC_TYPES, form.text("kind"), "type"),
            queues=whole(form.text("queues"), "Queues", least=1, most=_QUEUES_MAX),
            perm=choice(PERMISSIONS, form.text("permission"), "permission"),
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
            read_queues=whole(form.text("read_queues"), "Read queues", least=1, most=_QUEUES_MAX),
            write_queues=whole(
                form.text("write_queues"), "Write queues", least=1, most=_QUEUES_MAX
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
        f"Topics that are deleted: {', '.join(topics)}.",
        f"Messages that are lost: {messages:,} ({in_flight:,} in flight).",
        f"Consumer groups that lose their offsets: {', '.join(groups) or 'none'}.",
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
            raise bad(f"A property is NAME=VALUE, but is '{line[:80]}'.")
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
        delay_ms=1_000 * whole(delay, "Delay", most=40 * 86_400) if delay else None,
        priority=whole(priority, "Priority", most=1_000) if priority else None,
        lite_topic=form.text("lite_topic") or None,
    )


def _alter_plan(name: str, rows: list[dict[str, object]], form: Form) -> Plan:
    fields = {key: form.text(key) for key in ("read_queues", "write_queues", "permission")}
    url = f"/topics/{quoted(name)}"
    return Plan(
        f"Change topic {name}",
        ["Producers and consumers use the new settings within 30 s."] if rows else [],
        f"{url}/alter",
        "Change the topic",
        url,
        {**fields, "confirmed": "yes"},
        rows,
        refusal="" if rows else "The topic has these settings already.",
        is_dangerous=False,
    )


def _changes(
    broker: str, before: v1.TopicConfig, after: v1.TopicConfig
) -> Iterable[dict[str, object]]:
    pairs = (
        ("read queues", before.read_queues, after.read_queues),
        ("write queues", before.write_queues, after.write_queues),
        ("permission", permission_name(before.perm), permission_name(after.perm)),
    )
    for setting, old, new in pairs:
        if old != new:
            at = {"broker group": broker} if broker else {}
            yield {**at, "setting": setting, "before": old, "after": new}
