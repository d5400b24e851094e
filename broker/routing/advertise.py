"""Advertised addresses: which endpoints a route contains for a broker group. Pure.

`advertise` has three rules: `replicas`, all replicas as alternatives of one endpoint; `echo`, the
address that the client dialled; or a configured list. `auto` uses `replicas` if the client dialled
a node's own address and `echo` otherwise. Clients survive a failover with several addresses, but
only clients that support them get several, and only IP addresses of one family, because clients
reject anything else (docs/formats/grpc-api.md, section 9.1).

The order of the replicas is stable for each client id. If they are on several hosts it differs
between clients, so a host that vanishes is the first address of a share of the clients only.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Sequence

from msgspec import Struct

from ...front.context import takes_several_addresses
from ...nodes.addresses import host_of
from ...proto import v2
from ..base.cluster_view import ClusterView, GroupView
from ..base.config import split_addresses

Address = tuple[str, int]


class Caller(Struct, frozen=True):
    """The properties of a client on which the rules depend."""

    #: Addresses of the client's configuration.
    dialled: v2.Endpoints
    #: Address of the client's connection.
    peer: str
    language: str
    tls: bool = False
    client_id: str = ""

    @property
    def takes_several(self) -> bool:
        """Whether the client can use several addresses of one endpoint."""
        return takes_several_addresses(self.language, self.tls)


class Advertiser(Struct, frozen=True):
    """The configured rule, applied to the cluster view."""

    rule: str
    by_hand: Sequence[Address]
    view: ClusterView

    def endpoints(self, group: GroupView, caller: Caller) -> v2.Endpoints:
        """Return the endpoints of `group` for this client."""
        several = caller.takes_several
        if self.by_hand:
            return _message(self.by_hand, self.by_hand[0], several)
        called = [
            (a.host.strip("[]"), a.port) for a in caller.dialled.addresses if a.host and a.port
        ]
        members = [address for m in group.members for address in split_addresses(m.client)]
        if called and (not members or self._echoes(called, members, caller.peer)):
            return _message(called, called[0], several)
        if not members:
            return v2.Endpoints()
        leader = group.leader()
        first = split_addresses(leader.client)[0] if leader is not None else members[0]
        return _message(self._in_order(members, caller.client_id), first, several)

    def _in_order(self, members: Sequence[Address], client_id: str) -> Sequence[Address]:
        """Rotate the addresses by client id; an isolated node's own address is the last."""
        if len({host for host, _ in members}) > 1:
            turn = zlib.crc32(client_id.encode()) % len(members)
            members = [*members[turn:], *members[:turn]]
        avoided = split_addresses(self.view.avoided)
        return sorted(members, key=lambda address: address in avoided)

    def _echoes(self, called: Sequence[Address], members: Sequence[Address], peer: str) -> bool:
        if self.rule == "auto":
            return not _one_family(members) or not _is_own(called, self.view, peer)
        return self.rule == "echo"


def _is_own(called: Sequence[Address], view: ClusterView, peer: str) -> bool:
    """Return whether the client dialled an address that a replica registered.

    A loopback address counts only if the client is on this machine: a mapped port of a container
    looks the same from outside.
    """
    registered = {address for text in view.addresses() for address in split_addresses(text)}
    near = _is_loopback(host_of(peer))
    return any(
        address in registered and (near or not _is_loopback(address[0])) for address in called
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def scheme_of(host: str) -> v2.AddressScheme.ValueType:
    """Return the address scheme of a host, from which clients parse it."""
    try:
        return v2.IPv4 if ipaddress.ip_address(host).version == 4 else v2.IPv6
    except ValueError:
        return v2.DOMAIN_NAME


def one_address(address: Address) -> v2.Endpoints:
    """Return endpoints with a single address."""
    return _message([address], address, several=False)


def _one_family(addresses: Sequence[Address]) -> bool:
    schemes = {scheme_of(host) for host, _ in addresses}
    return len(schemes) == 1 and schemes != {v2.DOMAIN_NAME}


def _message(addresses: Sequence[Address], only: Address, several: bool) -> v2.Endpoints:
    """Return all addresses if the client can use several, else only `only`."""
    if not several or not _one_family(addresses):
        addresses = [only]
    return v2.Endpoints(
        scheme=scheme_of(addresses[0][0]),
        addresses=[v2.Address(host=host, port=port) for host, port in addresses],
    )
