"""Network addresses as text: `host:port`, with brackets around an IPv6 address."""

import ipaddress
from functools import lru_cache


def bracketed(host: str) -> str:
    """Return `host` as it stands before a colon and a port: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


def host_port(host: str, port: int) -> str:
    """Return `host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """Return the host of `host:port` without brackets; empty for a text without a port."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine only, or `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(maxsize=1_024)
def is_local(address: str) -> bool:
    """Return whether a connection to HOST:PORT stays on this machine."""
    host = host_of(address)
    return is_loopback(host) or host in ("0.0.0.0", "::")
