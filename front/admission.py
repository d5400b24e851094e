"""Admission of calls from other nodes of the cluster.

`nodes/node_links.py` defines a node: the cluster token, or a certificate with the name of nodes.
Admission uses the connection and metadata alone, so that a request is not parsed before it.
"""

from collections.abc import Callable
from functools import partial

from ..nodes.addresses import host_of, is_loopback
from ..nodes.node_links import NodeLinks
from ..proto.errors import INVALID_ARGUMENT, PERMISSION_DENIED, RpcFailure
from .context import FORWARDED, USER, RequestContext

#: Refuses a call before its request is parsed: raises RpcFailure or WireError.
Admission = Callable[[RequestContext], None]


def check_node(links: NodeLinks, ctx: RequestContext) -> None:
    """Raise PERMISSION_DENIED unless the caller is a node."""
    # An unknown peer is a remote one.
    if links.admits(ctx.token, ctx.peer_certificate, local=is_loopback(host_of(ctx.peer))):
        return
    if links.token:
        raise RpcFailure(
            PERMISSION_DENIED, "the cluster token is missing or wrong: set clusterToken"
        )
    raise RpcFailure(
        PERMISSION_DENIED,
        "without clusterToken a node accepts calls of nodes on its own machine only",
    )


def nodes_only(links: NodeLinks) -> Admission:
    """Return the admission of methods that only nodes and operators of the cluster call."""
    return partial(check_node, links)


def forwarded_by_nodes_only(links: NodeLinks, admit: Admission | None) -> Admission:
    """Return the admission of a client method: only a node may mark a request as forwarded.

    `admit` is the method's own admission, called afterwards.
    """

    def check(ctx: RequestContext) -> None:
        # A node could not pass the call on. HTTP/2 itself allows no other control character.
        for name, value in ctx.metadata:
            if not value.isascii() or "\t" in value:
                raise RpcFailure(INVALID_ARGUMENT, f"{name} holds more than printable ASCII")
        if ctx.forwarded:
            check_node(links, ctx)
            # Never the node's own address: an unknown client is not one of this machine.
            ctx.peer = ctx.forwarded_for if ":" in ctx.forwarded_for else ""
            # Not of a process that is a node by its machine alone: it has no right of a user.
            if ctx.forwarded_user and links.admits(ctx.token, ctx.peer_certificate, local=False):
                ctx.user = links.forwarded_user(ctx.forwarded_user)
        else:
            ctx.user = links.user_of(ctx.peer_certificate)
        if admit is not None:
            admit(ctx)

    return check


def forward_mark(
    links: NodeLinks, address: str, peer: str, user: str
) -> tuple[tuple[str, str], ...]:
    """Return the metadata that marks a request to the node at `address` as forwarded for the
    client with the address `peer`, whose certificate names `user` (empty: none)."""
    mark = ((FORWARDED, peer), *links.metadata(address))
    return (*mark, (USER, user)) if user else mark
