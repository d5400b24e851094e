"""Admission to the replication port: nodes of the cluster, and operators with its token.

The rule is that of `proto/node_links.py`; this module reads what it needs from a gRPC call.
"""

from collections.abc import Iterable, Mapping

from ...proto.node_links import TOKEN_KEY, NodeLinks

#: gRPC formats peers as `ipv4:127.0.0.1:5000`, `ipv6:[::1]:5000` (also percent-encoded),
#: `unix:...`.
_LOCAL_PEERS = (
    "ipv4:127.",
    "ipv6:[::1]:",
    "ipv6:%5B::1%5D:",
    "ipv6:[::ffff:127.",
    "ipv6:%5B::ffff:127.",
    "unix:",
)
#: Name in gRPC's authentication context of the certificate that it verified.
_CERTIFICATE = "x509_pem_cert"


def is_admitted(
    links: NodeLinks,
    metadata: Iterable[tuple[str, str | bytes]] | None,
    peer: str,
    verified: Mapping[str, Iterable[bytes]],
) -> bool:
    """Return whether the caller is a node; `verified` is the authentication context of the call."""
    token = ""
    for key, value in metadata or ():
        if key == TOKEN_KEY and isinstance(value, str):
            token = value
    certificate = next(iter(verified.get(_CERTIFICATE, ())), b"")
    return links.admits(token, certificate, local=peer.startswith(_LOCAL_PEERS))
