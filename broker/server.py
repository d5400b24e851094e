"""A broker process: one life of the broker after another, on the same directory and ports.

A role changes inside a life (`role.py`). What changes bytes that the log already has (a tail that diverged
is cut, a replica begins anew) happens between two lives: the broker closes everything, and the next life does
what was planned before it opens the store (`ha/rejoin/pending.py`; HA, R6). Promises: settings that contradict
each other are refused before anything is opened; a stop waits for a change of lives that is under way; a
life that cannot begin again ends the process, because nobody would serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..front.access_point import AccessPoint
from ..front.clock import Clock
from ..front.config import DoorConfig
from ..front.errors import PortInUseError
from ..ha.config import HaConfig
from ..ha.errors import HaPortInUseError
from ..store.config.store_config import StoreConfig
from .config import BrokerConfig
from .lifecycle import Bound, BrokerLifecycle, Ends
from .node import Node
from .settings import check_settings

__all__ = ["Bound", "BrokerServer"]

log = logging.getLogger(__name__)

# What is in flight at a replica that must change its log is other replicas' work: it may be cut short.
_REOPEN_GRACE_S = 0.5
# The kernel may hold a port for a moment after its server has gone.
_PORT_TRIES = 20
_PORT_PAUSE_S = 0.1


class BrokerServer:
    """Made anywhere; started and stopped once, on one event loop."""

    def __init__(
        self,
        broker: BrokerConfig,
        store: StoreConfig,
        ha: HaConfig,
        door: DoorConfig,
        clock: Clock | None = None,
        *,
        origins: Mapping[str, str] | None = None,
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        """`origins` tells where each key's value came from; `on_fatal` is called, with a sentence, when
        the process must end. Raises ValueError."""
        check_settings(broker, ha)
        self._broker = broker
        self._store = store
        self._ha = ha
        self._door = door
        self._clock = clock or Clock()
        self._origins = origins or {}
        self._on_fatal = on_fatal
        self._life: BrokerLifecycle | None = None
        self._changing: asyncio.Task[None] | None = None
        self._reopen_due = False
        """Asked for by the life that is there now, or that begins."""
        self._stopping = False
        self.lives = 0
        """Begun so far."""

    async def start(self) -> Bound:
        """Recover, open everything, register. Raises StoreError, DoorError, HaError, ValueError."""
        try:
            return await self._begin()
        except BaseException:
            self._stopping = True  # nothing is left that a next life could take over
            raise

    async def stop(self, grace_s: float) -> None:
        """Finish what is in flight, flush and close."""
        self._stopping = True
        if self._changing is not None:
            await asyncio.wait((self._changing,))
        if self._life is not None:
            await self._life.stop(grace_s)

    @property
    def node(self) -> Node:
        """The parts of the present life, for tests and benchmarks in the same process."""
        return self.life.node

    @property
    def access(self) -> AccessPoint:
        """The access point of the present life."""
        return self.life.access

    @property
    def life(self) -> BrokerLifecycle:
        """The present one."""
        assert self._life is not None, "the broker is not started, or between two lives"
        return self._life

    @property
    def alive(self) -> bool:
        """False before the start and between two lives."""
        return self._life is not None

    async def _begin(self) -> Bound:
        life = BrokerLifecycle(
            self._broker,
            self._store,
            self._ha,
            self._door,
            self._clock,
            origins=self._origins,
            ends=Ends(self._reopen, self._fatal),
        )
        bound = await life.start()
        self._life = life
        self.lives += 1
        # The next life takes the same ports, whoever chose them.
        self._broker = replace(
            self._broker,
            grpc_server_port=_port(bound.client),
            metrics_prom_exporter_port=_port(bound.metrics),
        )
        self._ha = replace(self._ha, ha_listen_port=_port(bound.ha))
        return bound

    def _reopen(self, reason: str) -> None:
        """The log must be changed: end this life and begin the next."""
        if self._stopping:
            return
        log.warning("broker.reopens name=%s reason=%s", self._broker.broker_name, reason)
        self._reopen_due = True
        if self._changing is None:
            self._changing = asyncio.get_running_loop().create_task(self._change())

    async def _change(self) -> None:
        try:
            # In a turn of its own: whoever asked for it is a part of the life that ends. One that is
            # still starting is waited for.
            await asyncio.sleep(0)
            while self._life is None and not self._stopping:  # noqa: ASYNC110 - its start ends soon
                await asyncio.sleep(_PORT_PAUSE_S)
            while self._reopen_due and self._life is not None:
                await self._end_life()
                # What the life that ended asked for is being done; the next may ask before it serves.
                self._reopen_due = False
                if not self._stopping:
                    await self._begin_again()
        except Exception as error:
            log.exception("broker.not_reopened")
            self._fatal(f"the broker could not open its store again: {error}")
        finally:
            self._changing = None

    async def _end_life(self) -> None:
        """Nothing refers to it afterwards: the next one's start collects what it leaves behind."""
        life, self._life = self._life, None
        assert life is not None
        await life.stop(_REOPEN_GRACE_S)

    async def _begin_again(self) -> None:
        for left in reversed(range(_PORT_TRIES)):
            try:
                await self._begin()
                return
            except (PortInUseError, HaPortInUseError):
                if not left:
                    raise
            await asyncio.sleep(_PORT_PAUSE_S)

    def _fatal(self, reason: str) -> None:
        log.error("broker.fatal name=%s reason=%s", self._broker.broker_name, reason)
        if self._on_fatal is not None:
            self._on_fatal(reason)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
