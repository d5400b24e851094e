"""Connections of the command line to nodes: TLS, and which nodes get the cluster token.

A token belongs to addresses: that of `--token-file` to those that the command was given, that of a
context to those of the context (`context/chosen.py`), any other one to this machine and to the
addresses of the environment ($COMETMQ_ENDPOINT and $COMETMQ_NAMESRV_ADDR); and all to the replicas
that such nodes list. It is never sent elsewhere, and in plaintext to other machines only over a
trusted network (`proto/node_links.py`). gRPC is imported with the first channel: help needs none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..proto.addresses import is_local
from . import local_cluster
from .context import chosen
from .errors import CliError, Exit

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc
    import grpc.aio

    from ..client.transport.tls import Tls

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Long-lived commands (`message tail`, `console`) find a restarted node soon.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
# Keys of the click context: the values of the options, the names of those on the command line, and
# the addresses that nodes listed.
_OPTIONS_KEY = "cometmq.links"
_EXPLICIT_KEY = "cometmq.links.explicit"
_LISTED_KEY = "cometmq.listed"
_NODE_NAME = "node.cometmq.internal"


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
    found: LinkOptions = ctx.meta.setdefault(_OPTIONS_KEY, LinkOptions())
    return found


def explicit() -> set[str]:
    """Return the names of the options that the command line gives, not the environment."""
    found: set[str] = click.get_current_context().meta.setdefault(_EXPLICIT_KEY, set())
    return found


def options_for(endpoint: str) -> LinkOptions:
    """Return the options for an endpoint; in a context, those of the command line override it."""
    context = chosen.context_of(endpoint)
    if context is None:
        return options()
    values = {name: getattr(options(), name) for name in explicit()}
    return replace(
        LinkOptions(
            _path(context.token_file),
            context.tls,
            _path(context.tls_ca),
            _path(context.tls_certificate),
            _path(context.tls_key),
            context.trusted_network,
        ),
        **values,
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def uses_tls(endpoint: str) -> bool:
    """Return whether the running command calls an endpoint with TLS."""
    found = options_for(endpoint)
    return found.tls or found.tls_ca is not None


def target(endpoint: str) -> str:
    """Return the gRPC target of HOST:PORT or of alternatives. Raises CliError."""
    addresses = chosen.split(endpoint)
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not host or not colon or not port.isdigit() or not 0 < int(port) <= 65_535:
            raise CliError(f"--endpoint must be HOST:PORT, but is '{endpoint}'.", Exit.USAGE)
    if not addresses:
        raise CliError("--endpoint must be HOST:PORT, but is empty.", Exit.USAGE)
    if len(addresses) == 1:
        return addresses[0]
    scheme = "ipv6" if addresses[0].startswith("[") else "ipv4"
    return f"{scheme}:{','.join(addresses)}"


def channel(endpoint: str, at: str = "") -> grpc.Channel:
    """Return a blocking channel to HOST:PORT or to alternatives; to `at` with the TLS of the
    endpoint if given. Raises CliError."""
    import grpc

    address = target(at or endpoint)
    used = tls(endpoint)
    if used is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    more = (*CHANNEL_OPTIONS, *used.options())
    return grpc.secure_channel(address, used.credentials(), options=more)


def async_channel(endpoint: str) -> grpc.aio.Channel:
    """Return a channel for the event loop, as `channel` does. Raises CliError."""
    import grpc.aio

    address = target(endpoint)
    used = tls(endpoint)
    if used is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    more = (*CHANNEL_OPTIONS, *used.options())
    return grpc.aio.secure_channel(address, used.credentials(), options=more)


def tls(endpoint: str) -> Tls | None:
    """Return how calls to an endpoint use TLS; None for plaintext. Raises CliError."""
    from ..client.transport.tls import Tls

    found = options_for(endpoint)
    if not uses_tls(endpoint):
        return None
    if bool(found.tls_certificate) != bool(found.tls_key):
        raise CliError("Give both --tls-certificate and --tls-key, or neither.", Exit.USAGE)
    roots, certificate, key = map(_content, (found.tls_ca, found.tls_certificate, found.tls_key))
    name = os.environ.get("COMETMQ_TLS_NODE_NAME", _NODE_NAME)
    return Tls(roots, certificate, key, "" if found.tls else name)


def _content(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError as error:
        raise CliError(f"Cannot read {path}: {error.strerror}.", Exit.USAGE) from None


def cluster_token(endpoint: str) -> str:
    """Return the token for an endpoint; "" without one. Raises OSError.

    In this order: `--token-file`; the data directory of `--data`; the context, for its addresses;
    for other addresses the environment, or the data directory at the current directory, for
    endpoints on this machine.
    """
    path = options_for(endpoint).token_file or local_cluster.named_file(local_cluster.TOKEN_FILE)
    if path is None and chosen.context_of(endpoint) is None:
        if token := os.environ.get("COMETMQ_CLUSTER_TOKEN", ""):
            return token
        if file := os.environ.get("COMETMQ_CLUSTER_TOKEN_FILE", ""):
            return Path(file).read_text(encoding="utf-8").strip()
        path = local_cluster.found_file(local_cluster.TOKEN_FILE, endpoint)
    return path.read_text(encoding="utf-8").strip() if path is not None else ""


def list_addresses(source: str, addresses: Iterable[str]) -> None:
    """Let addresses that a node listed get its token, if the node itself gets it."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or refusal_of_token(source):
        return
    if chosen.context_of(source) is not None:
        chosen.list_addresses(addresses)
    else:
        ctx.meta.setdefault(_LISTED_KEY, set()).update(addresses)


def token_metadata(endpoint: str) -> tuple[tuple[str, str], ...]:
    """Return the token as metadata for calls to HOST:PORT (or several); empty if it must not be
    sent there. Raises OSError."""
    from ..proto.node_links import TOKEN_KEY

    token = cluster_token(endpoint)
    return ((TOKEN_KEY, token),) if token and not refusal_of_token(endpoint) else ()


def variables(endpoint: str) -> dict[str, str]:
    """Return variables by which a child process calls an endpoint as this command does. Raises
    OSError."""
    found = options_for(endpoint)
    values = {
        "COMETMQ_NAMESRV_ADDR": endpoint,
        "COMETMQ_CLUSTER_TOKEN": "" if refusal_of_token(endpoint) else cluster_token(endpoint),
        "COMETMQ_TRUSTED_NETWORK": "true" if found.trusted_network else "",
        "COMETMQ_TLS_CA": str(found.tls_ca or ""),
        "COMETMQ_TLS_CERTIFICATE": str(found.tls_certificate or ""),
        "COMETMQ_TLS_KEY": str(found.tls_key or ""),
    }
    return {name: value for name, value in values.items() if value}


def refusal_of_token(endpoint: str) -> str:
    """Return why the token is not sent to an endpoint, or an empty text."""
    far = [address for address in chosen.split(endpoint) if not is_local(address)]
    if not far:
        return ""
    if (
        options().token_file is None
        and chosen.context_of(endpoint) is None
        and not _addresses().issuperset(far)
    ):
        return (
            "the cluster token is sent to this machine, to the addresses of the context, and to "
            "those of $COMETMQ_ENDPOINT and $COMETMQ_NAMESRV_ADDR only; for other addresses give "
            "--token-file"
        )
    if not uses_tls(endpoint) and not options_for(endpoint).trusted_network:
        return (
            "the cluster token is not sent in plaintext to another machine: give --tls-ca, or "
            "--trusted-network"
        )
    return ""


def _addresses() -> set[str]:
    """Return the addresses of the environment, and those that nodes listed."""
    ctx = click.get_current_context(silent=True)
    found: set[str] = set(ctx.meta.get(_LISTED_KEY, ())) if ctx is not None else set()
    for name in chosen.ADDRESS_VARIABLES:
        found.update(chosen.split(os.environ.get(name, "")))
    return found
