"""Endpoints of users and of routes, and their gRPC target names. Pure.

Several addresses are alternatives of one access point: gRPC tries the next when one fails
(docs/formats/grpc-api.md, section 9.1). `a:1;b:2` and `a:1,b:2` are equivalent. A scheme `http://`
or `https://` is ignored. IPv6 addresses are written in brackets. gRPC cannot combine several host
names in one target: the first is dialled.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ...proto import v2

_DEFAULT_PORT = 8081


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses of one node or group. Equal targets share a connection."""

    addresses: tuple[tuple[str, int], ...]

    def name(self) -> str:
        """Return the target name for a gRPC channel."""
        kind = _kind(self.addresses[0][0])
        if kind is v2.IPv4:
            return "ipv4:" + ",".join(f"{host}:{port}" for host, port in self.addresses)
        if kind is v2.IPv6:
            return "ipv6:" + ",".join(f"[{host}]:{port}" for host, port in self.addresses)
        host, port = self.addresses[0]
        return f"dns:///{host}:{port}"

    def proto(self) -> v2.Endpoints:
        """Return the addresses as a protobuf message."""
        endpoints = v2.Endpoints(scheme=_kind(self.addresses[0][0]))
        for host, port in self.addresses:
            endpoints.addresses.add(host=host, port=port)
        return endpoints

    def __str__(self) -> str:
        return ";".join(f"{host}:{port}" for host, port in self.addresses)


def parse_endpoints(text: str) -> Target:
    """Parse a user's endpoints. Raises ValueError with a sentence."""
    addresses = []
    for part in re.split(r"[;,]", text):
        item = re.sub(r"^https?://", "", part.strip()).rstrip("/")
        if not item:
            continue
        host, colon, port = item.rpartition(":")
        if not colon or (host.count(":") and not host.endswith("]")):
            host, port = item, str(_DEFAULT_PORT)
        if not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"invalid endpoint '{item}': write HOST:PORT")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not addresses:
        raise ValueError("no endpoint: write HOST:PORT, several separated by semicolons")
    return Target(tuple(addresses))


def target_of(endpoints: v2.Endpoints) -> Target | None:
    """Return the target of a route's endpoints; None if they are empty."""
    addresses = tuple((one.host, one.port) for one in endpoints.addresses)
    return Target(addresses) if addresses else None


def _kind(host: str) -> v2.AddressScheme.ValueType:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return v2.DOMAIN_NAME
    return v2.IPv4 if version == 4 else v2.IPv6
