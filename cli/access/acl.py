"""`cometmq acl`: create, delete and list the policies of users."""

from collections.abc import Sequence

import click

from ...operations.broker_groups import Outcome, answers, present
from ...operations.policies import policy, policy_rows
from ...proto import paths, v1
from ..cluster.broker_groups import broker_groups, broker_option, merged, show_failures
from ..options import endpoint_option, output_option
from ..output import show_rows
from .user import show_users

_RESOURCE = "Topic:NAME, Topic:PREFIX* or Topic:*, the same with Group or Cluster, or * (all)."


@click.group()
def acl() -> None:
    """Create, delete and list the policies of users."""


@acl.command()
@click.option("--user", required=True, help="User.")
@click.option("--resource", required=True, help=_RESOURCE)
@click.option(
    "--actions", required=True, help="Pub, Sub, Create, Update, Delete, Get, List or All; a list."
)
@click.option(
    "--from", "sources", multiple=True, metavar="CIDR", help="Only for these clients; repeatable."
)
@click.option(
    "--decision", type=click.Choice(["allow", "deny"]), default="allow", show_default=True
)
@broker_option
@endpoint_option
@output_option
def create(
    *,
    user: str,
    resource: str,
    actions: str,
    sources: tuple[str, ...],
    decision: str,
    endpoint: str,
    output: str,
) -> None:
    """Add a policy; it replaces the user's policy with the same resource and decision.

    \b
    cometmq acl create --user orders-service --resource Topic:orders --actions Pub,Sub
    """
    wanted = policy(resource, actions, sources, decision)
    with broker_groups(endpoint) as groups:
        request = v1.PutPolicyRequest(user=user, policy=wanted)
        show(groups.each(paths.PUT_POLICY, request, v1.UserResponse), output)


@acl.command()
@click.option("--user", required=True, help="User.")
@click.option("--resource", default="", help="Only policies for this resource.")
@click.option("--decision", type=click.Choice(["allow", "deny"]), help="Only with this decision.")
@broker_option
@endpoint_option
@output_option
def delete(*, user: str, resource: str, decision: str | None, endpoint: str, output: str) -> None:
    """Delete policies of a user.

    \b
    cometmq acl delete --user orders-service --resource Topic:orders
    """
    allow = None if decision is None else decision == "allow"
    request = v1.DeletePolicyRequest(user=user, resource=resource, allow=allow)
    with broker_groups(endpoint) as groups:
        show(present(groups.each(paths.DELETE_POLICY, request, v1.UserResponse)), output)


@acl.command("list")
@click.option("--user", default="", help="Only this user.")
@broker_option
@endpoint_option
@output_option
def list_policies(*, user: str, endpoint: str, output: str) -> None:
    """List the policies.

    \b
    cometmq acl list --user orders-service
    """
    show_users(endpoint, policy_rows, output, empty="There are no policies.", name=user)


def show(outcomes: Sequence[Outcome[v1.UserResponse]], output: str) -> None:
    """Print all policies of a user after a change of them. Raises CliError if a group failed."""
    found = answers(outcomes)
    rows = merged((broker, policy_rows(answer.user)) for broker, answer in found)
    show_rows(rows, output, empty=f"User {found[0][1].user.name} has no policies.")
    show_failures(outcomes)
