"""`cometmq cluster drain`: writers leave a broker group; its consumers finish what it has.

The topics of the group lose the permission to write, also those that are created later. Routes then
name its queues as readable only, and producers use the other groups; retries, dead letters and
delayed messages stay in the group. A group is empty when no consumer group has a lag there and no
delayed message waits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from ...operations.broker_groups import BrokerGroups, answers, group_names
from ...operations.errors import CliError, Exit, NotServedError
from ...proto import paths, v1
from ..confirm import go_on, plan_options
from ..links import connect
from ..options import endpoint_option, output_option
from ..output import show_document
from .reconcile import PERM_WRITE, TOPICS

_POLL_S = 1.0


@click.command()
@click.argument("name", metavar="GROUP")
@click.option("--undo", is_flag=True, help="Let producers use the group again.")
@click.option("--wait", is_flag=True, help="Return when the group is empty.")
@plan_options
@endpoint_option
@output_option
def drain(
    *, name: str, undo: bool, wait: bool, dry_run: bool, yes: bool, endpoint: str, output: str
) -> int:
    """Let producers leave broker group GROUP (its brokerName), and show what is left in it.

    Its topics become read-only there; consumers finish. Repeat the command to see whether the group
    is empty: exit code 0; 3 if it is not. Topics that are created later are read-only there too,
    until --undo. The messages of one message group can be consumed out of order while they move.

    \b
    cometmq cluster drain broker-a --wait
    cometmq cluster drain broker-a --undo
    """
    if undo and wait:
        raise CliError("--undo and --wait exclude each other.", Exit.USAGE)
    with connect(endpoint) as connection:
        groups = BrokerGroups(connection, group_names(connection))
        if name not in groups.names:
            if len(groups.names) == 1:
                text = "The cluster has one broker group: no other can take its producers."
                raise CliError(f"{text} `cometmq cluster add-group` adds one.", Exit.USAGE)
            raise CliError(
                f"No broker group {name}; there are: {', '.join(groups.names)}.", Exit.USAGE
            )
        topics = _to_change(groups, name, undo=undo)
        rows = [
            {"broker": name, "topic": topic, "permission": "rw" if undo else "read"}
            for topic, _ in topics
        ]
        question = "Let producers use it again?" if undo else "Make these topics read-only there?"
        if rows and not go_on({}, question, output, rows=rows, dry_run=dry_run, yes=yes):
            return Exit.DONE
        if not dry_run:
            _set_drained(groups, name, drained=not undo)
            _change(groups, name, topics)
        if undo:
            click.echo(f"Producers use {name} again: {len(topics)} topics.", err=output == "json")
            return Exit.DONE
        left = _left(groups, name)
        while wait and not left.is_empty:
            time.sleep(_POLL_S)
            left = _left(groups, name)
    if not rows or output == "table":  # otherwise the plan is the document
        left.show(output)
    return Exit.DONE if left.is_empty else Exit.UNHEALTHY


@dataclass(frozen=True, slots=True)
class _Left:
    """What a group still has."""

    broker: str
    #: Messages that consumer groups have not consumed; those with a lag only.
    lags: dict[str, int]
    delayed: bool

    @property
    def is_empty(self) -> bool:
        return not self.lags and not self.delayed

    def show(self, output: str) -> None:
        if output == "json":
            show_document(
                {
                    "broker": self.broker,
                    "empty": self.is_empty,
                    "lag": sum(self.lags.values()),
                    "lags": self.lags,
                    "delayed": self.delayed,
                }
            )
            return
        if self.is_empty:
            click.echo(f"{self.broker} is empty: no group has a lag, and no delayed message waits.")
            return
        words = [f"{count} of {group}" for group, count in sorted(self.lags.items())]
        words += ["delayed messages wait"] if self.delayed else []
        click.echo(f"{self.broker} is not empty: {', '.join(words)}.")


def _topics(groups: BrokerGroups) -> dict[str, dict[str, v1.TopicConfig]]:
    """Return the topics of each group by name. Raises CliError if one cannot be read."""
    found = {}
    for one in TOPICS.read(groups):
        if one.error is not None:
            raise CliError(f"The topics of {one.broker}: {one.error}")
        found[one.broker] = {topic.name: topic for topic in one.answer or ()}
    return found


def _to_change(groups: BrokerGroups, name: str, *, undo: bool) -> list[tuple[str, int]]:
    """Return the topics that change, with their new permissions. Raises CliError."""
    topics = _topics(groups)
    own = topics.pop(name)

    def elsewhere(topic: str) -> list[v1.TopicConfig]:
        return [found[topic] for found in topics.values() if topic in found]

    if undo:
        return [
            (topic, config.perm | PERM_WRITE)
            for topic, config in own.items()
            if not config.perm & PERM_WRITE
            and (not (others := elsewhere(topic)) or any(o.perm & PERM_WRITE for o in others))
        ]
    writable = [topic for topic, config in own.items() if config.perm & PERM_WRITE]
    alone = [topic for topic in writable if not any(o.perm & PERM_WRITE for o in elsewhere(topic))]
    if alone:
        raise CliError(
            f"No other group takes messages of {', '.join(sorted(alone)[:10])}: run"
            " `cometmq cluster reconcile` first, and keep one group that is not drained."
        )
    return [(topic, own[topic].perm & ~PERM_WRITE) for topic in writable]


def _set_drained(groups: BrokerGroups, name: str, *, drained: bool) -> None:
    """Begin or end that topics cannot become writable. Raises CliError."""
    request = v1.SetDrainedRequest(drained=drained)
    (done,) = groups.each(paths.SET_DRAINED, request, v1.SetDrainedResponse, (name,))
    if isinstance(done.error, NotServedError):
        if drained:
            click.echo(
                f"cometmq: {name} runs an earlier version: producers use its topics that are"
                " created later.",
                err=True,
            )
    elif done.error is not None:
        raise done.error


def _change(groups: BrokerGroups, name: str, topics: Sequence[tuple[str, int]]) -> None:
    """Set permissions. Raises CliError; a repetition continues."""
    for topic, perm in topics:
        request = v1.CreateTopicRequest(name=topic, perm=perm, must_exist=True)
        (done,) = groups.each(paths.CREATE_TOPIC, request, v1.CreateTopicResponse, (name,))
        if done.error is not None:
            raise CliError(f"Topic {topic}: {done.error} Repeat the command to continue.")


def _left(groups: BrokerGroups, name: str) -> _Left:
    here = groups.among([name])
    lags: Counter[str] = Counter()
    for group, progress in _progress(here):
        lags[group] += progress.lag
    for group, topic in _unread(groups, name):
        request = v1.DescribeTopicRequest(name=topic)
        (one,) = here.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
        if one.answer is not None:
            lags[group] += sum(queue.max_offset - queue.min_offset for queue in one.answer.queues)
        elif not one.absent and one.error is not None:
            raise one.error
    return _Left(name, {group: lag for group, lag in lags.items() if lag}, _delayed(here))


def _progress(groups: BrokerGroups) -> Iterator[tuple[str, v1.GroupProgress]]:
    request = v1.ListGroupsRequest()
    pages = groups.pages(paths.LIST_GROUPS, request, v1.ListGroupsResponse, "groups")
    for _, found in answers(pages):
        for page in found:
            names = [each.name for each in page.groups]
            yield from zip(names, page.progress, strict=True)


def _unread(groups: BrokerGroups, name: str) -> list[tuple[str, str]]:
    """Return the groups and topics that are consumed elsewhere, but never were in this group.

    Such a group has no offsets here, so its lag is not counted.
    """
    found = []
    for group in sorted({group for group, _ in _progress(groups)}):
        request = v1.DescribeGroupRequest(name=group)
        consumed = {
            one.broker: {queue.topic for queue in one.answer.queues if not queue.retry}
            for one in groups.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
            if one.answer is not None
        }
        everywhere = set().union(*consumed.values())
        found += [(group, topic) for topic in sorted(everywhere - consumed.get(name, set()))]
    return found


def _delayed(here: BrokerGroups) -> bool:
    """Return whether a delayed message waits in the group. Raises CliError."""
    request = v1.ListTimersRequest(count=1, include_system=True)
    while True:
        ((_, answer),) = answers(here.each(paths.LIST_TIMERS, request, v1.ListTimersResponse))
        if answer.timers:
            return True
        if not answer.next_slot_ms:
            return False
        request.slot_ms = answer.next_slot_ms
