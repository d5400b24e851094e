"""A broker process: one broker instance after another, on the same directory and ports.

A role changes within an instance (`role.py`). Work that changes bytes which the log already holds
(truncating a diverged tail, reseeding) runs between two instances: the broker closes everything,
and the next instance runs the planned work before it opens the store (`ha/rejoin/pending.py`;
docs/formats/ha.md, rule R6). Meanwhile a stand-in on the same ports forwards (`stand_in.py`).
Promises: contradictory settings are refused before anything is opened; a stop waits for a change of
instances; an instance that cannot be opened again ends the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..front.access_point import AccessPoint
from ..front.clock import Clock
from ..front.config import DoorConfig
from ..front.door import check_certificates
from ..front.errors import PortInUseError
from ..ha.config import HaConfig
from ..ha.errors import HaPortInUseError
from ..nodes.addresses import host_port
from ..nodes.node_links import NodeLinks
from ..nodes.setting_keys import key_of
from ..nodes.tls_config import TlsConfig
from ..remoting.ports import check_remoting
from ..store.config.store_config import StoreConfig
from .admin.live_settings import RUN_TIME
from .assembly.parts import Broker
from .base.config import BrokerConfig
from .lifecycle import Bound, BrokerLifecycle, InstanceCallbacks
from .settings import check_settings

if TYPE_CHECKING:
    from .stand_in import StandIn


logger = logging.getLogger(__name__)

# Calls in flight at a replica that must change its log may be cut short: others serve them.
_REOPEN_GRACE_S = 0.5
# The kernel may hold a port for a moment after its server has closed.
_PORT_TRIES = 20
_PORT_PAUSE_S = 0.1


class BrokerServer:
    """Starts and stops once, on one event loop."""

    def __init__(
        self,
        broker: BrokerConfig,
        store: StoreConfig,
        ha: HaConfig,
        door: DoorConfig,
        clock: Clock | None = None,
        *,
        tls: TlsConfig | None = None,
        origins: Mapping[str, str] | None = None,
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        """Raises ValueError for contradictory settings.

        `origins` maps configuration keys to the source of their values; `on_fatal` is called with a
        reason when the process must end.
        """
        check_settings(broker, ha)
        check_remoting(broker.remoting_listen_port)
        self._links = NodeLinks(ha.cluster_token, tls)
        check_certificates(door, self._links)
        named = [host_port(host, port) for host, port in broker.namesrv_addresses()]
        self._links.check_addresses([*named, *filter(None, (ha.ha_master_address,))])
        self._broker = broker
        self._store = store
        self._ha = ha
        self._door = door
        self._clock = clock or Clock()
        self._origins = origins or {}
        self._on_fatal = on_fatal
        self._instance: BrokerLifecycle | None = None
        self._changing: asyncio.Task[None] | None = None
        #: Serves the ports between two instances.
        self._stand_in: StandIn | None = None
        #: Requested by the current or the starting instance.
        self._reopen_due = False
        self._stopping = False
        #: Number of instances started.
        self.instances = 0

    async def start(self) -> Bound:
        """Recover, open everything, register. Raises StoreError, DoorError, HaError, ValueError."""
        try:
            return await self._start_instance()
        except BaseException:
            self._stopping = True  # there is no instance to reopen
            raise

    async def stop(self, grace_s: float) -> None:
        """Finish calls in flight within `grace_s`, flush and close."""
        self._stopping = True
        if self._changing is not None:
            await asyncio.wait((self._changing,))
        if self._instance is not None:
            await self._instance.stop(grace_s)

    @property
    def broker(self) -> Broker:
        """The parts of the current instance, for tests and benchmarks in the same process."""
        return self.instance.broker

    @property
    def access(self) -> AccessPoint:
        """The access point of the current instance."""
        return self.instance.access

    @property
    def instance(self) -> BrokerLifecycle:
        """The current instance."""
        assert self._instance is not None, "the broker is not started, or between two instances"
        return self._instance

    @property
    def alive(self) -> bool:
        """False before the start and between two instances."""
        return self._instance is not None

    async def _start_instance(self) -> Bound:
        instance = BrokerLifecycle(
            self._broker,
            self._store,
            self._ha,
            self._door,
            self._clock,
            links=self._links,
            origins=self._origins,
            callbacks=InstanceCallbacks(
                self._reopen, self._fatal, self._release_ports, self._keep_settings
            ),
        )
        bound = await instance.start()
        self._instance = instance
        self.instances += 1
        # The next instance takes the same ports, also those that the kernel chose.
        self._broker = replace(
            self._broker,
            grpc_server_port=_port(bound.client),
            metrics_prom_exporter_port=_port(bound.metrics),
            remoting_listen_port=_port(bound.remoting) if bound.remoting else 0,
        )
        self._ha = replace(self._ha, ha_listen_port=_port(bound.ha))
        return bound

    def _keep_settings(self, config: Any, values: Mapping[str, Any]) -> None:
        """Keep settings that were changed at run time for further instances."""
        if isinstance(config, BrokerConfig):
            self._broker = replace(self._broker, **values)
        else:
            self._store = replace(self._store, **values)
        keys = {field.name: key_of(field) for field in fields(config)}
        self._origins = {**self._origins, **{keys[name]: RUN_TIME for name in values}}

    def _reopen(self, reason: str) -> None:
        """Replace this instance by another, because the log must be changed."""
        if self._stopping:
            return
        logger.warning("broker.reopens name=%s reason=%s", self._broker.broker_name, reason)
        self._reopen_due = True
        if self._changing is None:
            self._changing = asyncio.get_running_loop().create_task(self._change())

    async def _change(self) -> None:
        try:
            # In a turn of its own: the caller belongs to the instance that ends. An instance that
            # is still starting is awaited.
            await asyncio.sleep(0)
            while self._instance is None and not self._stopping:  # noqa: ASYNC110 - its start ends soon
                await asyncio.sleep(_PORT_PAUSE_S)
            while self._reopen_due and self._instance is not None:
                await self._stop_instance()
                # This request is served; the next instance may make another before it serves.
                self._reopen_due = False
                if not self._stopping:
                    await self._stand_between()
                    await self._restart()
        except Exception as error:
            logger.exception("broker.not_reopened")
            self._fatal(f"the broker could not open its store again: {error}")
        finally:
            await self._release_ports()
            self._changing = None

    async def _stand_between(self) -> None:
        from .stand_in import StandIn  # with all of the proxy

        self._stand_in = StandIn(self._broker, self._links, self._door, self._clock)
        await self._stand_in.open()

    async def _release_ports(self) -> None:
        stand_in, self._stand_in = self._stand_in, None
        if stand_in is not None:
            await stand_in.close()

    async def _stop_instance(self) -> None:
        """Drop all references to it, so that the next start can collect its objects."""
        instance, self._instance = self._instance, None
        assert instance is not None
        await instance.stop(_REOPEN_GRACE_S)

    async def _restart(self) -> None:
        for left in reversed(range(_PORT_TRIES)):
            try:
                await self._start_instance()
                return
            except (PortInUseError, HaPortInUseError):
                if not left:
                    raise
            await asyncio.sleep(_PORT_PAUSE_S)

    def _fatal(self, reason: str) -> None:
        logger.error("broker.fatal name=%s reason=%s", self._broker.broker_name, reason)
        if self._on_fatal is not None:
            self._on_fatal(reason)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
