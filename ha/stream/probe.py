"""Probe of a replication port: whether the host refuses connections.

A refusal comes from the host's kernel: the host is alive, and no process listens on the port. A
timeout, an unreachable host or a name that does not resolve shows nothing.
"""

import asyncio

_TIMEOUT_S = 0.5


async def refuses(address: str) -> bool:
    """Return whether HOST:PORT refuses a TCP connection."""
    try:
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    writer.close()
    return False
