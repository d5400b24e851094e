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
        "", "Directory that remembers the names of known groups; empty: they are not remembered."
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
