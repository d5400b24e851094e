"""High availability: roles, epochs, in-sync sets and log positions; planned switchovers.

The figures are those of `cometmq ha status`. Without a nameserver they come from the brokers alone.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...cli.errors import CliError
from ...cli.ha.rows import GroupView, group_fields, replica_rows
from ...proto import paths, v1
from ..cluster import Cluster, problems
from ..controllers import Controllers
from ..inputs import whole
from ..overview import BAD, OK, WARNING, GroupState, picture
from ..views import Form, Plan, Views, quoted

_LEVELS = {"healthy": OK, "degraded": WARNING, "draining": WARNING, "unknown": WARNING}
_BROKER_ID_MAX = 1_000_000


def group_values(view: GroupView) -> dict[str, Any]:
    """Return what the page shows of a group of `cometmq ha status`."""
    absent = {"problems": [], "phase": "", "policy": "", "hold": "", "cuts": []}
    fields = absent | group_fields(view)
    rows = replica_rows(view)
    ends = [row["log_end"] for row in rows if row["log_end"] is not None]
    end = max(ends, default=0)
    for row in rows:
        row["behind"] = None if row["log_end"] is None else end - row["log_end"]
    return {
        "fields": fields,
        "level": _LEVELS.get(fields["health"], BAD),
        "replicas": rows,
        "has_controller": view.report is not None,
        "followers": [
            row["broker_id"] for row in rows if row["role"] == "follower" and row["in_sync"]
        ],
    }


class HighAvailabilityPages:
    """The section of high availability."""

    def __init__(self, cluster: Cluster, controllers: Controllers, views: Views) -> None:
        self._cluster = cluster
        self._controllers = controllers
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/ha", self.overview),
            views.show("/ha/{group}/switchover", self.plan),
            views.act("/ha/{group}/switchover", self.switch),
        ]

    def overview(self, request: Request) -> Response:
        """Show every broker group."""
        error, groups = "", []
        try:
            groups = [group_values(view) for view in self._controllers.groups()]
        except CliError as failed:
            error = str(failed)
        outcomes = self._cluster.each(
            paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
        )
        described = [GroupState(one.broker, one.answer) for one in outcomes if one.answer]
        return self._views.page(
            *(request, "ha.html"),
            title="High availability",
            groups=groups,
            error=error,
            brokers=[(one, picture(one, frozenset())) for one in described],
            problems=problems(outcomes),
        )

    def plan(self, request: Request) -> Response:
        """Show the steps of a switchover."""
        group = request.path_params["group"]
        text = request.query_params.get("to", "")
        to = whole(text, "The broker id", most=_BROKER_ID_MAX)
        answer = self._controllers.switchover(group, to, dry_run=True)
        plan = Plan(
            f"Make broker {to} the leader of {group}",
            [*answer.steps, "Sends wait during the change; clients see no errors."],
            *(f"/ha/{quoted(group)}/switchover", "Switch over", "/ha"),
            fields={"to": str(to)},
        )
        return self._views.plan(request, plan)

    def switch(self, request: Request, form: Form) -> Response:
        """Carry out a switchover and show its steps."""
        group = request.path_params["group"]
        to = whole(form.text("to"), "The broker id", most=_BROKER_ID_MAX)
        answer = self._controllers.switchover(group, to, dry_run=False)
        leaders = [
            f"Leader: broker {report.state.leader.broker_id}, epoch {report.state.epoch}."
            for report in answer.groups
            if report.state.group == group and report.state.HasField("leader")
        ]
        return self._views.page(
            *(request, "switched.html"),
            title="Result",
            group=group,
            steps=[*answer.steps, *leaders],
        )
