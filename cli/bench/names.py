"""The topic and the consumer group of a run: made for it and deleted afterwards, or given."""

import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from ...operations.broker_groups import BrokerGroups, Outcome
from ...operations.errors import CliError, Exit, NotServedError
from ...operations.sending import Draft, route_of
from ...operations.topic_values import TOPIC_TYPES
from ...proto import paths, v1
from ..cluster.broker_groups import broker_groups
from ..links import connect
from .workloads import Workload


@dataclass(frozen=True, slots=True)
class Names:
    """A topic and a consumer group."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class Target:
    """Where to measure. `topic` and `group` are given names; `keep` those made for the run."""

    endpoint: str
    topic: str | None
    group: str | None
    keep: bool


@contextmanager
def names_of(target: Target, workload: Workload) -> Iterator[Names]:
    """Yield the given names, or those of a new topic and group. Raises CliError."""
    if target.topic and target.group:
        yield Names(target.topic, target.group)
        return
    if target.topic or target.group:
        raise CliError("Give both --topic and --group, or neither.", Exit.USAGE)
    suffix = secrets.token_hex(4)
    names = Names(f"bench-{workload.topic_type}-{suffix}", f"bench-{suffix}")
    with broker_groups(target.endpoint) as groups:
        try:
            _create(groups, names, workload)
            yield names
        finally:
            if not target.keep:
                _delete(groups, names)


def _create(groups: BrokerGroups, names: Names, workload: Workload) -> None:
    topic = v1.CreateTopicRequest(name=names.topic, message_type=TOPIC_TYPES[workload.topic_type])
    group = v1.CreateGroupRequest(name=names.group, orderly=workload.is_ordered)
    outcomes: list[Outcome[Any]] = [
        *groups.each(paths.CREATE_TOPIC, topic, v1.CreateTopicResponse),
        *groups.each(paths.CREATE_GROUP, group, v1.CreateGroupResponse),
    ]
    for outcome in outcomes:
        if isinstance(outcome.error, NotServedError):
            raise CliError(
                "The server has no Admin service of CometMQ: name an existing topic and consumer"
                " group with --topic and --group."
            )
        if outcome.error is not None:
            raise outcome.error


def _delete(groups: BrokerGroups, names: Names) -> None:
    """Delete both; what remains is named on stderr."""
    topic = v1.DeleteTopicRequest(name=names.topic, accept_loss=True)
    group = v1.DeleteGroupRequest(name=names.group, accept_loss=True, force=True)
    left = (
        ("topic", names.topic, groups.each(paths.DELETE_TOPIC, topic, v1.DeleteTopicResponse)),
        ("group", names.group, groups.each(paths.DELETE_GROUP, group, v1.DeleteGroupResponse)),
    )
    for noun, name, outcomes in left:
        if any(each.error is not None and not each.absent for each in outcomes):
            command = shlex.join(["cometmq", noun, "delete", name, "--accept-loss", "--yes"])
            click.echo(f"cometmq: {noun} {name} was not deleted: {command}", err=True)


def servers_of(endpoint: str, topic: str) -> list[tuple[str, int]]:
    """Return the addresses of the topic's brokers. Raises CliError."""
    with connect(endpoint) as connection:
        route = route_of(connection, Draft(topic, b""))
    found = {
        (address.host, address.port)
        for queue in route.message_queues
        for address in queue.broker.endpoints.addresses
    }
    return sorted(found)
