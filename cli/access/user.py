"""`cometmq user`: create, change, delete and list users."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from ...operations.broker_groups import Outcome, answers, present
from ...proto import paths, v1
from ..cluster.broker_groups import (
    Again,
    broker_groups,
    broker_option,
    merged,
    note_failures,
    show_changes,
)
from ..options import endpoint_option, output_option
from ..output import show_fields, show_rows
from ..times import duration, time_text
from .secret_options import secret_options

F = TypeVar("F", bound=Callable[..., Any])
_SECRET_BYTES = 24


def _named_user(command: F) -> F:
    """Add NAME, `--broker`, `--endpoint` and `--output`."""
    return click.argument("name")(broker_option(endpoint_option(output_option(command))))


@click.group()
def user() -> None:
    """Create, change, delete and list users."""


@user.command()
@click.argument("name")
@secret_options
@click.option("--super", "is_super", is_flag=True, help="Allow every action.")
@broker_option
@endpoint_option
@output_option
def create(*, name: str, secret: str, is_super: bool, endpoint: str, output: str) -> None:
    """Create user NAME.

    \b
    cometmq user create orders-service
    """
    request = v1.PutUserRequest(name=name, secret=secret, is_super=is_super, must_be_new=True)
    put(request, endpoint, output)


@user.command()
@click.argument("name")
@secret_options
@click.option(
    "--overlap",
    type=duration("s", most="31d"),
    default="0s",
    help="Accept the former secret key for this time as well, for example 2h or 7d [default: no].",
)
@broker_option
@endpoint_option
@output_option
def rotate(*, name: str, secret: str, overlap: int, endpoint: str, output: str) -> None:
    """Give user NAME another secret key; the former one is invalid at once, or after --overlap.

    \b
    cometmq user rotate orders-service --overlap 24h
    """
    request = v1.PutUserRequest(name=name, secret=secret, must_exist=True, overlap_ms=overlap)
    put(request, endpoint, output)


@user.command()
@_named_user
def disable(*, name: str, endpoint: str, output: str) -> None:
    """Refuse the calls of user NAME.

    \b
    cometmq user disable orders-service
    """
    change(v1.PutUserRequest(name=name, enabled=False, must_exist=True), endpoint, output)


@user.command()
@_named_user
def enable(*, name: str, endpoint: str, output: str) -> None:
    """Accept the calls of user NAME again.

    \b
    cometmq user enable orders-service
    """
    change(v1.PutUserRequest(name=name, enabled=True, must_exist=True), endpoint, output)


@user.command()
@_named_user
def delete(*, name: str, endpoint: str, output: str) -> None:
    """Delete user NAME with its policies.

    \b
    cometmq user delete orders-service
    """
    with broker_groups(endpoint) as groups:
        request = v1.DeleteUserRequest(name=name)
        outcomes = groups.each(paths.DELETE_USER, request, v1.UserResponse)
    _show(present(outcomes), output, "Deleted")


@user.command("list")
@broker_option
@endpoint_option
@output_option
def list_users(*, endpoint: str, output: str) -> None:
    """List all users.

    \b
    cometmq user list
    """
    show_users(endpoint, lambda user: [user_row(user)], output, empty="There are no users.")


def show_users(
    endpoint: str,
    rows_of: Callable[[v1.UserConfig], Iterable[dict[str, object]]],
    output: str,
    *,
    empty: str,
    name: str = "",
) -> None:
    """List the rows of all users, or of one. Raises CliError."""
    with broker_groups(endpoint) as groups:
        request = v1.ListUsersRequest(name=name)
        outcomes = groups.each(paths.LIST_USERS, request, v1.ListUsersResponse)
    rows = merged(
        (broker, [row for user in answer.users for row in rows_of(user)])
        for broker, answer in answers(outcomes)
    )
    show_rows(rows, output, empty=empty)
    note_failures(outcomes)


def put(
    request: v1.PutUserRequest,
    endpoint: str,
    output: str,
    *,
    send: Callable[[v1.PutUserRequest, str], list[Outcome[v1.UserResponse]]] | None = None,
    command: Sequence[str] = (),
) -> str:
    """Set a user's secret key, generate one if the request has none; print and return it.

    `send` replaces the calls to all groups, `command` the running command in the one that finishes
    the change.
    """
    generated = not request.secret
    request.secret = request.secret or secrets.token_urlsafe(_SECRET_BYTES)
    outcomes = (send or _put)(request, endpoint)
    answers(outcomes)  # a secret key that no group has is not printed
    keys = {"accessKey": request.name, "secretKey": request.secret}
    try:
        show_changes(
            outcomes,
            output,
            lambda answer: _sentence(answer, "Created" if answer.created else "Changed"),
            lambda answer: {**user_row(answer.user), **(keys if generated else {})},
            again=Again(
                more=("--secret", request.secret) if generated or command else (),
                command=tuple(command),
            ),
        )
    finally:
        if generated and output == "table":
            show_fields(keys, output)
    return request.secret


def change(request: v1.PutUserRequest, endpoint: str, output: str) -> None:
    """Change fields of a user other than the secret key."""
    _show(_put(request, endpoint), output, "Changed")


def _put(request: v1.PutUserRequest, endpoint: str) -> list[Outcome[v1.UserResponse]]:
    with broker_groups(endpoint) as groups:
        return groups.each(paths.PUT_USER, request, v1.UserResponse)


def user_row(config: v1.UserConfig) -> dict[str, object]:
    """Return a user as a table row."""
    return {
        "user": config.name,
        "type": "Super" if config.is_super else "Normal",
        "enabled": not config.disabled,
        "policies": len(config.policies),
    }


def _show(outcomes: Sequence[Outcome[v1.UserResponse]], output: str, verb: str) -> None:
    show_changes(
        outcomes,
        output,
        lambda answer: _sentence(answer, verb),
        lambda answer: user_row(answer.user),
    )


def _sentence(answer: v1.UserResponse, verb: str) -> str:
    kind = "Super" if answer.user.is_super else "Normal"
    state = ", disabled" if answer.user.disabled else ""
    until_ms = answer.user.former_until_ms
    former = f" The former secret key is accepted until {time_text(until_ms)}." if until_ms else ""
    return f"{verb} user {answer.user.name} ({kind}{state}).{former}"
