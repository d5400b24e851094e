"""Network of a drill: every connection between processes passes a proxy that can inject faults.

A node has two addresses of 127/8: its servers bind the private one; the public one, which it
advertises and others dial, belongs to the proxy. Processes need no setting for this. The dialling
process is found by the owner of the socket (`owners.py`), so edges are directed: `cut("b0", "b1")`
holds what b0 sends to b1, whichever side opened the connection. Held bytes are not lost: after
`heal` they arrive late, as with TCP retransmissions. Faults: hold (one direction or both), delay,
half-open, reset. Linux only.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from .owners import has_socket, socket_inode

CLIENT = "client"  # every process that is not a node
CHUNK = 256 << 10
CALL_S = 10.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST
Edge = tuple[str, str]


@dataclass(slots=True)
class Rule:
    """The treatment of bytes on one directed edge."""

    open: asyncio.Event
    delay_s: float = 0.0


@dataclass(slots=True)
class Door:
    """One public address of a node."""

    node: str
    public: tuple[str, int]
    private: tuple[str, int]
    listener: socket.socket | None = None


@dataclass(eq=False, slots=True)
class Link:
    """One connection through the proxy."""

    dialler: str
    node: str
    near: socket.socket
    far: socket.socket | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Network:
    """All addresses and edges of one cluster, with an event loop in a thread."""

    def __init__(self, owners: Callable[[], dict[str, int]]) -> None:
        """`owners` returns the process id of each running node."""
        self._owners = owners
        self._doors: list[Door] = []
        self._rules: dict[Edge, Rule] = {}
        self._links: set[Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="network")
        self._thread.start()

    def close(self) -> None:
        """End every connection and the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    def add(self, node: str, public: tuple[str, int], private: tuple[str, int]) -> None:
        """Add a public address of `node`; it listens after `up`."""
        self._doors.append(Door(node, public, private))

    def up(self, node: str) -> None:
        """Accept connections at the node's addresses."""
        self._call(self._set_listening(node, True))

    def down(self, node: str) -> None:
        """Refuse connections at the node's addresses, as for a dead process."""
        self._call(self._set_listening(node, False))

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Hold what `one` sends to `other`; with `both` also the reverse."""
        self._call(self._set_open(self._ways(one, other, both), False))

    def heal(self, one: str, other: str) -> None:
        """Let both directions flow again; held bytes arrive."""
        self._call(self._set_open(self._ways(one, other, True), True))

    def isolate(self, node: str, others: Iterable[str]) -> None:
        """Disconnect a node from all of `others`."""
        edges = [way for other in others for way in self._ways(node, other, True)]
        self._call(self._set_open(edges, False))

    def heal_all(self) -> None:
        """Remove all faults."""
        self._call(self._heal_all())

    def delay(self, one: str, other: str, seconds: float) -> None:
        """Delay every chunk that `one` sends to `other`; 0 ends the delay."""
        self._call(self._set_delay((one, other), seconds))

    def reset(self, one: str, other: str) -> int:
        """Reset every connection between the two; return their number."""
        return int(self._call(self._reset({one, other})))

    def _ways(self, one: str, other: str, both: bool) -> list[Edge]:
        return [(one, other), (other, one)] if both else [(one, other)]

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_S)

    # The following methods run on the loop.

    def _rule(self, edge: Edge) -> Rule:
        rule = self._rules.get(edge)
        if rule is None:
            rule = self._rules[edge] = Rule(asyncio.Event())
            rule.open.set()
        return rule

    async def _set_open(self, edges: Iterable[Edge], is_open: bool) -> None:
        for edge in edges:
            event = self._rule(edge).open
            event.set() if is_open else event.clear()

    async def _set_delay(self, edge: Edge, seconds: float) -> None:
        self._rule(edge).delay_s = seconds

    async def _heal_all(self) -> None:
        for rule in self._rules.values():
            rule.open.set()
            rule.delay_s = 0.0

    async def _reset(self, ends: set[str]) -> int:
        found = [link for link in self._links if {link.dialler, link.node} == ends]
        for link in found:
            self._break(link)
        return len(found)

    async def _set_listening(self, node: str, on: bool) -> None:
        for door in self._doors:
            if door.node != node:
                continue
            if on and door.listener is None:
                door.listener = _listen(door.public)
                self._loop.add_reader(door.listener, self._accept, door)
            elif not on and door.listener is not None:
                self._loop.remove_reader(door.listener)
                door.listener.close()
                door.listener = None

    def _accept(self, door: Door) -> None:
        assert door.listener is not None
        try:
            near, peer = door.listener.accept()
        except OSError:
            return  # the dialling side has closed already
        near.setblocking(False)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self._dialler(peer, door.public), door.node, near)
        self._links.add(link)
        link.tasks.append(self._loop.create_task(self._join(link, door)))

    def _dialler(self, source: tuple[str, int], to: tuple[str, int]) -> str:
        """Return the node whose process owns the connection from `source`, else CLIENT."""
        inode = socket_inode(source, to)
        owners = self._owners().items() if inode else ()
        return next((node for node, pid in owners if has_socket(pid, inode)), CLIENT)

    async def _join(self, link: Link, door: Door) -> None:
        forth, back = (link.dialler, link.node), (link.node, link.dialler)
        far = socket.socket()
        far.setblocking(False)
        try:
            await self._rule(forth).open.wait()
            await self._loop.sock_connect(far, door.private)
        except OSError:
            far.close()
            self._break(link)
            return
        link.far = far
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.tasks.append(asyncio.create_task(self._pump(link, far, link.near, back)))
        await self._pump(link, link.near, far, forth)

    async def _pump(
        self, link: Link, source: socket.socket, sink: socket.socket, edge: Edge
    ) -> None:
        rule = self._rule(edge)
        try:
            while True:
                data = await self._loop.sock_recv(source, CHUNK)
                if not rule.open.is_set():
                    await rule.open.wait()
                if rule.delay_s:
                    await asyncio.sleep(rule.delay_s)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    break
                await self._loop.sock_sendall(sink, data)
        except OSError:
            await rule.open.wait()  # a reset does not pass a held edge either
            self._break(link)
            return
        if all(task.done() or task is asyncio.current_task() for task in link.tasks):
            self._forget(link)

    def _break(self, link: Link) -> None:
        for end in (link.near, link.far):
            if end is not None and end.fileno() >= 0:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._forget(link)

    def _forget(self, link: Link) -> None:
        self._links.discard(link)
        for task in link.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for end in (link.near, link.far):
            if end is not None and end.fileno() >= 0:
                self._loop.remove_reader(end.fileno())
                self._loop.remove_writer(end.fileno())
                end.close()

    async def _close(self) -> None:
        for node in {door.node for door in self._doors}:
            await self._set_listening(node, False)
        for link in list(self._links):
            self._break(link)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)


def _listen(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(256)
    listener.setblocking(False)
    return listener
