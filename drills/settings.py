"""Configuration of a drill's processes: default ports, test timers, and own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .pace import paced_ms

CLUSTER, GROUP = "Drill", "broker-a"
NAMESRV_PORT, CLIENT_PORT, HA_PORT, METRICS_PORT = 9876, 8081, 10912, 5557
SEGMENT = 1 << 20
USUAL_LEASE_MS = 600
LEASE_MS = paced_ms(USUAL_LEASE_MS)
#: docs/formats/ha.md, section 6.10, on a machine of usual speed.
_TIMERS_MS = {
    "controllerBeatIntervalMs": 100,
    "haBeatIntervalMs": 100,
    "slaveTimeout": 1000,
    "haInSyncLagMs": 1200,
    "haReconnectMinMs": 20,
    "haReconnectMaxMs": 200,
    "haRefusedRetryMs": 300,
    "registerBrokerPeriod": 200,
}
TEST_PROFILE = {
    "controllerLeaseMs": str(LEASE_MS),
    **{key: str(paced_ms(usual_ms)) for key, usual_ms in _TIMERS_MS.items()},
}


@dataclass(frozen=True, slots=True)
class Setup:
    """The initial setup of a drill."""

    brokers: int = 2
    nameservers: int = 1
    sync: bool = True
    sync_flush: bool = False
    min_in_sync: int = 1
    controller: bool = True
    segment: int = SEGMENT
    conf: Mapping[str, str] = field(default_factory=dict)  # of every broker
    namesrv_conf: Mapping[str, str] = field(default_factory=dict)
    default_timers: bool = False  # the defaults of the product
    report_exits: bool = (
        True  # report a killed broker's exit to the controller, as a supervisor does
    )
    watch_exits: bool = False  # the nameservers watch the brokers' processes
    shadows: bool = True  # brokers keep copies of flushed data, for simulated power losses
    first_brokers: int = 0  # number of brokers to start first; 0: all
    env: Mapping[str, str] = field(default_factory=dict)  # of every node's process, at first

    def with_mode(self, mode: str) -> Setup:
        """Return a copy in `sync` or `async` mode."""
        sync = mode != "async"
        return replace(self, sync=sync, min_in_sync=self.min_in_sync if sync else 1)


def broker_conf(
    setup: Setup, number: int, addresses: tuple[str, str], folder: Path, namesrv: str
) -> dict[str, str]:
    """Return broker.conf; `addresses` are the public and the private one."""
    role = "SYNC_MASTER" if setup.sync else "ASYNC_MASTER"
    if not setup.controller and number > 0:
        role = "SLAVE"
    return {
        "brokerClusterName": CLUSTER,
        "brokerName": GROUP,
        "brokerId": str(number),
        "brokerRole": role,
        "flushDiskType": "SYNC_FLUSH" if setup.sync_flush else "ASYNC_FLUSH",
        "minInSyncReplicas": str(setup.min_in_sync if setup.sync else 1),
        "brokerIP1": addresses[0],
        "bindAddress": addresses[1],
        "allowAnonymous": "true",
        "grpcServerPort": str(CLIENT_PORT),
        "haListenPort": str(HA_PORT),
        "metricsPromExporterPort": str(METRICS_PORT),
        "namesrvAddr": namesrv,
        "storePathRootDir": str(folder / "store"),
        "mappedFileSizeCommitLog": str(setup.segment),
        "testHooks": "true",
        "enableControllerMode": "true" if setup.controller else "false",
        **({} if setup.default_timers else TEST_PROFILE),
        **setup.conf,
    }


def namesrv_conf(setup: Setup, private: str, folder: Path, others: list[str]) -> dict[str, str]:
    """Return namesrv.conf; `others` are the other controllers."""
    timers = {} if setup.default_timers else TEST_PROFILE
    found = {
        "bindAddress": private,
        "allowAnonymous": "true",
        "listenPort": str(NAMESRV_PORT),
        "namesrvDataDir": str(folder / "data"),
        "waitForKnownGroups": "2000",
        **{key: value for key, value in timers.items() if key.startswith("controller")},
        "watchLocalBrokers": "true" if setup.watch_exits else "false",
        **setup.namesrv_conf,
    }
    if setup.controller:
        found["controller"] = "true"
        if others:
            found["controllerPeers"] = ",".join(others)
    return found
