"""Resources of a server process: file descriptors, the event loop, and freed memory.

A client connection takes one descriptor. A reserve stays free of them for the store, replication,
the metrics port and connections to other nodes: without a free descriptor the store cannot open a
file.

Servers run on the loop of `loop_factory`: uvloop if it is installed (a call through the grpcio door
then takes a tenth less CPU), else asyncio's own.

gRPC's core holds large or many requests in small pieces on its own threads. The C library of Linux
keeps such memory after it is freed: `FreedMemory` returns it to the operating system.
"""

import asyncio
import ctypes
import resource
from collections.abc import Callable
from contextlib import suppress

from .config import DoorConfig

#: Descriptors that stay free of client connections: at least this many, and a quarter of the limit.
#: An idle broker uses about 60; each GiB of the log takes two more.
RESERVE_MIN = 150
_RESERVE_MAX = 16_384
_UNLIMITED = 1 << 30
#: Growth of the process's own memory after which freed memory is returned.
_GROWTH_BYTES = 32 << 20
#: Calls of `FreedMemory.grown` between two returns, each of which takes some ten milliseconds of a
#: thread. The number is doubled while the memory is in use, and not if it has grown again.
_CALLS_MIN, _CALLS_MAX = 5, 15


def descriptor_limit() -> int:
    """Return RLIMIT_NOFILE of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise RLIMIT_NOFILE to its hard limit; return it. Servers call it once, at start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a hard limit above the system's (macOS: unlimited)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def connections_max(configured: int, reserved: int, limit: int) -> int:
    """Return the number of client connections: `configured`, or what the reserve leaves.

    `reserved` 0 derives the reserve from `limit`: a quarter of it, at least `RESERVE_MIN`, and not
    more than half.
    """
    reserve = reserved or min(max(limit // 4, RESERVE_MIN), limit // 2, _RESERVE_MAX)
    return max(1, min(configured, limit - reserve))


def client_connections(config: DoorConfig) -> int:
    """Return the number of client connections that a door of this process accepts."""
    configured, reserved = config.front_max_connections, config.front_reserved_descriptors
    return connections_max(configured, reserved, descriptor_limit())


def address_connections(config: DoorConfig, connections: int) -> int:
    """Return the number of connections that a port with `connections` accepts of one address."""
    return config.front_max_address_connections or max(1, connections // 2)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the event loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class FreedMemory:
    """Memory that was freed, but that the C library keeps."""

    def __init__(self) -> None:
        #: None where the C library has no such function (macOS, musl).
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        import psutil

        self._process = psutil.Process()
        #: The least of the process's own memory, and what was left by the last return.
        self._least = self._left = self._own_bytes()
        self._calls = 0
        self._wait = _CALLS_MIN

    def grown(self) -> bool:
        """Return whether to give memory back: the process has grown. Call it once a second."""
        self._calls += 1
        if self._trim is None or self._calls < _CALLS_MIN:
            return False
        try:
            own = self._own_bytes()
        except OSError:  # no descriptor to read it: a later call repeats it
            return False
        self._least = min(self._least, own)
        if own < self._least + _GROWTH_BYTES:
            self._wait = _CALLS_MIN
            return False
        return self._calls >= self._wait or own >= self._left + _GROWTH_BYTES

    def give_back(self) -> None:
        """Return freed memory to the operating system; call it in a thread."""
        self._calls = 0
        self._wait = min(2 * self._wait, _CALLS_MAX)
        if self._trim is None:
            return
        self._trim(0)
        with suppress(OSError):
            self._left = self._own_bytes()

    def _own_bytes(self) -> int:
        memory = self._process.memory_info()
        return int(memory.rss - getattr(memory, "shared", 0))
