"""Connections of an operator's program to nodes: TLS, users, and which nodes get the cluster token.

A token belongs to addresses: that of `--token-file` to those that the command was given, that of a
context to those of the context (`contexts.py`), any other one to this machine and to the
addresses of the environment ($COMETMQ_ENDPOINT and $COMETMQ_NAMESRV_ADDR); and all to the replicas
that such nodes list. It is never sent elsewhere, and in plaintext to other machines only over a
trusted network (`nodes/node_links.py`). gRPC is imported with the first channel: help needs none.

A user signs the calls. In this order: the file `admin-credentials` (written by `cometmq up --auth`)
of the directory given by `--data`; the user of the context, for addresses of the context; for other
addresses COMETMQ_ACCESS_KEY with COMETMQ_SECRET_KEY, or the file of the current directory, or of
`data` in it, for endpoints on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ..nodes.addresses import is_local
from . import local_cluster
from .contexts import Context
from .credentials import Credentials, read_file
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
#: Variables that name the addresses of a command.
ADDRESS_VARIABLES = ("COMETMQ_ENDPOINT", "COMETMQ_NAMESRV_ADDR")
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


class Keys(TypedDict):
    """Fields of a job's plan."""

    access_key: str
    secret_key: str


#: The name of a context, and what it holds.
NamedContext = tuple[str, Context]


class Links:
    """How one program reaches nodes: its options, its context or data directory, its secrets."""

    def __init__(self, context: Callable[[], NamedContext | None] = lambda: None) -> None:
        """`context` returns the context of the program; without one there is none."""
        self.options = LinkOptions()
        #: The names of the options that the command line gives, not the environment.
        self.explicit: set[str] = set()
        #: The data directory of `--data`.
        self.data: Path | None = None
        self.context = context
        # Addresses that nodes listed: of the context, and others.
        self._listed_by_context: set[str] = set()
        self._listed: set[str] = set()

    def context_of(self, endpoint: str) -> Context | None:
        """Return the context if all addresses of HOST:PORT;... belong to it. Raises CliError."""
        chosen = self.context()
        if chosen is None:
            return None
        owned = chosen[1].addresses() | self._listed_by_context
        return chosen[1] if owned.issuperset(split(endpoint)) else None

    def named_file(self, name: str) -> Path | None:
        """Return a file of the directory given by `--data`, if it exists."""
        return None if self.data is None else local_cluster.existing(self.data, name)

    def options_for(self, endpoint: str) -> LinkOptions:
        """Return the options for an endpoint; in a context, those of the command line override
        it."""
        context = self.context_of(endpoint)
        if context is None:
            return self.options
        values = {name: getattr(self.options, name) for name in self.explicit}
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

    def uses_tls(self, endpoint: str) -> bool:
        """Return whether an endpoint is called with TLS."""
        chosen = self.options_for(endpoint)
        return chosen.tls or chosen.tls_ca is not None

    def channel(self, endpoint: str, at: str = "") -> grpc.Channel:
        """Return a blocking channel to HOST:PORT or to alternatives; to `at` with the TLS of the
        endpoint if given. Raises CliError."""
        import grpc

        address = target(at or endpoint)
        used = self.tls(endpoint)
        if used is None:
            return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        more = (*CHANNEL_OPTIONS, *used.options())
        return grpc.secure_channel(address, used.credentials(), options=more)

    def async_channel(self, endpoint: str) -> grpc.aio.Channel:
        """Return a channel for the event loop, as `channel` does. Raises CliError."""
        import grpc.aio

        address = target(endpoint)
        used = self.tls(endpoint)
        if used is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        more = (*CHANNEL_OPTIONS, *used.options())
        return grpc.aio.secure_channel(address, used.credentials(), options=more)

    def tls(self, endpoint: str) -> Tls | None:
        """Return how calls to an endpoint use TLS; None for plaintext. Raises CliError."""
        from ..client.transport.tls import Tls

        chosen = self.options_for(endpoint)
        if not self.uses_tls(endpoint):
            return None
        if bool(chosen.tls_certificate) != bool(chosen.tls_key):
            raise CliError("Give both --tls-certificate and --tls-key, or neither.", Exit.USAGE)
        files = (chosen.tls_ca, chosen.tls_certificate, chosen.tls_key)
        roots, certificate, key = map(_content, files)
        name = os.environ.get("COMETMQ_TLS_NODE_NAME", _NODE_NAME)
        return Tls(roots, certificate, key, "" if chosen.tls else name)

    def credentials(self, endpoint: str) -> Credentials | None:
        """Return the user that signs calls to an endpoint, or None. Raises CliError."""
        if named := self.named_file(local_cluster.CREDENTIALS_FILE):
            return read_file(named)
        if context := self.context_of(endpoint):
            keys = context.access_key, context.secret_key
            return Credentials(*keys) if context.access_key else None
        access_key = os.environ.get("COMETMQ_ACCESS_KEY", "")
        secret_key = os.environ.get("COMETMQ_SECRET_KEY", "")
        if bool(access_key) != bool(secret_key):
            text = "Set both COMETMQ_ACCESS_KEY and COMETMQ_SECRET_KEY, or none."
            raise CliError(text, Exit.USAGE)
        if access_key:
            return Credentials(access_key, secret_key)
        file = local_cluster.found_file(local_cluster.CREDENTIALS_FILE, endpoint)
        return read_file(file) if file else None

    def keys(self, endpoint: str) -> Keys:
        """Return the keys for an endpoint; empty without credentials. Raises CliError."""
        user = self.credentials(endpoint) if endpoint else None
        if user is None:
            return Keys(access_key="", secret_key="")
        return Keys(access_key=user.access_key, secret_key=user.secret_key)

    def cluster_token(self, endpoint: str) -> str:
        """Return the token for an endpoint; "" without one. Raises OSError.

        In this order: `--token-file`; the data directory of `--data`; the context, for its
        addresses; for other addresses the environment, or the data directory at the current
        directory, for endpoints on this machine.
        """
        path = self.options_for(endpoint).token_file or self.named_file(local_cluster.TOKEN_FILE)
        if path is None and self.context_of(endpoint) is None:
            if token := os.environ.get("COMETMQ_CLUSTER_TOKEN", ""):
                return token
            if file := os.environ.get("COMETMQ_CLUSTER_TOKEN_FILE", ""):
                return Path(file).read_text(encoding="utf-8").strip()
            path = local_cluster.found_file(local_cluster.TOKEN_FILE, endpoint)
        return path.read_text(encoding="utf-8").strip() if path is not None else ""

    def list_addresses(self, source: str, addresses: Iterable[str]) -> None:
        """Let addresses that a node listed get its token, if the node itself gets it."""
        if self.refusal_of_token(source):
            return
        is_of_context = self.context_of(source) is not None
        (self._listed_by_context if is_of_context else self._listed).update(addresses)

    def token_metadata(self, endpoint: str) -> tuple[tuple[str, str], ...]:
        """Return the token as metadata for calls to HOST:PORT (or several); empty if it must not be
        sent there. Raises OSError."""
        from ..nodes.node_links import TOKEN_KEY

        token = self.cluster_token(endpoint)
        return ((TOKEN_KEY, token),) if token and not self.refusal_of_token(endpoint) else ()

    def variables(self, endpoint: str) -> dict[str, str]:
        """Return variables by which a child process calls an endpoint as this program does. Raises
        OSError."""
        chosen = self.options_for(endpoint)
        token = "" if self.refusal_of_token(endpoint) else self.cluster_token(endpoint)
        values = {
            "COMETMQ_NAMESRV_ADDR": endpoint,
            "COMETMQ_CLUSTER_TOKEN": token,
            "COMETMQ_TRUSTED_NETWORK": "true" if chosen.trusted_network else "",
            "COMETMQ_TLS_CA": str(chosen.tls_ca or ""),
            "COMETMQ_TLS_CERTIFICATE": str(chosen.tls_certificate or ""),
            "COMETMQ_TLS_KEY": str(chosen.tls_key or ""),
        }
        return {name: value for name, value in values.items() if value}

    def file_variables(self, endpoint: str) -> dict[str, str]:
        """Return `variables` that can be shown: the file of the token instead of the token."""
        found = self.variables(endpoint)
        path = self.options_for(endpoint).token_file or self.named_file(local_cluster.TOKEN_FILE)
        if found.pop("COMETMQ_CLUSTER_TOKEN", "") and path:
            found["COMETMQ_CLUSTER_TOKEN_FILE"] = str(path.absolute())
        return found

    def refusal_of_token(self, endpoint: str) -> str:
        """Return why the token is not sent to an endpoint, or an empty text."""
        far = [address for address in split(endpoint) if not is_local(address)]
        if not far:
            return ""
        if (
            self.options.token_file is None
            and self.context_of(endpoint) is None
            and not self._addresses().issuperset(far)
        ):
            return (
                "the cluster token is sent to this machine, to the addresses of the context, and to"
                " those of $COMETMQ_ENDPOINT and $COMETMQ_NAMESRV_ADDR only; for other addresses"
                " give --token-file"
            )
        if not self.uses_tls(endpoint) and not self.options_for(endpoint).trusted_network:
            return (
                "the cluster token is not sent in plaintext to another machine: give --tls-ca, or"
                " --trusted-network"
            )
        return ""

    def _addresses(self) -> set[str]:
        """Return the addresses of the environment, and those that nodes listed."""
        values = (os.environ.get(name, "") for name in ADDRESS_VARIABLES)
        return self._listed.union(*map(split, values))


def split(endpoint: str) -> list[str]:
    """Return the addresses of HOST:PORT;..."""
    return [part.strip() for part in endpoint.split(";") if part.strip()]


def target(endpoint: str) -> str:
    """Return the gRPC target of HOST:PORT or of alternatives. Raises CliError."""
    addresses = split(endpoint)
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


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _content(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError as error:
        raise CliError(f"Cannot read {path}: {error.strerror}.", Exit.USAGE) from None
