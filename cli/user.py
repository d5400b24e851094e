"""`cometmq user`: create, change, delete and list users."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ..proto import paths, v1
from .connection import Connection
from .options import endpoint_option, output_option
from .output import show_fields, show_json, show_rows

F = TypeVar("F", bound=Callable[..., Any])
_SECRET_BYTES = 24


def _named_user(command: F) -> F:
    """Add NAME, `--endpoint` and `--output`."""
    return click.argument("name")(endpoint_option(output_option(command)))


@click.group()
def user() -> None:
    """Create, change, delete and list users."""


@user.command()
@click.argument("name")
@click.option("--secret", default="", help="Secret key [default: generated and printed].")
@click.option("--super", "is_super", is_flag=True, help="Allow every action.")
@endpoint_option
@output_option
def create(*, name: str, secret: str, is_super: bool, endpoint: str, output: str) -> None:
    """Create user NAME."""
    request = v1.PutUserRequest(name=name, secret=secret, is_super=is_super, must_be_new=True)
    put(request, endpoint, output)


@user.command()
@click.argument("name")
@click.option("--secret", default="", help="New secret key [default: generated and printed].")
@endpoint_option
@output_option
def rotate(*, name: str, secret: str, endpoint: str, output: str) -> None:
    """Give user NAME another secret key; the former one is invalid at once."""
    put(v1.PutUserRequest(name=name, secret=secret, must_exist=True), endpoint, output)


@user.command()
@_named_user
def disable(*, name: str, endpoint: str, output: str) -> None:
    """Refuse the calls of user NAME."""
    change(v1.PutUserRequest(name=name, enabled=False, must_exist=True), endpoint, output)


@user.command()
@_named_user
def enable(*, name: str, endpoint: str, output: str) -> None:
    """Accept the calls of user NAME again."""
    change(v1.PutUserRequest(name=name, enabled=True, must_exist=True), endpoint, output)


@user.command()
@_named_user
def delete(*, name: str, endpoint: str, output: str) -> None:
    """Delete user NAME with its policies."""
    with Connection(endpoint) as connection:
        answer = connection.call(
            paths.DELETE_USER, v1.DeleteUserRequest(name=name), v1.UserResponse
        )
    _show(answer, output, "Deleted")


@user.command("list")
@endpoint_option
@output_option
def list_users(*, endpoint: str, output: str) -> None:
    """List all users."""
    show_rows([user_row(each) for each in users(endpoint)], output, empty="There are no users.")


def users(endpoint: str, name: str = "") -> Sequence[v1.UserConfig]:
    """Return all users, or one. Raises CliError."""
    with Connection(endpoint) as connection:
        request = v1.ListUsersRequest(name=name)
        return connection.call(paths.LIST_USERS, request, v1.ListUsersResponse).users


def put(request: v1.PutUserRequest, endpoint: str, output: str) -> str:
    """Set a user's secret key, generate one if the request has none; print and return it."""
    generated = not request.secret
    request.secret = request.secret or secrets.token_urlsafe(_SECRET_BYTES)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.PUT_USER, request, v1.UserResponse)
    keys = {"accessKey": request.name, "secretKey": request.secret}
    if output == "json":
        show_json({**user_row(answer.user), **(keys if generated else {})})
    else:
        _show(answer, output, "Created" if answer.created else "Changed")
        if generated:
            show_fields(keys, output)
    return request.secret


def change(request: v1.PutUserRequest, endpoint: str, output: str) -> None:
    """Change fields of a user other than the secret key."""
    with Connection(endpoint) as connection:
        _show(connection.call(paths.PUT_USER, request, v1.UserResponse), output, "Changed")


def user_row(config: v1.UserConfig) -> dict[str, object]:
    """Return a user as a table row."""
    return {
        "user": config.name,
        "type": "Super" if config.is_super else "Normal",
        "enabled": not config.disabled,
        "policies": len(config.policies),
    }


def _show(answer: v1.UserResponse, output: str, verb: str) -> None:
    if output == "json":
        show_json(user_row(answer.user))
        return
    kind = "Super" if answer.user.is_super else "Normal"
    state = ", disabled" if answer.user.disabled else ""
    click.echo(f"{verb} user {answer.user.name} ({kind}{state}).")
