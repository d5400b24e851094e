"""Who may call the cluster's own services: one rule for replication and registration.

The metadata `x-cometmq-token` must equal `clusterToken`. Without a configured token only this machine
may call (design, 8.9): a cluster over a network has to choose a secret first.
"""

import hmac
from collections.abc import Iterable

TOKEN_KEY = "x-cometmq-token"

#: gRPC writes peers as `ipv4:127.0.0.1:5000`, `ipv6:[::1]:5000` (also percent-encoded), `unix:...`.
_LOCAL_PEERS = (
    "ipv4:127.",
    "ipv6:[::1]:",
    "ipv6:%5B::1%5D:",
    "ipv6:[::ffff:127.",
    "ipv6:%5B::ffff:127.",
    "unix:",
)


def is_admitted(token: str, metadata: Iterable[tuple[str, str | bytes]] | None, peer: str) -> bool:
    """Whether a caller with this metadata and address may use the cluster's own services."""
    if not token:
        return peer.startswith(_LOCAL_PEERS)
    shown = ""
    for key, value in metadata or ():
        if key == TOKEN_KEY and isinstance(value, str):
            shown = value
    return hmac.compare_digest(shown.encode(), token.encode())


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """What a caller sends along."""
    return ((TOKEN_KEY, token),) if token else ()
