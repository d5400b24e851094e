"""Network addresses as text: `host:port`, with brackets around an IPv6 address."""


def bracketed(host: str) -> str:
    """Return `host` as it stands before a colon and a port: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


def host_port(host: str, port: int) -> str:
    """Return `host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
