"""Stand-in: serves the ports of a broker while it reopens its store between two instances.

It is a proxy on the broker's own ports (`broker/proxy/`): every request is forwarded to its owner,
and sends are held while there is none. So a replica that cuts its diverged tail after a partition
has healed, or copies everything again, keeps its clients. It closes just before the next instance
listens.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..front.errors import DoorError
from .proxy.base.config import ProxyConfig
from .proxy.server import ProxyServer

if TYPE_CHECKING:
    from ..front.clock import Clock
    from ..front.config import DoorConfig
    from ..nodes.node_links import NodeLinks
    from .base.config import BrokerConfig

logger = logging.getLogger(__name__)

# Forwarded calls in flight when the next instance is ready: clients repeat those that are cut off.
_GRACE_S = 0.5


class StandIn:
    """One proxy on the ports of a broker; without nameservers there is none."""

    def __init__(
        self, broker: BrokerConfig, links: NodeLinks, door: DoorConfig, clock: Clock
    ) -> None:
        self._proxy: ProxyServer | None = None
        self._broker = broker
        self._links = links
        self._door = door
        self._clock = clock

    async def open(self) -> None:
        """Listen. A port that is not free yet leaves the broker unreachable for this time."""
        broker = self._broker
        if not broker.namesrv_addr:
            return
        config = ProxyConfig(
            grpc_server_port=broker.grpc_server_port,
            bind_address=broker.bind_address,
            metrics_prom_exporter_port=broker.metrics_prom_exporter_port,
            metrics_bearer_token_file=broker.metrics_bearer_token_file,
            namesrv_addr=broker.namesrv_addr,
            authentication_enabled=broker.authentication_enabled,
            max_clients=broker.max_clients,
            channel_expired_timeout=broker.channel_expired_timeout,
        )
        proxy = ProxyServer(config, self._door, self._clock, links=self._links)
        try:
            await proxy.start()
        except (DoorError, OSError, ValueError) as error:
            logger.warning("stand_in.not_opened error=%s", error)
            return
        self._proxy = proxy

    async def close(self) -> None:
        """Release the ports; a second call does nothing."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.stop(_GRACE_S)
