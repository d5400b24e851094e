"""Settings of a proxy: the one place of name, type, default, unit and help. Keys are the broker's where it has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..config import split_addresses

_MAX_PORT = 65_535


def _setting(default: Any, help_text: str, **more: str) -> Any:
    return field(default=default, metadata={"help": help_text, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """What `proxy.conf` may say."""

    grpc_server_port: int = _setting(8081, "Port for clients; 0 lets the system choose one.")
    bind_address: str = _setting("0.0.0.0", "Address that the proxy listens on.")
    metrics_prom_exporter_port: int = _setting(
        5557, "Port of /metrics, /livez and /readyz; 0 lets the system choose one."
    )
    namesrv_addr: str = _setting(
        "", "Nameservers as HOST:PORT;HOST:PORT: the proxy learns from them who leads."
    )
    cluster_token: str = _setting(
        "", "Secret that the nameservers ask for; empty: they are on this machine.", secret="yes"
    )
    advertise: str = _setting(
        "echo",
        "Address that routes name for every group: echo, the one that the client dialled, or "
        "HOST:PORT,... said by hand (of proxies that share one name, say).",
    )
    proxy_poll_interval: int = _setting(
        1_000, "How often a nameserver is asked what has changed.", unit="ms"
    )
    max_clients: int = _setting(100_000, "Clients with a telemetry stream here; more are refused.")
    channel_expired_timeout: int = _setting(
        120_000, "A client that was silent for this long is forgotten.", unit="ms"
    )

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for key, port in (
            ("grpcServerPort", self.grpc_server_port),
            ("metricsPromExporterPort", self.metrics_prom_exporter_port),
        ):
            if not 0 <= port <= _MAX_PORT:
                raise ValueError(f"{key}={port} is not a port.")
        if self.grpc_server_port and self.grpc_server_port == self.metrics_prom_exporter_port:
            raise ValueError(
                f"grpcServerPort and metricsPromExporterPort are both {self.grpc_server_port}."
            )
        if not self.namesrv_addresses():
            raise ValueError("A proxy must find its brokers: set namesrvAddr to the nameservers.")
        if self.advertise != "echo" and not self.advertise_list():
            raise ValueError("advertise is empty: use echo, or HOST:PORT,...")
        for name, value in (
            ("proxyPollInterval", self.proxy_poll_interval),
            ("maxClients", self.max_clients),
            ("channelExpiredTimeout", self.channel_expired_timeout),
        ):
            if value <= 0:
                raise ValueError(f"{name}={value} must be above 0.")

    def namesrv_addresses(self) -> list[tuple[str, int]]:
        """The nameservers to ask."""
        return split_addresses(self.namesrv_addr)

    def advertise_list(self) -> list[tuple[str, int]]:
        """The addresses said by hand; empty for `echo`."""
        return [] if self.advertise == "echo" else split_addresses(self.advertise)
