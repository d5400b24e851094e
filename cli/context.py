"""`cometmq context`: name clusters, choose the current one."""

import os
from dataclasses import fields
from pathlib import Path

import click

from ..operations import local_cluster
from ..operations.contexts import Context, checked_name, file, load, save
from ..operations.errors import CliError, Exit
from ..operations.links import target
from .links import links
from .names import contexts as saved
from .options import link_options, output_option
from .output import show_rows


@click.group()
def context() -> None:
    """Name clusters that commands can address from any directory.

    \b
    cometmq context add prod --endpoint 10.0.0.11:8081 --tls-ca ca.pem --token-file token
    cometmq context use prod
    cometmq topic list
    cometmq topic list --context staging
    """


@context.command()
@click.argument("name")
@click.option("--endpoint", "endpoints", default="", metavar="HOST:PORT;...", help="Brokers.")
@click.option(
    "--namesrv", "nameservers", default="", metavar="HOST:PORT;...", help="Nameservers (for `ha`)."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Instead of all other options: data directory of a cluster of `cometmq up`, which holds"
    " its addresses, token and user.",
)
@click.option(
    "--access-key",
    default="",
    metavar="USER",
    help="User that signs calls; its secret key is read from $COMETMQ_SECRET_KEY or asked for.",
)
@link_options
@click.option("--use", "is_current", is_flag=True, help="Make it the current context.")
@click.option("--replace", "replaces", is_flag=True, help="Replace a context of this name.")
def add(
    *,
    name: str,
    endpoints: str,
    nameservers: str,
    data: Path | None,
    access_key: str,
    is_current: bool,
    replaces: bool,
) -> None:
    """Add context NAME: a cluster's addresses, token file, user and TLS files.

    \b
    cometmq context add prod --endpoint 10.0.0.11:8081 --tls-ca ca.pem --token-file token
    cometmq context add dev --data ./data --use
    """
    checked_name(name)
    contexts = load()
    if name in contexts.entries and not replaces:
        raise CliError(f"There is a context '{name}'; --replace replaces it.", Exit.USAGE)
    for addresses in filter(None, (endpoints, nameservers)):
        target(addresses)
    given = _links()
    if data is not None:
        if endpoints or nameservers or access_key or given:
            raise CliError("--data excludes addresses, user, token and TLS.", Exit.USAGE)
        local_cluster.check_directory(data)
        made = Context(data=str(data.resolve()))
    elif not endpoints and not nameservers:
        raise CliError("Give --endpoint, --namesrv or --data.", Exit.USAGE)
    else:
        secret_key = _secret_key() if access_key else ""
        made = Context(endpoints, nameservers, "", access_key=access_key, secret_key=secret_key)
        made = Context(**{**made.document(), **given})
    contexts.entries[name] = made
    if is_current:
        contexts.current = name
    save(contexts)
    click.echo(f"Added context {name} to {file()}.")


def _links() -> dict[str, str | bool]:
    """Return the options of `link_options` on the command line. Raises CliError."""
    given: dict[str, str | bool] = {}
    for name in {option.name for option in fields(Context)} & links().explicit:
        value = getattr(links().options, name)
        if isinstance(value, Path):
            if not value.is_file():
                raise CliError(f"Cannot read {value}: no such file.", Exit.USAGE)
            value = str(value.resolve())
        given[name] = value
    if ("tls_certificate" in given) != ("tls_key" in given):
        raise CliError("Give both --tls-certificate and --tls-key, or neither.", Exit.USAGE)
    return given


def _secret_key() -> str:
    key = os.environ.get("COMETMQ_SECRET_KEY", "")
    return key or str(click.prompt("Secret key", hide_input=True))


@context.command()
@click.argument("name", required=False, shell_complete=saved)
@click.option("--none", is_flag=True, help="Have no current context.")
def use(*, name: str | None, none: bool) -> None:
    """Make NAME the current context.

    It counts where neither an option nor a variable names a cluster, and outside of the directory
    of a cluster of `cometmq up`.

    \b
    cometmq context use prod
    """
    if (name is None) != none:
        raise CliError("Give either NAME or --none.", Exit.USAGE)
    contexts = load()
    if name is not None:
        contexts.get(name)
    contexts.current = name or ""
    save(contexts)
    click.echo(f"The current context is {name or 'none'}.")


@context.command()
@click.argument("name", shell_complete=saved)
def remove(*, name: str) -> None:
    """Remove context NAME. Files that it names stay.

    \b
    cometmq context remove prod
    """
    contexts = load()
    contexts.get(name)
    del contexts.entries[name]
    if contexts.current == name:
        contexts.current = ""
    save(contexts)
    click.echo(f"Removed context {name}.")


@context.command("list")
@output_option
def list_contexts(*, output: str) -> None:
    """List the contexts, without secret keys.

    \b
    cometmq context list -o json
    """
    contexts = load()
    rows = [
        {
            "name": name,
            "current": name == contexts.current,
            "endpoints": entry.endpoints,
            "nameservers": entry.nameservers,
            "data": entry.data,
            "token_file": entry.token_file,
            "user": entry.access_key,
            "tls": entry.tls or bool(entry.tls_ca),
        }
        for name, entry in sorted(contexts.entries.items())
    ]
    show_rows(rows, output, empty="There are no contexts. Add one: cometmq context add.")
