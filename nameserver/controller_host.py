"""Controller host: the state store and the controller of a nameserver with `controller=true`.

A single controller is always active, on a file. With two or four peers the states are in a CAS
register over all of them, and the holder of the register `controller` is active
(docs/formats/ha.md, section 6.3).
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..front.clock import Clock
from ..front.service import Method
from ..ha.core.cas_register import AcceptorState, Ballot
from ..ha.core.group_state import GroupState
from ..nodes.node_links import NodeLinks
from ..proto import v1
from .acceptor_service import AcceptorService
from .acceptor_store import AcceptorStore
from .acceptors import OwnAcceptor, PeerAcceptor, call_each_once
from .active import ActiveClaim
from .config import NameserverConfig
from .controller import Controller
from .controller_service import ControllerService
from .groups_file import GroupsFile
from .meta_store import decode_state
from .register_store import GROUP_PREFIX, Register, RegisterStore, recover

OnState = Callable[[GroupState], None]
#: A majority decides a round, so a slow peer delays none; a busy disk needs this long to sync.
_PEER_TIMEOUT_MIN_S = 1.0


class ControllerHost(Protocol):
    """Life cycle of the controller: opened before the port, started after it, stopped before it."""

    controller: Controller

    def methods(self) -> list[Method]:
        """Return the methods served on the nameserver's port."""

    def open(self) -> None:
        """Lock the directory and read the files. Raises OSError."""

    async def start(self, address: str) -> None:
        """Start the controller."""

    async def stop(self) -> None:
        """Complete pending writes and drop all sessions."""


def make_controller_host(
    config: NameserverConfig, clock: Clock, on_state: OnState, links: NodeLinks
) -> ControllerHost:
    """Return a single or replicated controller host, as configured."""
    kind = ReplicatedControllerHost if config.peers() else SingleControllerHost
    return kind(config, clock, on_state, links)


class SingleControllerHost:
    """One nameserver with one file."""

    def __init__(
        self, config: NameserverConfig, clock: Clock, on_state: OnState, links: NodeLinks
    ) -> None:
        self._links = links
        self._file = GroupsFile(Path(config.namesrv_data_dir))
        self.controller = Controller(config, clock, self._file, on_state, active=True)

    def methods(self) -> list[Method]:
        return ControllerService(self.controller, self._links, ()).methods()

    def open(self) -> None:
        self._file.open()

    async def start(self, address: str) -> None:
        await self.controller.start(_public_address(address))

    async def stop(self) -> None:
        await self.controller.stop()
        await self._file.close()


class ReplicatedControllerHost:
    """Three nameservers (or five), one of which is active at a time."""

    def __init__(
        self, config: NameserverConfig, clock: Clock, on_state: OnState, links: NodeLinks
    ) -> None:
        self._config = config
        self._links = links
        self._instance = secrets.token_hex(8)
        self._acceptor = AcceptorStore(Path(config.namesrv_data_dir))
        self._clock = clock
        self._peers: list[PeerAcceptor] = []
        self._register = Register([], self._instance, clock.steady_ns, self._ttl_ms / 1_000)
        store = RegisterStore(self._register)
        self.controller = Controller(config, clock, store, on_state, active=False)
        self._active = ActiveClaim(
            self._register,
            self._acceptor,
            instance=self._instance,
            ttl_ms=self._ttl_ms,
            steady_ns=clock.steady_ns,
            on_claim=self.controller.set_claim,
        )
        self.controller.may_decide = self._active.may_decide
        self.controller.hint = self._hint
        self.controller.on_exit = self._report_exit
        self._reports: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _ttl_ms(self) -> int:
        """Time to live of the claim: several register rounds, shorter than the brokers' lease."""
        return max(100, self._config.controller_lease_ms * 3 // 5)

    def _resolve_again(self) -> None:
        for peer in self._peers:
            peer.resolve_again()

    def methods(self) -> list[Method]:
        acceptor = AcceptorService(self._acceptor, self._links)
        service = ControllerService(self.controller, self._links, self._config.peers())
        return [*service.methods(), *acceptor.methods()]

    def open(self) -> None:
        self._acceptor.open()

    async def start(self, address: str) -> None:
        config = self._config
        timeout_s = max(_PEER_TIMEOUT_MIN_S, self._ttl_ms / 3_000)
        self._peers = [PeerAcceptor(peer, self._links, timeout_s) for peer in config.peers()]
        self._register.acceptors = [OwnAcceptor(self._acceptor), *self._peers]
        self._register.duplicates.on_duplicate = self._resolve_again
        await self.controller.start(_public_address(address))
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(recover(self._acceptor, self._peers, self._register.duplicates)),
            loop.create_task(self._watch_states()),
        ]
        self._active.start(_public_address(address))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._reports, return_exceptions=True)
        await self._active.stop()
        await self.controller.stop()
        await self._register.stop()
        for peer in self._peers:
            await peer.close()
        await self._acceptor.close()

    def _report_exit(self, request: v1.ProcessExitedRequest) -> None:
        """Report the exit of a broker on this host to the other nameservers."""
        for peer in self._peers:
            task = asyncio.get_running_loop().create_task(peer.process_exited(request))
            self._reports.add(task)
            task.add_done_callback(self._reports.discard)

    async def _watch_states(self) -> None:
        """While another nameserver is active, adopt its decisions once a majority is seen to hold
        them."""
        shown: dict[str, Ballot] = {}
        while True:
            await asyncio.sleep(self._ttl_ms / 3_000)
            if self.controller.active:
                shown.clear()
                continue
            for name in self._acceptor.names:
                state = self._acceptor.peek(name)
                if not (state.value and name.startswith(GROUP_PREFIX)):
                    continue
                if state.accepted == shown.get(name):
                    continue
                if await self._is_held(name, state):
                    shown[name] = state.accepted
                    with suppress(ValueError):
                        self.controller.adopt(decode_state(state.value))

    async def _is_held(self, name: str, state: AcceptorState) -> bool:
        heard = await call_each_once(
            self._peers,
            lambda peer: peer.peek(name),
            self._register.duplicates,
            self._acceptor.acceptor_id,
        )
        same = [vote for vote in heard if vote.state.accepted == state.accepted]
        return len(same) + 1 > (len(self._peers) + 1) // 2

    def _hint(self) -> str:
        holder = self._active.holder
        return f": {holder} is active" if holder else ""


def _public_address(address: str) -> str:
    """Return an address that is valid elsewhere too: no wildcard."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "[::]") else address
