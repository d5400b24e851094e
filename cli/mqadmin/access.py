"""RocketMQ's `mqadmin` commands for users and ACLs, with their names and options.

Hidden aliases of `cometmq user` and `cometmq acl`, like `mqadmin.py`. A subject is `User:NAME`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ...operations.errors import CliError, Exit
from ...operations.policies import policy, policy_rows
from ...proto import paths, v1
from ..access.acl import show
from ..access.user import change, put, show_users, user_row
from ..cluster.broker_groups import broker_groups, finish
from .messaging import call, common, split

F = TypeVar("F", bound=Callable[..., Any])
_TYPES = click.Choice(["Super", "Normal"], case_sensitive=False)
_STATES = click.Choice(["enable", "disable"], case_sensitive=False)
_DECISIONS = click.Choice(["Allow", "Deny"], case_sensitive=False)


def _user_name(subject: str) -> str:
    kind, colon, name = subject.partition(":")
    if not colon or kind.lower() != "user" or not name:
        raise CliError(f"Subject '{subject}' is not User:NAME.", Exit.USAGE)
    return name


def _user(command: F) -> F:
    return click.option("-u", "--username", "name", required=True, help="User.")(command)


def _subject(command: F) -> F:
    return click.option("-s", "--subject", required=True, help="User:NAME.")(command)


@click.command("createUser")
@_user
@click.option("-p", "--password", required=True, help="Secret key.")
@click.option("-t", "--userType", "kind", type=_TYPES, default="Normal", help="Super or Normal.")
@common
def create_user(name: str, password: str, kind: str, endpoint: str, output: str) -> None:
    """Create a user (`user create`)."""
    is_super = kind.lower() == "super"
    request = v1.PutUserRequest(name=name, secret=password, is_super=is_super, must_be_new=True)
    put(request, endpoint, output)


@click.command("updateUser")
@_user
@click.option("-p", "--password", default="", help="Secret key.")
@click.option("-t", "--userType", "kind", type=_TYPES, help="Super or Normal.")
@click.option("-s", "--userStatus", "state", type=_STATES, help="enable or disable.")
@common
def update_user(
    *, name: str, password: str, kind: str | None, state: str | None, endpoint: str, output: str
) -> None:
    """Change a user (`user rotate`, `user disable`)."""
    request = v1.PutUserRequest(
        name=name,
        secret=password,
        is_super=None if kind is None else kind.lower() == "super",
        enabled=None if state is None else state.lower() == "enable",
        must_exist=True,
    )
    change(request, endpoint, output)


@click.command("deleteUser")
@_user
@common
def delete_user(name: str, endpoint: str, output: str) -> None:
    """Delete a user (`user delete`)."""
    from ..access.user import delete

    call(delete, name=name, endpoint=endpoint, output=output)


@click.command("getUser")
@_user
@common
def get_user(name: str, endpoint: str, output: str) -> None:
    """Show a user (`user list`)."""
    show_users(endpoint, lambda user: [user_row(user)], output, empty="", name=name)


@click.command("listUser")
@click.option("-f", "--filter", "part", default="", help="Only names that contain this text.")
@common
def list_user(part: str, endpoint: str, output: str) -> None:
    """List users (`user list`)."""

    def rows_of(user: v1.UserConfig) -> list[dict[str, object]]:
        return [user_row(user)] if part in user.name else []

    show_users(endpoint, rows_of, output, empty="There are no users.")


@click.command("createAcl")
@_subject
@click.option("-r", "--resources", required=True, help="Resources, separated by commas.")
@click.option("-a", "--actions", required=True, help="Actions, separated by commas.")
@click.option("-d", "--decision", type=_DECISIONS, required=True, help="Allow or Deny.")
@click.option("-i", "--sourceIp", "sources", default="", help="Addresses, separated by commas.")
@common
def create_acl(subject: str, resources: str, **values: Any) -> None:
    """Add policies (`acl create`)."""
    name, endpoint, output = _user_name(subject), values["endpoint"], values["output"]
    decision, sources = values["decision"].lower(), tuple(split(values["sources"]))
    wanted = [policy(each, values["actions"], sources, decision) for each in split(resources)]
    with broker_groups(endpoint) as groups:
        outcomes = [
            groups.each(
                paths.PUT_POLICY, v1.PutPolicyRequest(user=name, policy=each), v1.UserResponse
            )
            for each in wanted
        ]
    for earlier in outcomes[:-1]:
        finish(earlier)
    if outcomes:
        show(outcomes[-1], output)


@click.command("deleteAcl")
@_subject
@click.option("-r", "--resources", default="", help="Resources, separated by commas; default: all.")
@common
def delete_acl(subject: str, resources: str, endpoint: str, output: str) -> None:
    """Delete policies (`acl delete`)."""
    from ..access.acl import delete

    for resource in split(resources) or [""]:
        call(
            delete,
            user=_user_name(subject),
            resource=resource,
            decision=None,
            endpoint=endpoint,
            output=output,
        )


@click.command("getAcl")
@_subject
@common
def get_acl(subject: str, endpoint: str, output: str) -> None:
    """List the policies of a user (`acl list`)."""
    name = _user_name(subject)
    show_users(endpoint, policy_rows, output, empty=f"User {name} has no policies.", name=name)


@click.command("listAcl")
@click.option("-s", "--subjectFilter", "part", default="", help="Only users with this text.")
@click.option("-r", "--resourceFilter", "resource", default="", help="Only such resources.")
@common
def list_acl(part: str, resource: str, endpoint: str, output: str) -> None:
    """List policies (`acl list`)."""

    def rows_of(user: v1.UserConfig) -> list[dict[str, object]]:
        rows = policy_rows(user) if part in f"User:{user.name}" else []
        return [row for row in rows if resource in str(row["resource"])]

    show_users(endpoint, rows_of, output, empty="There are no policies.")
