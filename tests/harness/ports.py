"""Ports for servers that a test starts, stops and starts again."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return one port of `free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return unused ports below those that the kernel gives to connections.

    A server that is stopped and started again keeps its port: another process must not get it, and
    a client that dials it meanwhile must not connect to itself.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports
