"""Settings of the nameserver, under RocketMQ's own key names where it has them.

Beat and expiry are ours: a silent death is seen after 10 s, not after two minutes (HA note, 1.5).
"""

from dataclasses import dataclass, field
from typing import Any

_MAX_PORT = 65_535


def _setting(default: Any, text: str, **more: str) -> Any:
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True)
class NameserverConfig:
    """What `namesrv.conf` may say."""

    bind_address: str = _setting("0.0.0.0", "Address that the nameserver listens on.")
    listen_port: int = _setting(9876, "Port for brokers and clients; 0 lets the system choose one.")
    cluster_token: str = _setting(
        "",
        "Secret that brokers must show to register; empty: brokers on this machine only.",
        secret="yes",
    )
    broker_not_active_timeout: int = _setting(
        10_000, "A replica that has not beaten for this long counts as dead.", unit="ms"
    )
    scan_not_active_broker_interval: int = _setting(
        1_000, "How often dead replicas are looked for.", unit="ms"
    )
    dead_member_retention: int = _setting(
        24 * 3_600_000,
        "How long a dead replica stays in the routes, so that clients' alternatives stay the same.",
        unit="ms",
    )
    wait_for_known_groups: int = _setting(
        10_000,
        "After a start, unknown topics are answered 'not ready' until every group known from the"
        " last run is back, but not longer than this.",
        unit="ms",
    )
    namesrv_data_dir: str = _setting(
        "",
        "Directory that remembers the names of known groups, and with controller=true the groups'"
        " states; empty: nothing is remembered.",
    )
    controller: bool = _setting(
        False,
        "This nameserver decides who leads the groups of brokers with enableControllerMode=true;"
        " true on exactly one nameserver, or on all of those that controllerPeers names.",
    )
    controller_peers: str = _setting(
        "",
        "host:port of the other nameservers with controller=true, separated by commas: two of them,"
        " so that three keep the groups' states together and any one may fail; empty: this one"
        " decides alone.",
    )
    controller_lease_ms: int = _setting(
        5_000,
        "A leader may write so long after a beat that the controller answered; after as much silence"
        " another one is elected. The same on all brokers and nameservers.",
        unit="ms",
    )
    controller_beat_interval_ms: int = _setting(
        1_000, "How often brokers beat to the controller; the same as theirs.", unit="ms"
    )

    def __post_init__(self) -> None:
        """Refuse values that cannot work, with a sentence."""
        if not 0 <= self.listen_port <= _MAX_PORT:
            raise ValueError(
                f"listenPort is {self.listen_port}, but a port lies between 0 and {_MAX_PORT}."
            )
        if self.scan_not_active_broker_interval < 10:
            raise ValueError("scanNotActiveBrokerInterval must be at least 10 ms.")
        if self.broker_not_active_timeout < 2_000:
            raise ValueError(
                "brokerNotActiveTimeout must be at least 2000 ms: brokers beat once a second."
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
            raise ValueError("controller=true needs namesrvDataDir: groups' states must be kept.")
        if self.controller_peers and not self.controller:
            raise ValueError("controllerPeers is set, but controller is not true.")
        peers = self.peers()
        for peer in peers:
            host, _, port = peer.rpartition(":")
            if not (host and port.isdigit() and 0 < int(port) <= _MAX_PORT):
                raise ValueError(f"controllerPeers: '{peer}' is not an address, HOST:PORT.")
        if len(set(peers)) != len(peers) or len(peers) not in (0, 2, 4):
            raise ValueError(
                f"controllerPeers names {len(peers)} other nameservers: it must be two (or four)"
                " different ones, so that a majority exists when one fails."
            )

    def peers(self) -> list[str]:
        """The other nameservers that decide together with this one."""
        parts = self.controller_peers.replace(";", ",").split(",")
        return [part.strip() for part in parts if part.strip()]
