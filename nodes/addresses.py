"""Network addresses as text: `host:port`, with brackets around an IPv6 address."""

import ipaddress
import re
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


def network_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the network of 64 bits, which a subscriber has."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def is_ip(host: str) -> bool:
    """Return whether `host` is an IPv4 or IPv6 address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


#: Of a host name; `_` stands in names of containers.
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")


def is_host(host: str) -> bool:
    """Return whether `host`, without brackets, is an IP address or a host name: not an option or
    anything else that a shell or a program could take for more."""
    return is_ip(host) or _HOST_NAME.fullmatch(host) is not None


def check_host(key: str, host: str) -> None:
    """Raise ValueError unless the value of setting `key` is an IP address or a host name."""
    if is_host(host):
        return
    text = f"{key}='{host}' is neither an IP address nor a host name."
    if is_ip(host.strip("[]")):
        text += " Write the IPv6 address without brackets."
    raise ValueError(text)


@lru_cache(maxsize=1_024)
def is_local(address: str) -> bool:
    """Return whether a connection to HOST:PORT stays on this machine."""
    host = host_of(address)
    return is_loopback(host) or host in ("0.0.0.0", "::")
