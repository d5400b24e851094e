"""Settings of the nameserver, under RocketMQ's key names where they exist.

Heartbeat and expiry differ from RocketMQ: a silent failure is detected after 10 s, not after two
minutes (docs/formats/ha.md, section 1.5).
"""

from dataclasses import dataclass, field
from typing import Any

from ..nodes.addresses import check_host
from ..nodes.cluster_token import check_cluster_token

_MAX_PORT = 65_535


def _setting(default: Any, help_text: str, **more: str) -> Any:
    return field(default=default, metadata={"help": help_text, **more})


@dataclass(frozen=True, slots=True)
class NameserverConfig:
    """The settings of `namesrv.conf`."""

    bind_address: str = _setting("0.0.0.0", "Address that the nameserver listens on.")
    listen_port: int = _setting(9876, "Port for brokers and clients; 0 lets the system choose one.")
    namesrv_metrics_port: int = _setting(
        -1, "Port of /metrics, /livez and /readyz; -1: none, 0: chosen by the OS."
    )
    metrics_bearer_token_file: str = _setting(
        "",
        "File with the token that a scrape of /metrics needs (Authorization: Bearer TOKEN): mode "
        "0600, at least 16 bytes, read at start. /livez and /readyz stay open. Empty: no token.",
    )
    remoting_listen_port: int = _setting(
        0,
        "Port of the remoting protocol for classic clients (4.x) and mqadmin: routes; 0: off; "
        "-1: chosen by the OS; the value of listenPort: one port for both protocols. With "
        "tlsCertificate it speaks TLS, and plaintext unless tlsMode=enforcing. With "
        "authenticationEnabled it only answers routes.",
    )
    order_message_enable: bool = _setting(
        False,
        "Put the ordered queues that tools store (key-value namespace ORDER_TOPIC_CONFIG) into the "
        "routes of classic clients.",
    )
    cluster_token: str = _setting(
        "",
        "Secret that brokers must present to register; empty: only brokers on this machine.",
        secret="yes",
    )
    authentication_enabled: bool = _setting(
        False,
        "The cluster checks signatures: refuse the route queries of clients, because a nameserver "
        "has no users. Clients connect to a broker or a proxy.",
    )
    allow_anonymous: bool = _setting(
        False,
        "Serve addresses other than loopback although authenticationEnabled is off: everyone who "
        "reaches the ports may read and change everything.",
    )
    broker_not_active_timeout: int = _setting(
        10_000, "A replica without a heartbeat for this long counts as dead.", unit="ms"
    )
    scan_not_active_broker_interval: int = _setting(
        1_000, "Interval of the check for dead replicas.", unit="ms"
    )
    dead_member_retention: int = _setting(
        24 * 3_600_000,
        "Time for which a dead replica stays in the routes, so that clients' alternatives "
        "do not change.",
        unit="ms",
    )
    wait_for_known_groups: int = _setting(
        10_000,
        "After a start, requests for unknown topics wait until every group known from the last "
        "run has registered, but not longer than this; then the answer names the groups that are "
        "not up (`cometmq cluster forget` removes one that is gone for good).",
        unit="ms",
    )
    namesrv_data_dir: str = _setting(
        "",
        "Directory for the names of known groups, the in-sync sets of static groups and, with "
        "controller=true, the groups' states; empty: nothing is stored, and after a restart a "
        "topic of a group that is not up is answered as not existing.",
    )
    controller: bool = _setting(
        False,
        "This nameserver elects the leaders of groups with enableControllerMode=true; true "
        "on exactly one nameserver, or on all of those in controllerPeers.",
    )
    controller_peers: str = _setting(
        "",
        "host:port of the other nameservers with controller=true, separated by commas: two, "
        "so that three keep the groups' states together and any one may fail; empty: a "
        "single controller.",
    )
    controller_lease_ms: int = _setting(
        2_500,
        "A leader may write for this long after a heartbeat that the controller answered; "
        "after the same silence another leader is elected. Use the same value on all "
        "brokers and nameservers.",
        unit="ms",
    )
    controller_beat_interval_ms: int = _setting(
        250,
        "Heartbeat interval of brokers to the controller; use the same value on the brokers.",
        unit="ms",
    )

    watch_local_brokers: bool = _setting(
        True,
        "Watch the processes of brokers on this host (Linux) and report their exits to all "
        "controllers, so that an election does not wait for the lease.",
    )

    def __post_init__(self) -> None:
        """Raise ValueError for invalid settings."""
        check_host("bindAddress", self.bind_address)
        check_cluster_token(self.cluster_token)
        if not 0 <= self.listen_port <= _MAX_PORT:
            raise ValueError(
                f"listenPort is {self.listen_port}, but must be between 0 and {_MAX_PORT}."
            )
        if not -1 <= self.namesrv_metrics_port <= _MAX_PORT:
            raise ValueError(
                f"namesrvMetricsPort is {self.namesrv_metrics_port}, but must be between -1 and "
                f"{_MAX_PORT}."
            )
        if self.scan_not_active_broker_interval < 10:
            raise ValueError("scanNotActiveBrokerInterval must be at least 10 ms.")
        if self.broker_not_active_timeout < 2_000:
            raise ValueError(
                "brokerNotActiveTimeout must be at least 2000 ms: brokers send a heartbeat "
                "every second."
            )
        if self.dead_member_retention < self.broker_not_active_timeout:
            raise ValueError("deadMemberRetention must not be shorter than brokerNotActiveTimeout.")
        if self.wait_for_known_groups < 0:
            raise ValueError("waitForKnownGroups must not be negative.")
        self._check_controller()

    def _check_controller(self) -> None:
        if self.controller_beat_interval_ms < 10:
            raise ValueError("controllerBeatIntervalMs must be at least 10 ms.")
        if self.controller_lease_ms < 3 * self.controller_beat_interval_ms:
            raise ValueError(
                f"controllerLeaseMs={self.controller_lease_ms} must be at least 3 times"
                f" controllerBeatIntervalMs={self.controller_beat_interval_ms}."
            )
        if self.controller and not self.namesrv_data_dir:
            raise ValueError("controller=true needs namesrvDataDir to store the groups' states.")
        if self.controller_peers and not self.controller:
            raise ValueError("controllerPeers is set, but controller is not true.")
        peers = self.peers()
        for peer in peers:
            host, _, port = peer.rpartition(":")
            if not (host and port.isdigit() and 0 < int(port) <= _MAX_PORT):
                raise ValueError(f"controllerPeers: '{peer}' is not an address, HOST:PORT.")
        if len(set(peers)) != len(peers) or len(peers) not in (0, 2, 4):
            raise ValueError(
                f"controllerPeers has {len(peers)} addresses, but needs two (or four) "
                "different other nameservers, so that a majority remains when one fails."
            )

    def peers(self) -> list[str]:
        """The other nameservers of a replicated controller."""
        parts = self.controller_peers.replace(";", ",").split(",")
        return [part.strip() for part in parts if part.strip()]
