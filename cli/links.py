"""Connections of the command line to nodes: TLS, and which nodes get the cluster token.

A token belongs to a context: that of `--token-file` to the addresses that the command was given,
any other one to this machine and to the addresses of the environment ($COMETMQ_ENDPOINT and
$COMETMQ_NAMESRV_ADDR), and all to the replicas that such nodes list. It is never sent elsewhere,
and in plaintext to other machines only over a trusted network (`proto/node_links.py`).
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import grpc
import grpc.aio

from ..proto.node_links import TOKEN_KEY, is_local
from . import local_cluster
from .errors import CliError, Exit

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
#: Keys of the click context: the values of the options, and the addresses that nodes listed.
OPTIONS_KEY = "cometmq.links"
_LISTED_KEY = "cometmq.listed"
_NODE_NAME = "node.cometmq.internal"
_NAMED_BY = ("COMETMQ_ENDPOINT", "COMETMQ_NAMESRV_ADDR")


@dataclass(slots=True)
class LinkOptions:
    """The options of one command."""

    token_file: Path | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    trusted_network: bool = False


def options() -> LinkOptions:
    """Return the options of the running command; they are set while its arguments are read."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return LinkOptions()
    found: LinkOptions = ctx.meta.setdefault(OPTIONS_KEY, LinkOptions())
    return found


def uses_tls() -> bool:
    """Return whether the running command calls nodes with TLS."""
    chosen = options()
    return chosen.tls or chosen.tls_ca is not None


def channel(address: str) -> grpc.Channel:
    """Return a blocking channel to a gRPC target. Raises CliError."""
    credentials, more = _dial()
    if credentials is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, credentials, options=(*CHANNEL_OPTIONS, *more))


def async_channel(address: str) -> grpc.aio.Channel:
    """Return a channel for the event loop to a gRPC target. Raises CliError."""
    credentials, more = _dial()
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=(*CHANNEL_OPTIONS, *more))


def _dial() -> tuple[grpc.ChannelCredentials | None, tuple[tuple[str, Any], ...]]:
    """Return the credentials, None for plaintext, and further channel options."""
    chosen = options()
    if not uses_tls():
        return None, ()
    if bool(chosen.tls_certificate) != bool(chosen.tls_key):
        raise CliError("Give both --tls-certificate and --tls-key, or neither.", Exit.USAGE)
    roots, key, chain = map(_content, (chosen.tls_ca, chosen.tls_key, chosen.tls_certificate))
    name = os.environ.get("COMETMQ_TLS_NODE_NAME", _NODE_NAME)
    more = () if chosen.tls else (("grpc.ssl_target_name_override", name),)
    return grpc.ssl_channel_credentials(roots, key, chain), more


def _content(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise CliError(f"Cannot read {path}: {error.strerror}.", Exit.USAGE) from None


def cluster_token(endpoint: str) -> str:
    """Return the token for an endpoint; "" without one. Raises OSError.

    In this order: `--token-file`; the data directory of `--data`; the environment; the data
    directory at the current directory, for endpoints on this machine.
    """
    path = options().token_file or local_cluster.named_file(local_cluster.TOKEN_FILE)
    if path is None:
        if token := os.environ.get("COMETMQ_CLUSTER_TOKEN", ""):
            return token
        path = local_cluster.found_file(local_cluster.TOKEN_FILE, endpoint)
    return path.read_text(encoding="utf-8").strip() if path is not None else ""


def list_addresses(source: str, addresses: Iterable[str]) -> None:
    """Add addresses that a node listed to the context, if the node itself gets the token."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and not refusal_of_token(source):
        ctx.meta.setdefault(_LISTED_KEY, set()).update(addresses)


def token_metadata(endpoint: str) -> tuple[tuple[str, str], ...]:
    """Return the token as metadata for calls to HOST:PORT (or several); empty if it must not be
    sent there. Raises OSError."""
    token = cluster_token(endpoint)
    return ((TOKEN_KEY, token),) if token and not refusal_of_token(endpoint) else ()


def refusal_of_token(endpoint: str) -> str:
    """Return why the token is not sent to an endpoint, or an empty text."""
    chosen = options()
    far = [address for address in _split(endpoint) if not is_local(address)]
    if not far:
        return ""
    if chosen.token_file is None and not _context().issuperset(far):
        return (
            "the cluster token is sent to this machine and to the addresses of $COMETMQ_ENDPOINT "
            "and $COMETMQ_NAMESRV_ADDR only; for other addresses give --token-file"
        )
    if not uses_tls() and not chosen.trusted_network:
        return (
            "the cluster token is not sent in plaintext to another machine: give --tls-ca, or "
            "--trusted-network"
        )
    return ""


def _context() -> set[str]:
    """Return the addresses of the environment, and those that nodes listed."""
    ctx = click.get_current_context(silent=True)
    found: set[str] = set(ctx.meta.get(_LISTED_KEY, ())) if ctx is not None else set()
    for name in _NAMED_BY:
        found.update(_split(os.environ.get(name, "")))
    return found


def _split(endpoint: str) -> list[str]:
    return [part.strip() for part in endpoint.split(";") if part.strip()]
