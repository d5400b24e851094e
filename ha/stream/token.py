"""Cluster token: admission to the cluster's internal services (replication, registration).

The metadata `x-cometmq-token` must equal `clusterToken`. Without a configured token only this
machine may call: a cluster over a network has to set a secret first.
"""

import hmac
from collections.abc import Iterable

TOKEN_KEY = "x-cometmq-token"

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


def is_admitted(token: str, metadata: Iterable[tuple[str, str | bytes]] | None, peer: str) -> bool:
    """Return whether a caller with this metadata and address is admitted."""
    if not token:
        return peer.startswith(_LOCAL_PEERS)
    shown = ""
    for key, value in metadata or ():
        if key == TOKEN_KEY and isinstance(value, str):
            shown = value
    return hmac.compare_digest(shown.encode(), token.encode())


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries the token."""
    return ((TOKEN_KEY, token),) if token else ()
