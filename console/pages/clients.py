"""Clients: connected producers and consumers of both protocols, with their settings and stacks.

A client is connected to several broker groups: its rows of all groups are one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...operations.broker_groups import Outcome, answers, distinct
from ...operations.errors import CliError, Exit
from ...proto import paths, v1
from ..cluster import CALL_S, Cluster, problems
from ..inputs import bad
from ..language import said
from ..views import Views
from .named import searched

# A client has 5 s to answer; the broker's own time comes on top.
_STACK_S = CALL_S + 2
#: Clients that are read of each broker group.
_CLIENTS_MAX = 20_000
_ID_MAX = 1_024


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One client in all broker groups.

    Computed when it is shown or searched: a page shows 50 of thousands of rows.
    """

    #: What each broker group knows of it; not empty.
    statuses: list[v1.ClientStatus]

    @property
    def client(self) -> v1.GroupClient:
        """The client as the broker group knows it that heard of it last."""
        return min((one.client for one in self.statuses), key=lambda one: one.last_seen_ms_ago)

    @property
    def name(self) -> str:
        """The id of the client."""
        return self.statuses[0].client.client_id

    @property
    def kind(self) -> str:
        """The kind of the client in words; "" if it is unknown."""
        return next((one.kind for one in self.statuses if one.kind), "")

    @property
    def groups(self) -> list[str]:
        """The consumer groups of the client."""
        return distinct(name for one in self.statuses for name in one.groups)

    @property
    def topics(self) -> list[str]:
        """The topics to which it sends."""
        return distinct(name for one in self.statuses for name in one.topics)

    def text(self) -> str:
        """Return what a search looks at."""
        words: list[str] = []
        for status in self.statuses:
            one = status.client
            words += (one.client_id, one.language, one.version, one.peer, one.protocol, status.kind)
            words += (*status.groups, *status.topics)
        return " ".join(words)


_COLUMNS: dict[str, Callable[[ClientRow], Any]] = {
    "name": lambda row: row.name,
    "kind": lambda row: row.kind,
    "language": lambda row: f"{row.client.language} {row.client.version}",
    "address": lambda row: row.client.peer,
    "last": lambda row: row.client.last_seen_ms_ago,
}


def client_rows(found: Iterable[v1.ClientStatus]) -> list[ClientRow]:
    """Return the clients by id, from the lists of all broker groups."""
    statuses: dict[str, list[v1.ClientStatus]] = {}
    for status in found:
        statuses.setdefault(status.client.client_id, []).append(status)
    return [ClientRow(statuses[name]) for name in sorted(statuses)]


class ClientPages:
    """The section of clients."""

    def __init__(self, cluster: Cluster, views: Views) -> None:
        self._cluster = cluster
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/clients", self.clients),
            views.show("/client", self.client),
            views.show("/client/stack", self.stack),
        ]

    def clients(self, request: Request) -> Response:
        """List the clients that match `q`."""
        outcomes = [self._listed(name) for name in self._cluster.names()]
        rows = client_rows(status for _, found in answers(outcomes) for status in found)
        return self._views.page(
            request,
            "clients.html",
            title=said("Clients"),
            **searched(request, rows, _COLUMNS, ClientRow.text),
            problems=problems(outcomes),
        )

    def _listed(self, broker: str) -> Outcome[list[v1.ClientStatus]]:
        request = v1.ListClientsRequest(broker=broker)
        call = self._cluster.connection.call
        found: list[v1.ClientStatus] = []
        try:
            while len(found) < _CLIENTS_MAX:
                page = call(paths.LIST_CLIENTS, request, v1.ListClientsResponse, CALL_S)
                found.extend(page.clients)
                if not (page.more and page.clients):
                    break
                request.after = page.clients[-1].client.client_id
        except CliError as error:
            return Outcome(broker, error=error)
        return Outcome(broker, found)

    def client(self, request: Request, *, stack: str = "", refusal: str = "") -> Response:
        """Show one client with its settings."""
        client_id = _id_of(request)
        wanted = v1.ListClientsRequest(client_id=client_id)
        outcomes = self._cluster.each(paths.LIST_CLIENTS, wanted, v1.ListClientsResponse)
        found = [status for _, answer in answers(outcomes) for status in answer.clients]
        (row,) = client_rows(found)
        fullest = max(found, key=lambda one: len(one.settings) + len(one.subscriptions))
        return self._views.page(
            request,
            "client.html",
            title=client_id,
            row=row,
            settings=fullest.settings,
            subscriptions=fullest.subscriptions,
            brokers=[broker for broker, _ in answers(outcomes) if broker],
            stack=stack,
            refusal=refusal,
            problems=problems(outcomes),
        )

    def stack(self, request: Request) -> Response:
        """Show one client with the stack of its threads, which it is asked for."""
        wanted = v1.GetClientStackRequest(client_id=_id_of(request))
        groups = self._cluster.groups(timeout_s=_STACK_S)
        outcomes = groups.each(paths.GET_CLIENT_STACK, wanted, v1.GetClientStackResponse)
        stacks = [one.answer.stack for one in outcomes if one.answer is not None]
        if stacks:
            return self.client(request, stack=stacks[0] or said("The client sent an empty stack."))
        errors = [one.error for one in outcomes if one.error is not None]
        refused = [one for one in errors if one.code is not Exit.NOT_FOUND] or errors
        return self.client(request, refusal=str(refused[0]))


def _id_of(request: Request) -> str:
    found = request.query_params.get("id", "")
    if not 0 < len(found) <= _ID_MAX:
        raise bad("Give the id of a client.")
    return found
