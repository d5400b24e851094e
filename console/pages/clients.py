"""Clients: the connected consumers, with version, address and consumer groups.

Brokers list clients by consumer group; producers are not listed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...cli.cluster.broker_groups import answers
from ...proto import paths, v1
from ..cluster import Cluster, problems
from ..paging import page_of
from ..views import Views
from .groups import all_groups, clients_of, group_rows

#: Consumer groups whose clients are read: one call for each, some milliseconds.
GROUPS_MAX = 100


@dataclass(slots=True)
class ClientRow:
    """One client in all its consumer groups."""

    client: v1.GroupClient
    groups: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return what a search looks at."""
        one = self.client
        return " ".join((one.client_id, one.language, one.version, one.peer, *self.groups))


def client_rows(found: Iterable[tuple[str, list[v1.GroupClient]]]) -> list[ClientRow]:
    """Return the clients by id, from the clients of each consumer group."""
    rows: dict[str, ClientRow] = {}
    for group, clients in found:
        for client in clients:
            row = rows.setdefault(client.client_id, ClientRow(client))
            row.groups.append(group)
            if client.last_seen_ms_ago < row.client.last_seen_ms_ago:
                row.client = client
    return [rows[name] for name in sorted(rows)]


class ClientPages:
    """The section of clients."""

    def __init__(self, cluster: Cluster, views: Views) -> None:
        self._cluster = cluster
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        return [self._views.show("/clients", self.clients)]

    def clients(self, request: Request) -> Response:
        """List the clients that match `q`."""
        query = request.query_params
        outcomes = all_groups(self._cluster, system=False)
        groups = [row for row in group_rows(answers(outcomes)) if row.clients]
        groups.sort(key=lambda row: -row.clients)
        rows = client_rows((row.name, self._clients(row.name)) for row in groups[:GROUPS_MAX])
        wanted = query.get("q", "")[:255]
        return self._views.page(
            *(request, "clients.html"),
            title="Clients",
            page=page_of(rows, wanted, query.get("page", ""), ClientRow.text),
            wanted=wanted,
            left=max(0, len(groups) - GROUPS_MAX),
            problems=problems(outcomes),
        )

    def _clients(self, group: str) -> list[v1.GroupClient]:
        """Return the clients of a group; [] if it is gone by now."""
        request = v1.DescribeGroupRequest(name=group)
        outcomes = self._cluster.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
        return clients_of(one.answer for one in outcomes if one.answer is not None)
