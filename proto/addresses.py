"""Network addresses as text: `host:port`, with brackets around an IPv6 address."""

import ipaddress


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
