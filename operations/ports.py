"""What listens at an address that is not the port that was meant: for the sentence of an error.

The calls need no rights: a port that knows the method answers, or refuses the caller.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from ..proto import paths

if TYPE_CHECKING:
    from .links import Links

CLIENT_PORT, NAMESERVER = "the client port of a broker", "the port of a nameserver"
_TIMEOUT_S = 1.0
_HTTP = b"GET /healthz HTTP/1.1\r\nHost: port\r\nConnection: close\r\n\r\n"


def kind_of_port(endpoint: str, links: Links) -> str:
    """Return what listens, as `a replication port`; "" if nothing does, or it is not known."""
    import grpc

    # A method of each kind of gRPC port that only it has.
    methods = {
        paths.REPLICA_STATUS: "a replication port",
        paths.GET_CLUSTER: NAMESERVER,
        paths.DESCRIBE_CLUSTER: CLIENT_PORT,
    }
    first = endpoint.partition(";")[0]
    if not (said := _http_answer(first)):
        return ""
    if said.startswith(b"HTTP/1"):
        return "an HTTP port (of metrics or of a console)"
    with links.channel(first) as channel:
        for path, kind in methods.items():
            try:
                channel.unary_unary(path)(b"", timeout=_TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    continue
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    return "a port that does not serve gRPC"
            return kind
    return ""


def _http_answer(endpoint: str) -> bytes:
    """Return the first bytes that a port answers to HTTP, `-` for none; empty: it is closed."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as link:
            with contextlib.suppress(OSError):
                link.sendall(_HTTP)
                return link.recv(16) or b"-"
            return b"-"
    except (OSError, ValueError):
        return b""
