"""Rows of the service table for calls of nodes and operators of the cluster."""

from collections.abc import Callable
from typing import Any

from ..front.admission import nodes_only
from ..front.service import Kind, Method
from ..nodes.node_links import NodeLinks

#: Largest request unless a method needs more: names, addresses and numbers of one replica, or the
#: state of one group with at most 16 members of some hundred bytes.
_REQUEST_BYTES = 256 << 10


def node_method(  # noqa: PLR0917 - the columns of one row
    path: str,
    request: Any,
    response: Callable[[], Any],
    handler: Callable[..., Any],
    links: NodeLinks,
    request_bytes_max: int = _REQUEST_BYTES,
    *,
    kind: Kind = Kind.UNARY,
    fail: Callable[..., Any] | None = None,
) -> Method:
    """Return the row of a method that is refused to others than nodes before its request is parsed.

    Without `fail` the method fails with gRPC statuses only.
    """
    return Method(
        path,
        kind,
        request.FromString,
        handler,
        fail or (lambda _error: response()),
        admit=nodes_only(links),
        request_bytes_max=request_bytes_max,
    )
