"""`cometmq client`: list the connected producers and consumers of both protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .cluster.broker_groups import broker_option
from .names import groups, topics
from .options import endpoint_option, output_option
from .output import show_rows

if TYPE_CHECKING:
    from ..operations.broker_groups import BrokerGroups, Outcome
    from ..proto import v1

_PRODUCER = "producer"


@click.group()
def client() -> None:
    """List the connected producers and consumers."""


@client.command("list")
@click.option("--group", shell_complete=groups, default="", help="Only clients of this group.")
@click.option(
    "--topic", shell_complete=topics, default="", help="Only clients that name this topic."
)
@click.option("--producers", is_flag=True, help="Only producers.")
@broker_option
@endpoint_option
@output_option
def list_clients(*, group: str, topic: str, producers: bool, endpoint: str, output: str) -> None:
    """List the clients that are connected now, of the gRPC and of the remoting protocol.

    Producers of the gRPC protocol have no group; those of the remoting protocol do not tell their
    topics.

    \b
    cometmq client list --producers
    """
    from ..operations.broker_groups import answers
    from .cluster.broker_groups import broker_groups, note_failures

    with broker_groups(endpoint) as groups:
        outcomes = [_connected(groups, name) for name in groups.names]
    rows = [
        {
            "client_id": one.client.client_id,
            "kind": one.kind,
            "protocol": one.client.protocol,
            "language": one.client.language,
            "version": one.client.version,
            "address": one.client.peer,
            "groups": list(one.groups),
            "topics": list(one.topics),
            **({"broker": broker} if broker else {}),
        }
        for broker, found in answers(outcomes)
        for one in found
        if (not group or group in one.groups)
        and (not topic or topic in one.topics)
        and (not producers or _PRODUCER in one.kind)
    ]
    show_rows(rows, output, empty="No client is connected.")
    note_failures(outcomes)


def _connected(groups: BrokerGroups, name: str) -> Outcome[list[v1.ClientStatus]]:
    """Return the outcome of one broker group, page by page."""
    from ..operations.broker_groups import Outcome
    from ..proto import paths, v1

    found: list[v1.ClientStatus] = []
    request = v1.ListClientsRequest()
    while True:
        (outcome,) = groups.each(paths.LIST_CLIENTS, request, v1.ListClientsResponse, [name])
        if outcome.answer is None:
            return Outcome(outcome.broker, None, outcome.error)
        found += outcome.answer.clients
        if not outcome.answer.more or not outcome.answer.clients:
            return Outcome(outcome.broker, found)
        request.after = outcome.answer.clients[-1].client.client_id
