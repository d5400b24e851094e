"""`cometmq cluster add-group`: one more broker group in a running cluster of `cometmq up`.

The supervisor starts its processes; then the topics, consumer groups, policies and quotas of the
other groups are created in it: producers and consumers use its queues with their next route.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from ...operations import local_cluster
from ...operations.broker_groups import BrokerGroups, group_names
from ...operations.connection import Connection
from ...operations.errors import CliError
from ..links import connect, links
from ..options import endpoint_option
from .control import ask
from .definition_files import mend_all
from .layout import socket_path
from .reconcile import differences

_START_S = 120.0
_KNOWN_S = 30.0
_POLL_S = 0.1


@click.command("add-group")
@endpoint_option
def add_group(endpoint: str) -> None:
    """Start one more broker group in the running cluster of `cometmq up`, with all topics.

    The group has as many replicas as the others. Topics, consumer groups, policies and quotas are
    created in it; clients use its queues without a restart. If that fails, `cometmq cluster
    reconcile` continues. On machines of your own start the brokers of the new group, then run
    `cometmq cluster reconcile`.

    \b
    cometmq cluster add-group
    """
    started = ask(socket_path(_directory()), "add_group", "", _START_S)
    name = str(started["group"])
    click.echo(f"{name} is serving: {', '.join(started['processes'])}.")
    with connect(endpoint) as connection:
        groups = _known(connection, name)
        found, unread = differences(groups)
        if unread:
            text = "\n".join(f"The {what} cannot be read: {error}" for what, error in unread)
            raise CliError(f"{text}\nTo finish, run: cometmq cluster reconcile")
        missing = [each for each in found if each.broker == name]
        if mend_all(groups, missing, "table"):
            raise CliError("Not all is created.\nTo finish, run: cometmq cluster reconcile")


def _known(connection: Connection, name: str) -> BrokerGroups:
    """Return the groups when the node knows the new one. Raises CliError."""
    end_s = time.monotonic() + _KNOWN_S
    while name not in (names := group_names(connection)):
        if time.monotonic() > end_s:
            raise CliError(
                f"{connection.endpoint} does not know {name} within {_KNOWN_S:g} s.\n"
                "To finish, run: cometmq cluster reconcile"
            )
        time.sleep(_POLL_S)
    return BrokerGroups(connection, names)


def _directory() -> Path:
    """Return the data directory of `--data`, or that of the current directory."""
    if (named := links().data) is not None:
        return named
    file = local_cluster.found_file(local_cluster.ADDRESSES_FILE)
    return file.parent if file is not None else Path("data")
