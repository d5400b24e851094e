"""Slow and wasteful clients of the grpcio door: requests that do not arrive, answers that are not
read, calls that are reset at once.

gRPC's core has no time limit for a request, and holds one message of an answer until the client
reads it. Each call that waits for its client is registered here; `check`, called every second, ends
the calls whose requests are late, and returns the clients that are too slow or leave too many bytes
unread. Their connections are shut down by their sockets, because a gRPC server cannot reset a
stream whose answer waits. (Registering costs less than a timer for each call.) Each call that is
reset before it is processed costs the event loop as much as an answered one, so `reset` reports
the peer of a connection with too many.
"""

import asyncio
import os
import socket
import struct
from asyncio import current_task
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from ..nodes.addresses import host_port
from .config import DoorConfig

#: Answers below this size are not registered: they cost little, and are the most frequent.
COUNTED_MIN = 16 << 10
#: A larger message has the write timeout once for each part of this size.
_PART_BYTES = 1 << 20
#: With too many bytes unread, calls that wait longer than this are cancelled.
_PATIENCE_NS = 1_000_000_000
_NS_PER_MS = 1_000_000
_CHECK_S = 1.0

Task = asyncio.Task[Any]


class _Write(Struct):
    since_ns: int
    size: int
    peer: str


class SlowClients:
    """The calls that wait for their clients. Used on the event loop only."""

    def __init__(self, config: DoorConfig, steady_ns: Callable[[], int]) -> None:
        self._read_timeout_ns = config.front_request_timeout * _NS_PER_MS
        self._write_timeout_ns = config.front_write_timeout * _NS_PER_MS
        self._peer_bytes = config.front_unread_connection_bytes
        self._bytes = config.front_unread_bytes
        self._steady_ns = steady_ns
        self._reads: dict[Task | None, int] = {}
        self._writes: dict[Task | None, _Write] = {}
        self._late: set[Task] = set()
        self._resets_max = config.front_max_pending_resets
        self._resets: Counter[str] = Counter()
        #: Seconds between two checks.
        self.period_s = min(_CHECK_S, config.front_request_timeout / 4_000)
        #: Requests that were not complete in time, since the start.
        self.late_requests = 0

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for their clients."""
        return sum(write.size for write in self._writes.values())

    async def read(self, call: Any) -> Any:
        """Return the next message of a call. Raises TimeoutError if it does not arrive in time."""
        task = current_task()
        self._reads[task] = self._steady_ns()
        try:
            return await call.read()
        except asyncio.CancelledError:
            if task is not None and task in self._late:
                self._late.discard(task)
                if not task.uncancel():  # the client has not left as well
                    raise TimeoutError from None
            raise
        finally:
            del self._reads[task]

    async def write(self, call: Any, data: bytes, peer: str) -> None:
        """Write one message of a call."""
        if len(data) < COUNTED_MIN:
            await call.write(data)
            return
        task = current_task()
        self._writes[task] = _Write(self._steady_ns(), len(data), peer)
        try:
            await call.write(data)
        finally:
            self._writes.pop(task, None)

    def answered(self, size: int, peer: str) -> None:
        """Register the running task until it ends: gRPC sends its answer of `size` bytes."""
        task = current_task()
        if task is not None and size >= COUNTED_MIN:
            self._writes[task] = _Write(self._steady_ns(), size, peer)
            task.add_done_callback(self._ended)

    def reset(self, peer: str) -> bool:
        """Note a call that was reset before it was processed; return whether to close the
        connection: True once for each period."""
        self._resets[peer] += 1
        return self._resets[peer] == self._resets_max

    def check(self) -> set[str]:
        """End calls whose requests are late; return the peers of the connections to close."""
        self._resets.clear()
        now_ns = self._steady_ns()
        for task, since_ns in self._reads.items():
            if now_ns - since_ns >= self._read_timeout_ns and task is not None:
                self.late_requests += 1
                self._late.add(task)
                task.cancel()
        return self._slow_readers(now_ns)

    def _slow_readers(self, now_ns: int) -> set[str]:
        """Return slow clients; with too many bytes unread also those that wait longest."""
        total = 0
        peers: Counter[str] = Counter()
        for write in self._writes.values():
            total += write.size
            peers[write.peer] += write.size
        slow: set[str] = set()
        for write in sorted(self._writes.values(), key=lambda write: write.since_ns):
            peer, waited_ns = write.peer, now_ns - write.since_ns
            if peer in slow:
                continue
            over = total > self._bytes or peers[peer] > self._peer_bytes
            allowed_ns = self._write_timeout_ns * (1 + write.size // _PART_BYTES)
            if waited_ns >= allowed_ns or (over and waited_ns >= _PATIENCE_NS):
                total -= peers[peer]
                slow.add(peer)
        return slow

    def _ended(self, task: Task) -> None:
        self._writes.pop(task, None)


def disconnect(peers: set[str], port: int) -> int:
    """Shut down this process's connections from `peers` (HOST:PORT) to `port`; return how many.

    Reads the table of descriptors: call it in a thread.
    """

    def shut_down(connection: socket.socket) -> bool:
        host, number, *_ = connection.getpeername()
        if host_port(host.removeprefix("::ffff:"), number) not in peers:
            return False
        connection.shutdown(socket.SHUT_RDWR)
        return True

    return _each_connection(port, shut_down)


def reset_on_close(port: int) -> int:
    """Let the kernel end this process's connections to `port` with a reset; return how many.

    For a node whose packets arrive while it receives none: without acknowledgements of earlier
    bytes the kernel would not send the end of a connection, but it sends a reset. Reads the table
    of descriptors: call it in a thread.
    """
    no_linger = struct.pack("ii", 1, 0)

    def set_linger(connection: socket.socket) -> bool:
        connection.getpeername()  # OSError: it listens
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        return True

    return _each_connection(port, set_linger)


def _each_connection(port: int, do: Callable[[socket.socket], bool]) -> int:
    """Call `do` with each TCP connection to `port`; return how often it returned True."""
    count = 0
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed meanwhile, or no socket
            if not os.readlink(f"/dev/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                count += connection.getsockname()[1] == port and do(connection)
    return count
