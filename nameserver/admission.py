"""Admission to the cluster's internal services of a nameserver.

The metadata `x-cometmq-token` must equal `clusterToken`; without a configured token only this
machine may call.
"""

import hmac
import ipaddress
from typing import TYPE_CHECKING

from ..proto.errors import RpcFailure

if TYPE_CHECKING:
    from ..front.context import RequestContext

_PERMISSION_DENIED = 7


def check_token(token: str, ctx: "RequestContext") -> None:
    """Raise PERMISSION_DENIED unless the caller is admitted."""
    if token:
        if not hmac.compare_digest(token.encode(), ctx.token.encode()):
            raise RpcFailure(
                _PERMISSION_DENIED, "the cluster token is missing or wrong: set clusterToken"
            )
    elif not _is_loopback(ctx.peer):
        raise RpcFailure(
            _PERMISSION_DENIED,
            "a nameserver without clusterToken accepts only brokers on its own machine",
        )


def _is_loopback(peer: str) -> bool:
    host = peer.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return not peer
