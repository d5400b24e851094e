"""Checks across configuration classes.

A contradiction raises ValueError before anything is opened.
"""

from __future__ import annotations

from ..ha.config import HaConfig
from ..remoting.ports import shares_port
from .base.config import BrokerConfig


def check_settings(broker: BrokerConfig, ha: HaConfig) -> None:
    """Raise ValueError for contradictory settings."""
    if ha.enable_controller_mode:
        if not broker.namesrv_addr:
            raise ValueError(
                "enableControllerMode=true needs a controller: set namesrvAddr to the nameservers "
                "that run with controller=true."
            )
    else:
        _check_static_role(broker, ha)
    grpc, remoting = broker.grpc_server_port, broker.remoting_listen_port
    ports = {
        "grpcServerPort": grpc,
        # The port of gRPC clients may serve classic ones, too.
        "remotingListenPort": 0 if shares_port(remoting, grpc) else max(remoting, 0),
        "metricsPromExporterPort": broker.metrics_prom_exporter_port,
        "haListenPort": ha.ha_listen_port,
    }
    taken: dict[int, str] = {}
    for key, port in ports.items():
        if port and port in taken:
            raise ValueError(f"{taken[port]} and {key} are both {port}: each needs its own port.")
        taken[port] = key


def _check_static_role(broker: BrokerConfig, ha: HaConfig) -> None:
    """Check that brokerId and brokerRole agree in a static group."""
    if broker.broker_id == 0 and not ha.is_leader:
        raise ValueError(
            "brokerRole=SLAVE needs a brokerId above 0: id 0 is the master. Set brokerId=1, or "
            "brokerRole to ASYNC_MASTER or SYNC_MASTER."
        )
    if broker.broker_id > 0 and ha.is_leader:
        raise ValueError(
            f"brokerId={broker.broker_id} is a slave's, but brokerRole={ha.broker_role}: set "
            "brokerRole=SLAVE, or brokerId=0."
        )
    if not ha.is_leader and not ha.ha_master_address and not broker.namesrv_addr:
        raise ValueError(
            "A slave must find its master: set namesrvAddr, or haMasterAddress to the master's "
            "haListenPort."
        )
