"""How the running command reaches nodes: click enters the options while it reads the arguments.

The context of a command, in this order: `--context`; $COMETMQ_CONTEXT; the current context of the
file. `--data` excludes all of them. The current context counts only if no variable names an address
and no cluster is in the current directory.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ..operations import local_cluster
from ..operations.contexts import load, with_files
from ..operations.errors import CliError, Exit
from ..operations.links import ADDRESS_VARIABLES, Links, NamedContext

if TYPE_CHECKING:
    from ..operations.connection import Connection
    from ..operations.credentials import Credentials

_CLUSTER_FILES = (
    local_cluster.ADDRESSES_FILE,
    local_cluster.TOKEN_FILE,
    local_cluster.CREDENTIALS_FILE,
)
# Keys of the click context: the links, and the name of the context with its source.
_LINKS_KEY = "cometmq.links"
_NAMED_KEY = "cometmq.context.named"


def links() -> Links:
    """Return how the running command reaches nodes."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return Links()
    if _LINKS_KEY not in ctx.meta:
        ctx.meta[_LINKS_KEY] = Links(cache(lambda: _choose(ctx)))
    made: Links = ctx.meta[_LINKS_KEY]
    return made


def connect(endpoint: str, user: Credentials | None = None, *, at: str = "") -> Connection:
    """Return a connection of the running command. Raises CliError."""
    from ..operations.connection import Connection

    return Connection(endpoint, links(), user, at=at)


def keep_name(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Keep the value of `--context` and whether the command line gives it."""
    if name:
        source = ctx.get_parameter_source(parameter.name or "")
        ctx.meta[_NAMED_KEY] = name, source is ParameterSource.COMMANDLINE


def keep_directory(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Keep the value of `--data`. Raises CliError if `cometmq up` has not made the directory."""
    if path is not None:
        local_cluster.check_directory(path)
        links().data = path


def _choose(ctx: click.Context) -> NamedContext | None:
    name, on_command_line = ctx.meta.get(_NAMED_KEY, ("", False))
    if ctx.meta[_LINKS_KEY].data is not None:
        if on_command_line:
            raise CliError("Give either --context or --data.", Exit.USAGE)
        return None
    contexts = load()
    if not name:
        name = contexts.current
        placed = any(map(local_cluster.found_file, _CLUSTER_FILES))
        if not name or placed or any(map(os.environ.get, ADDRESS_VARIABLES)):
            return None
    return name, with_files(contexts.get(name))
