"""`cometmq quota`: set, delete and list the quotas of users and topics."""

from collections.abc import Sequence

import click

from ...auth.quota import LIMITS
from ...operations.broker_groups import Outcome, answers, failure_of_all, present
from ...operations.errors import CliError, Exit
from ...proto import paths, v1
from ..cluster.broker_groups import (
    broker_groups,
    broker_option,
    merged,
    note_failures,
    show_done,
    show_failures,
)
from ..options import endpoint_option, output_option
from ..output import show_rows

_LIMIT = click.IntRange(min=0)


@click.group()
def quota() -> None:
    """Set, delete and list the quotas of users and topics."""


@quota.command("set")
@click.argument("subject")
@click.option("--messages", type=_LIMIT, help="Messages sent a second; 0: no limit.")
@click.option("--bytes", "size", type=_LIMIT, help="Bytes sent a second; 0: no limit.")
@click.option("--connections", type=_LIMIT, help="Connected clients; 0: no limit.")
@click.option("--polls", type=_LIMIT, help="Waiting receives; 0: no limit.")
@click.option("--stored", type=_LIMIT, help="Bytes in the log; 0: no limit.")
@broker_option
@endpoint_option
@output_option
def set_quota(
    *,
    subject: str,
    messages: int | None,
    size: int | None,
    connections: int | None,
    polls: int | None,
    stored: int | None,
    endpoint: str,
    output: str,
) -> None:
    """Set limits of SUBJECT: User:NAME, Topic:NAME, or User:*, Topic:* for all without their own.

    Limits that are not given stay. They hold for each broker group.

    \b
    cometmq quota set User:orders-service --messages 1000
    """
    given = (messages, size, connections, polls, stored)
    limits = dict(zip(LIMITS, given, strict=True))
    if all(limit is None for limit in limits.values()):
        names = ", ".join(f"--{name}" for name in LIMITS)
        raise CliError(f"Give a limit: {names}.", Exit.USAGE)
    request = v1.PutQuotaRequest(subject=subject)
    for name, limit in limits.items():
        if limit is not None:
            setattr(request, name, limit)
    with broker_groups(endpoint) as groups:
        _show(groups.each(paths.PUT_QUOTA, request, v1.QuotaResponse), output)


@quota.command()
@click.argument("subject")
@broker_option
@endpoint_option
@output_option
def delete(*, subject: str, endpoint: str, output: str) -> None:
    """Delete the quota of SUBJECT.

    \b
    cometmq quota delete User:orders-service
    """
    with broker_groups(endpoint) as groups:
        request = v1.DeleteQuotaRequest(subject=subject)
        outcomes = present(groups.each(paths.DELETE_QUOTA, request, v1.QuotaResponse))
    if all(one.absent for one in outcomes):
        raise failure_of_all(outcomes)
    if output == "table":
        show_done(outcomes, f"Deleted the quota of {subject}.", output)
    else:
        _show(outcomes, output)


@quota.command("list")
@broker_option
@endpoint_option
@output_option
def list_quotas(*, endpoint: str, output: str) -> None:
    """List the quotas.

    \b
    cometmq quota list
    """
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.LIST_QUOTAS, v1.ListQuotasRequest(), v1.ListQuotasResponse)
    rows = merged((name, map(quota_row, answer.quotas)) for name, answer in answers(outcomes))
    show_rows(rows, output, empty="There are no quotas.")
    note_failures(outcomes)


def _show(outcomes: Sequence[Outcome[v1.QuotaResponse]], output: str) -> None:
    rows = merged((name, [quota_row(answer.quota)]) for name, answer in answers(outcomes))
    show_rows(rows, output, empty="")
    show_failures(outcomes)


def quota_row(config: v1.QuotaConfig) -> dict[str, object]:
    """Return a quota as a table row."""
    return {"subject": config.subject, **{name: getattr(config, name) or "-" for name in LIMITS}}
