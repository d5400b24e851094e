"""`cometmq auth dev-ca`: a certificate authority for development, and certificates of nodes.

The directory gets `ca.pem` and `ca.key`, and for each node NAME.pem and NAME.key, all with mode
0600. An existing authority is used again, so that the command also renews certificates; running
nodes take replaced files over.
"""

from pathlib import Path

import click

from ...nodes.tls_config import TlsConfig
from ...operations.errors import CliError, Exit

_LOCAL = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3_650


@click.command("dev-ca")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE[=HOST,HOST...]...")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tls"),
    show_default=True,
    help="Directory of the files; it is created with mode 0700.",
)
@click.option(
    "--node-name",
    default=TlsConfig().tls_node_name,
    show_default=True,
    help="DNS name that gives a certificate the rights of a node (tlsNodeName).",
)
@click.option(
    "--days",
    type=click.IntRange(1, _AUTHORITY_DAYS),
    default=365,
    show_default=True,
    help="Validity of the certificates of nodes.",
)
def dev_ca(*, nodes: tuple[str, ...], directory: Path, node_name: str, days: int) -> None:
    """Make certificates of nodes for development, and their authority at the first use.

    NODE names the files. HOSTs are the names and addresses that clients use for the node, beside
    localhost. Every certificate has the rights of a node: a command of an operator can use one.

    \b
    cometmq auth dev-ca a=10.0.0.11,a.example b=10.0.0.12
    """
    from .authority import Authority

    named = dict(parsed := [_parse(node) for node in nodes])
    if len(named) < len(parsed):
        raise CliError("A NODE is named twice: it has one certificate.", Exit.USAGE)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.of(directory, _AUTHORITY_DAYS)
        if authority.is_new:
            click.echo(str(authority.file))
        for name, hosts in named.items():
            click.echo(str(authority.issue(name, [node_name, *hosts, *_LOCAL], days)))
    except OSError as error:
        raise CliError(f"Cannot write {error.filename}: {error.strerror}.") from None


def _parse(node: str) -> tuple[str, list[str]]:
    name, _, hosts = node.partition("=")
    if not name or name == "ca" or "/" in name or name.startswith("."):
        raise CliError(f"'{node}' is not NODE=HOST,..., with a file name.", Exit.USAGE)
    return name, [host.strip() for host in hosts.split(",") if host.strip()]
