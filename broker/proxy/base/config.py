"""Proxy settings: the only place of name, type, default, unit and help. Keys are the broker's where
possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ....nodes.addresses import check_host, host_port
from ....nodes.cluster_token import check_cluster_token
from ...base.config import split_addresses

_MAX_PORT = 65_535


def _setting(default: Any, help_text: str, **more: str) -> Any:
    return field(default=default, metadata={"help": help_text, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Settings of `proxy.conf`."""

    grpc_server_port: int = _setting(8081, "Port for clients; 0: chosen by the OS.")
    remoting_listen_port: int = _setting(
        0,
        "Port of the remoting protocol for classic clients (4.x), which use it as nameserver and "
        "as broker; 0: off; -1: chosen by the OS; the value of grpcServerPort: one port for both "
        "protocols. With tlsCertificate it speaks TLS, and plaintext unless tlsMode=enforcing.",
    )
    remoting_advertise: str = _setting(
        "",
        "HOST:PORT that routes of classic clients name for every broker, if NAT or a container "
        "maps remotingListenPort, or several proxies share a name. Empty: the address at which the "
        "client's connection has reached this proxy.",
    )
    remoting_namesrv_addr: str = _setting(
        "",
        "Remoting ports of the nameservers, HOST:PORT separated by semicolons; they answer classic "
        "clients' requests for routes. Empty: those of namesrvAddr (one port for both protocols).",
    )
    bind_address: str = _setting("0.0.0.0", "Address that the proxy listens on.")
    metrics_prom_exporter_port: int = _setting(
        5557, "Port of /metrics, /livez and /readyz; 0: chosen by the OS."
    )
    metrics_bearer_token_file: str = _setting(
        "",
        "File with the token that a scrape of /metrics needs (Authorization: Bearer TOKEN): mode "
        "0600, at least 16 bytes, read at start. /livez and /readyz stay open. Empty: no token.",
    )
    namesrv_addr: str = _setting(
        "", "Nameservers, HOST:PORT separated by semicolons; they report the leaders."
    )
    cluster_token: str = _setting(
        "", "Token for calls to nameservers; empty if they run on this machine.", secret="yes"
    )
    authentication_enabled: bool = _setting(
        False,
        "The brokers check signatures: answer heartbeats and terminations only after one of them "
        "has accepted the call.",
    )
    allow_anonymous: bool = _setting(
        False,
        "Serve addresses other than loopback although authenticationEnabled is off: everyone who "
        "reaches the ports may read and change everything.",
    )
    advertise: str = _setting(
        "echo",
        "Endpoint in the routes of every group: echo (the address that the client dialled), or "
        "a list HOST:PORT,... (for example of several proxies).",
    )
    proxy_poll_interval: int = _setting(
        1_000, "Interval of requests to each nameserver.", unit="ms"
    )
    max_clients: int = _setting(100_000, "Maximum number of clients with a telemetry stream.")
    channel_expired_timeout: int = _setting(
        120_000, "A client without a request for this long is removed.", unit="ms"
    )

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid value."""
        check_host("bindAddress", self.bind_address)
        check_cluster_token(self.cluster_token)
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
        self._check_remoting()
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

    def _check_remoting(self) -> None:
        """Raise ValueError for invalid settings of classic clients."""
        if 0 < self.remoting_listen_port == self.metrics_prom_exporter_port:
            raise ValueError(
                "remotingListenPort and metricsPromExporterPort are both "
                f"{self.remoting_listen_port}."
            )
        split_addresses(self.remoting_namesrv_addr)
        if len(split_addresses(self.remoting_advertise)) > 1:
            raise ValueError(
                "remotingAdvertise names several addresses, but classic clients take one for each "
                "broker: use HOST:PORT."
            )

    def remoting_advertised(self) -> str:
        """Return the address in routes of classic clients; empty: that of the connection."""
        if not self.remoting_advertise:
            return ""
        return host_port(*split_addresses(self.remoting_advertise)[0])

    def remoting_namesrv_addresses(self) -> list[str]:
        """Return the addresses of the nameservers for classic clients, as HOST:PORT."""
        listed = split_addresses(self.remoting_namesrv_addr) or self.namesrv_addresses()
        return [host_port(host, port) for host, port in listed]

    def namesrv_addresses(self) -> list[tuple[str, int]]:
        """Return the nameserver addresses."""
        return split_addresses(self.namesrv_addr)

    def advertise_list(self) -> list[tuple[str, int]]:
        """Return the addresses listed in `advertise`; empty for `echo`."""
        return [] if self.advertise == "echo" else split_addresses(self.advertise)
