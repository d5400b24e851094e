"""Options shared by several commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..operations import local_cluster
from ..operations.errors import CliError, Exit
from .links import keep_directory, keep_name, links
from .output import FORMS, keep_form
from .times import keep_utc

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ENDPOINT = "127.0.0.1:8081"
DEFAULT_NAMESERVER = "127.0.0.1:9876"
#: Of the click context: finds the endpoint that another option names.
ENDPOINT_KEY = "cometmq.endpoint"


def address_option(
    name: str, *, kind: str, default: str, envvar: str | None, metavar: str, what: str
) -> Callable[[F], F]:
    """Add an option for `endpoints` or `nameservers`.

    Without the option, in this order: the context of `--context` or the running cluster of
    `--data`, which exclude each other; the context of $COMETMQ_CONTEXT; the environment variable;
    the running cluster of the current directory; the current context; `default`.
    """

    def resolve(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
        assert parameter.name is not None
        if ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            return value or ""
        if kind == "endpoints" and (found := ctx.meta.get(ENDPOINT_KEY)) is not None:
            return str(found())
        return (
            _of_context(kind, name, is_needed=bool(default))
            or local_cluster.address(kind, links().named_file(local_cluster.ADDRESSES_FILE))
            or value
            or local_cluster.address(kind, local_cluster.found_file(local_cluster.ADDRESSES_FILE))
            or default
        )

    return click.option(
        name,
        envvar=envvar,
        callback=resolve,
        metavar=metavar,
        help=f"{what} [default: those of the cluster of --data, of the context or of this"
        f" directory, or {default or 'none'}]",
    )


def _of_context(kind: str, option: str, *, is_needed: bool) -> str:
    """Return the `endpoints` or the `nameservers` of the context; "" without a context.

    Raises CliError if the context lacks them and they are needed.
    """
    chosen = links().context()
    if chosen is None:
        return ""
    name, context = chosen
    if not (value := getattr(context, kind)) and is_needed:
        cure = f"start it: cometmq up --data {context.data}" if context.data else f"give {option}"
        raise CliError(f"The context '{name}' has no {kind}; {cure}.", Exit.USAGE)
    return str(value)


def data_option(command: F) -> F:
    """Add `--data`, the data directory of a cluster of `cometmq up`, and `--context`."""
    command = click.option(
        "--context",
        envvar="COMETMQ_CONTEXT",
        metavar="NAME",
        expose_value=False,
        is_eager=True,  # the defaults of the addresses come from it
        callback=keep_name,
        help="Use the addresses, token, user and TLS of this context (`cometmq context add`)"
        " [default: $COMETMQ_CONTEXT, or the current context].",
    )(command)
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        expose_value=False,
        is_eager=True,  # the defaults of the addresses come from it
        callback=keep_directory,
        help="Data directory of `cometmq up`: use its addresses, token and admin-credentials"
        " [default: this directory, or data in it].",
    )(command)


def _keep_link_option(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    name = parameter.name or ""
    if value:
        setattr(links().options, name, value)
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            links().explicit.add(name)


_TOKEN_OPTIONS = (
    (
        "--trusted-network",
        "COMETMQ_TRUSTED_NETWORK",
        "Send the cluster token in plaintext to other machines.",
    ),
    (
        "--token-file",
        None,
        "File with the clusterToken of the cluster [default: that of --data or of the context,"
        " $COMETMQ_CLUSTER_TOKEN, $COMETMQ_CLUSTER_TOKEN_FILE, or that of this directory].",
    ),
)
_TLS_OPTIONS = (
    ("--tls-key", "COMETMQ_TLS_KEY", "File of the key of --tls-certificate (PEM)."),
    (
        "--tls-certificate",
        "COMETMQ_TLS_CERTIFICATE",
        "File of a certificate for this command (PEM); replication ports require one.",
    ),
    (
        "--tls-ca",
        "COMETMQ_TLS_CA",
        "File of the nodes' certificate authorities (PEM): use TLS, and check the name of"
        " nodes, not of the host.",
    ),
    ("--tls", None, "Use TLS and check the host name; without --tls-ca by the system."),
)


def _add(command: F, options_of: tuple[tuple[str, str | None, str], ...]) -> F:
    for name, variable, text in options_of:
        is_flag = name in ("--trusted-network", "--tls")
        command = click.option(
            name,
            type=None if is_flag else click.Path(path_type=Path),
            is_flag=is_flag,
            envvar=variable,
            callback=_keep_link_option,
            expose_value=False,
            help=text,
        )(command)
    return command


def tls_options(command: F) -> F:
    """Add the options of TLS (`operations/links.py`), for commands that never send the token."""
    return _add(command, _TLS_OPTIONS)


def namesrv_option(command: F) -> F:
    """Add `--namesrv`, and `--data`."""
    option = address_option(
        "--namesrv",
        kind="nameservers",
        default=DEFAULT_NAMESERVER,
        envvar="COMETMQ_NAMESRV_ADDR",
        metavar="HOST:PORT;...",
        what="Nameservers.",
    )
    return option(data_option(command))


def link_options(command: F) -> F:
    """Add `--token-file`, `--trusted-network` and the options of TLS (`operations/links.py`)."""
    return _add(command, (_TOKEN_OPTIONS[0], *_TLS_OPTIONS, _TOKEN_OPTIONS[1]))


def endpoint_option(command: F) -> F:
    """Add `--endpoint HOST:PORT`: any node of the cluster; several are alternatives; `--data`;
    and those of `link_options`."""
    option = address_option(
        "--endpoint",
        kind="endpoints",
        default=DEFAULT_ENDPOINT,
        envvar="COMETMQ_ENDPOINT",
        metavar="HOST:PORT",
        what="Any node of the cluster; separate alternatives with ';'.",
    )
    return option(data_option(link_options(command)))


def output_option(command: F) -> F:
    """Add `-o table|wide|json|yaml` and `--utc`."""
    command = click.option(
        "-o",
        "--output",
        type=click.Choice(list(FORMS)),
        default="table",
        show_default=True,
        callback=keep_form,
        help="Output format; wide: tables wider than the terminal.",
    )(command)
    return utc_option(command)


def utc_option(command: F) -> F:
    """Add `--utc`."""
    return click.option(
        "--utc",
        is_flag=True,
        expose_value=False,
        is_eager=True,  # times among the arguments are read with it
        callback=keep_utc,
        help="Print times, and read those without a zone, in UTC [default: local time].",
    )(command)
