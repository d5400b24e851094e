"""Checks across configuration classes, and the list that `config show` prints.

A contradiction raises ValueError before anything is opened; secrets are never listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from ..ha.config import HaConfig
from .config import BrokerConfig

_SECRET_WORDS = ("token", "password", "secret")
_HIDDEN = "(hidden)"


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
    ports = {
        "grpcServerPort": broker.grpc_server_port,
        "remotingListenPort": max(broker.remoting_listen_port, 0),
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


def key_of(field: Field[Any]) -> str:
    """Return the key of a field in `broker.conf`."""
    if "key" in field.metadata:
        return str(field.metadata["key"])
    head, *rest = field.name.split("_")
    return "".join([head, *(part.capitalize() for part in rest)])


def entries(
    configurations: Iterable[Any], origins: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return every key with its value and origin."""
    found: dict[str, tuple[str, str]] = {}
    for configuration in configurations:
        for field in fields(configuration):
            key = key_of(field)
            value = getattr(configuration, field.name)
            default = "default" if value == field.default else "set"
            hidden = "secret" in field.metadata
            if hidden or key.lower().endswith(_SECRET_WORDS):
                value = _HIDDEN if value else ""
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found[key] = (text, origins.get(key, default))
    return found
