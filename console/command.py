"""`cometmq console`: serve the web console of a cluster.

Without `--login` it listens on loopback, acts with the credentials of the command line, and is
read-only without `--allow-changes`. Another address needs a name in `--allow-host`.
"""

from pathlib import Path

import click

from ..cli.links import links
from ..cli.options import endpoint_option
from ..front.limits import NEEDS, lack, limits_of_process
from ..nodes.addresses import is_loopback
from ..operations.connection import Connection
from ..operations.errors import CliError, Exit

_PORT = 8082
# Minutes of work of a usual consumer.
_LAG_ALERT = 100_000


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=_PORT,
    show_default=True,
    help="Port of the pages; 0: any free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Use --login, or put a proxy with a login in front of any "
    "address but loopback.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further host name by which browsers reach the console; repeatable.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Offer changes to everyone who reaches the console: send, create, delete, reset, redrive,"
    " switch over.",
)
@click.option(
    "--login",
    is_flag=True,
    help="Serve users of the cluster only: each logs in with a secret key or a bearer token, and "
    "sees and changes what it may.",
)
@click.option(
    "--trace-url",
    default="",
    metavar="URL",
    help="Page of a trace in your tracing system, with the place {trace_id}; messages with a "
    "`traceparent` link to it.",
)
@click.option(
    "--archive",
    "archives",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of an archive of `cometmq pipeline archive`, for the page Spark; repeatable.",
)
@click.option(
    "--descriptors",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Descriptor set of `protoc --include_imports --descriptor_set_out=FILE`, to show bodies as"
    " protobuf; repeatable.",
)
@click.option(
    "--lag-alert",
    type=click.IntRange(0),
    default=_LAG_ALERT,
    show_default=True,
    help="Lag of a consumer group from which the overview has an alarm; 0: none.",
)
@click.option(
    "--also-context",
    "further",
    multiple=True,
    metavar="NAME",
    help="A further context (`cometmq context add`) whose cluster the console shows; repeatable.",
)
@click.option("--supervised", is_flag=True, hidden=True)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with the address, written when the console is serving.",
)
@endpoint_option
def console(
    *,
    port: int,
    host: str,
    hosts: tuple[str, ...],
    allow_changes: bool,
    login: bool,
    trace_url: str,
    archives: tuple[Path, ...],
    descriptors: tuple[Path, ...],
    lag_alert: int,
    further: tuple[str, ...],
    supervised: bool,
    ready_file: Path | None,
    endpoint: str,
) -> None:
    """Serve the web console of a cluster.

    The console acts with the credentials of this command; with --login, with those of each user
    who logs in. Give several nodes, so that it survives the end of one. Further clusters use the
    addresses, the user and the TLS of their contexts.

    \b
    cometmq console --port 8082 --endpoint "127.0.0.1:8081;127.0.0.1:8083"
    cometmq console --context prod --also-context staging
    """
    _check_login(host, login=login, allow_changes=allow_changes, further=further)
    if not is_loopback(host) and not hosts:
        text = (
            f"{host} is reachable by other machines: name the hosts by which browsers reach the "
            "console with --allow-host"
        )
        text += "." if login else ", and use --login, or put a proxy with a login in front."
        raise CliError(text, Exit.USAGE)
    if trace_url and (
        not trace_url.startswith(("http://", "https://")) or "{trace_id}" not in trace_url
    ):
        raise CliError("--trace-url must be an http(s) URL with {trace_id}.", Exit.USAGE)
    _check_limits()
    from .descriptors import read
    from .server import serve
    from .targets import Target, name_of, opened

    types = read(descriptors)
    reach = links()
    with Connection(endpoint, reach) as connection:
        first = Target(name_of(endpoint, reach), connection)
        with opened(first, further) as targets:
            serve(
                targets,
                host=host,
                port=port,
                hosts=hosts,
                allow_changes=allow_changes,
                login=login,
                trace_url=trace_url,
                archives=archives,
                descriptors=types,
                lag_alert=lag_alert,
                supervised=supervised,
                ready_file=ready_file,
            )


def _check_limits() -> None:
    """Raise RLIMIT_NOFILE to its hard limit. Raises CliError for limits below the minimum."""
    from ..front.process import raise_descriptor_limit

    raise_descriptor_limit()
    if sentence := lack("console", limits_of_process(), NEEDS["console"]):
        raise CliError(sentence)


def _check_login(host: str, *, login: bool, allow_changes: bool, further: tuple[str, ...]) -> None:
    """Raise CliError for options that contradict each other."""
    if login and (allow_changes or further):
        text = (
            "--login shows one cluster, and each user's rights decide about changes: leave out "
            "--allow-changes and --also-context."
        )
        raise CliError(text, Exit.USAGE)
    if not is_loopback(host) and allow_changes:
        text = (
            f"{host} is reachable by other machines: there --allow-changes would let everyone "
            "change the cluster. Use --login."
        )
        raise CliError(text, Exit.USAGE)
