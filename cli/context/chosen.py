"""The context of the running command, and the addresses to which its secrets belong.

In this order: `--context`; $COMETMQ_CONTEXT; the current context of the file. `--data` excludes
all of them. The current context counts only if no variable names an address and no cluster is in
the current directory. The token, the user and the TLS settings of a context are used only for its
own addresses and for those that its nodes list.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from .. import local_cluster
from ..errors import CliError, Exit
from .contexts import Context, load

#: Variables that name the addresses of a command.
ADDRESS_VARIABLES = ("COMETMQ_ENDPOINT", "COMETMQ_NAMESRV_ADDR")
_CLUSTER_FILES = (
    local_cluster.ADDRESSES_FILE,
    local_cluster.TOKEN_FILE,
    local_cluster.CREDENTIALS_FILE,
)
# Keys of the click context: the name and its source, the context, the addresses it listed.
_NAMED_KEY = "cometmq.context.named"
_CHOSEN_KEY = "cometmq.context"
_LISTED_KEY = "cometmq.context.listed"


def keep_name(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Keep the value of `--context` and whether the command line gives it."""
    if name:
        source = ctx.get_parameter_source(parameter.name or "")
        ctx.meta[_NAMED_KEY] = name, source is ParameterSource.COMMANDLINE


def chosen() -> tuple[str, Context] | None:
    """Return the name and the context of the running command, or None. Raises CliError."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return None
    if _CHOSEN_KEY not in ctx.meta:
        ctx.meta[_CHOSEN_KEY] = _choose(ctx)
    found: tuple[str, Context] | None = ctx.meta[_CHOSEN_KEY]
    return found


def context_of(endpoint: str) -> Context | None:
    """Return the context if all addresses of HOST:PORT;... belong to it. Raises CliError."""
    found = chosen()
    if found is None:
        return None
    owned = found[1].addresses() | click.get_current_context().meta.get(_LISTED_KEY, set())
    return found[1] if owned.issuperset(split(endpoint)) else None


def context_for(name: str) -> tuple[Context, click.Context]:
    """Return a context by its name, and a click context in which it is the chosen one.

    Calls made in that scope use the token, the user and the TLS settings of the context only.
    Raises CliError.
    """
    found = load().get(name)
    if found.data:
        found = _of_directory(found)
    scope = click.Context(click.get_current_context().command)
    scope.meta[_CHOSEN_KEY] = name, found
    return found, scope


def list_addresses(addresses: Iterable[str]) -> None:
    """Add addresses that a node of the context listed."""
    click.get_current_context().meta.setdefault(_LISTED_KEY, set()).update(addresses)


def split(endpoint: str) -> list[str]:
    """Return the addresses of HOST:PORT;..."""
    return [part.strip() for part in endpoint.split(";") if part.strip()]


def _choose(ctx: click.Context) -> tuple[str, Context] | None:
    name, on_command_line = ctx.meta.get(_NAMED_KEY, ("", False))
    if local_cluster.DATA_KEY in ctx.meta:
        if on_command_line:
            raise CliError("Give either --context or --data.", Exit.USAGE)
        return None
    contexts = load()
    if not name:
        name = contexts.current
        placed = any(map(local_cluster.found_file, _CLUSTER_FILES))
        if not name or placed or any(map(os.environ.get, ADDRESS_VARIABLES)):
            return None
    found = contexts.get(name)
    return name, _of_directory(found) if found.data else found


def _of_directory(context: Context) -> Context:
    """Read addresses, token and user of a data directory; those of a stopped cluster are absent."""
    from ..credentials import read_file  # `credentials` imports this module

    data = Path(context.data)
    file = local_cluster.existing(data, local_cluster.ADDRESSES_FILE)
    user = local_cluster.existing(data, local_cluster.CREDENTIALS_FILE)
    keys = read_file(user) if user else None
    return replace(
        context,
        endpoints=local_cluster.address("endpoints", file),
        nameservers=local_cluster.address("nameservers", file),
        token_file=str(local_cluster.existing(data, local_cluster.TOKEN_FILE) or ""),
        access_key=keys.access_key if keys else "",
        secret_key=keys.secret_key if keys else "",
    )
