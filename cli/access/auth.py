"""`cometmq auth`: create the first user, explain a decision, make certificates."""

import time
from pathlib import Path

import click

from ...operations import private_file
from ...operations.broker_groups import BrokerGroups, Outcome
from ...operations.connection import Connection
from ...operations.credentials import Credentials, file_text
from ...operations.errors import CliError
from ...proto import paths, v1
from ..certificates.dev_ca import dev_ca
from ..links import connect
from ..options import endpoint_option, output_option
from ..output import show_document
from .secret_options import secret_options
from .user import put

_TRIES, _PAUSE_S = 20, 0.2


@click.group()
def auth() -> None:
    """Create the first user; explain a decision; make certificates for development."""


auth.add_command(dev_ca)


@auth.command()
@click.option("--name", default="admin", show_default=True, help="Name of the user.")
@secret_options
@click.option(
    "--write",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write accessKey= and secretKey= to this file (mode 0600).",
)
@endpoint_option
@output_option
def init(*, name: str, secret: str, file: Path | None, endpoint: str, output: str) -> None:
    """Create the first user, of type Super.

    With authentication on, a node accepts this without a signature from its own machine only, and
    only while there is no user. The user is created in each broker group.

    \b
    cometmq auth init --write admin-credentials
    """
    request = v1.PutUserRequest(name=name, secret=secret, is_super=True, must_be_new=True)
    finish = ("user", "create", name, "--super", "--endpoint", endpoint)
    secret = put(request, endpoint, output, send=_create_first, command=finish)
    if file is not None:
        try:
            private_file.replace(file, file_text(name, secret))
        except OSError as error:
            raise CliError(f"Cannot write {file}: {error.strerror}.") from None


def _create_first(request: v1.PutUserRequest, endpoint: str) -> list[Outcome[v1.UserResponse]]:
    """Create the user in the group of the node that is asked; then, as this user, in the others.

    Raises CliError only if no group has the user: its secret key may have been generated here.
    """
    with connect(endpoint) as connection:
        first = connection.call(paths.PUT_USER, request, v1.UserResponse)
    with connect(endpoint, Credentials(request.name, request.secret)) as connection:
        try:
            known = _groups_once_the_user_is_known(connection)
        except CliError as error:
            text = f"cometmq: {endpoint} does not tell whether there are other broker groups: "
            click.echo(f"{text}{error}", err=True)
            return [Outcome("", first)]
        others = BrokerGroups(connection, [each for each in known.brokers if each != known.broker])
        outcomes = others.each(paths.PUT_USER, request, v1.UserResponse)
    return [Outcome(known.broker, first), *outcomes]


def _groups_once_the_user_is_known(connection: Connection) -> v1.ListBrokersResponse:
    """Return the groups; a follower gets the new user within a second. Raises CliError."""
    for _ in range(_TRIES):
        try:
            return connection.call(
                paths.LIST_BROKERS, v1.ListBrokersRequest(), v1.ListBrokersResponse
            )
        except CliError:
            time.sleep(_PAUSE_S)
    return connection.call(paths.LIST_BROKERS, v1.ListBrokersRequest(), v1.ListBrokersResponse)


@auth.command()
@click.argument("user")
@click.argument("action")
@click.argument("resource")
@click.option("--from", "source", default="", metavar="IP", help="Address of the client.")
@endpoint_option
@output_option
def check(
    *, user: str, action: str, resource: str, source: str, endpoint: str, output: str
) -> None:
    """Explain whether USER may do ACTION (Pub, Sub, ...) on RESOURCE (Topic:orders).

    \b
    cometmq auth check orders-service Pub Topic:orders --from 10.1.2.3
    """
    request = v1.CheckAccessRequest(user=user, action=action, resource=resource, source=source)
    with connect(endpoint) as connection:
        answer = connection.call(paths.CHECK_ACCESS, request, v1.CheckAccessResponse)
    if output == "json":
        show_document({"allowed": answer.allowed, "reason": answer.reason})
    else:
        click.echo(f"{'allowed' if answer.allowed else 'denied'}: {answer.reason}")
