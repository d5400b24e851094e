"""Replication settings and their defaults.

Settings of RocketMQ keep their names and meaning (`brokerRole`, `haListenPort`, `haMasterAddress`,
`slaveTimeout`, `minInSyncReplicas`, `haTransferBatchSize`). Contradictions are refused here, so
that `SYNC_MASTER` never silently means "asynchronous" (docs/formats/ha.md, section 6.10).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..nodes.cluster_token import check_cluster_token

BrokerRole = Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]

#: Headroom of a frame over its chunk: headers, a piece of offsets, protobuf encoding.
FRAME_OVERHEAD_BYTES = 64 * 1024
#: Limit of a frame for gRPC on both sides (docs/formats/ha.md, section 6.11).
MAX_FRAME_BYTES = 8 << 20
#: A stream without a frame for this many heartbeat intervals is dead (docs/formats/ha.md, section
#: 6.10).
DEAD_AFTER_HEARTBEATS = 3
#: A lease covers this many controller heartbeats: one may be lost and the next one late.
LEASE_HEARTBEATS = 3
#: Limit of followers per leader: each may hold a window of unacknowledged bytes in memory.
MAX_FOLLOWERS = 15


def _setting(default: Any, help_text: str, unit: str = "") -> Any:
    metadata = {"help": help_text}
    if unit:
        metadata["unit"] = unit
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class HaConfig:
    broker_role: BrokerRole = field(
        default="ASYNC_MASTER",
        metadata={
            "help": "ASYNC_MASTER answers after its own append, SYNC_MASTER waits for every "
            "in-sync replica, SLAVE follows a master"
        },
    )
    ha_listen_port: int = _setting(10912, "port of replication and control; 0 takes a free one")
    ha_master_address: str = _setting(
        "", "host:port of the master's replication port; empty: learned from the nameserver"
    )
    min_in_sync_replicas: int = _setting(
        1, "a SYNC_MASTER refuses writes while fewer replicas, itself included, are in sync"
    )
    slave_timeout: int = _setting(
        3000,
        "a synchronous send waits this long for the replicas, then its outcome is unknown",
        "ms",
    )
    ha_in_sync_lag_ms: int = _setting(
        5000, "a replica that has not caught up for this long leaves the in-sync set", "ms"
    )
    ha_transfer_batch_size: int = _setting(256 * 1024, "commit-log bytes in one chunk", "bytes")
    ha_window_size: int = _setting(
        8 << 20, "limit of bytes sent to one follower and not yet received by it", "bytes"
    )
    ha_beat_interval_ms: int = _setting(
        500, "heartbeat interval of an idle replication stream", "ms"
    )
    ha_reconnect_min_ms: int = _setting(100, "first pause before a follower reconnects", "ms")
    ha_reconnect_max_ms: int = _setting(2000, "longest pause before a follower reconnects", "ms")
    ha_refused_retry_ms: int = _setting(
        10_000,
        "pause of a follower after a refusal (for example DIVERGED) or a failed append",
        "ms",
    )
    ha_offsets_interval_ms: int = _setting(
        200, "interval at which changed consumer offsets are sent to the followers", "ms"
    )
    enable_controller_mode: bool = _setting(
        False,
        "true: the nameservers' group controller elects the leader; false: brokerId and "
        "brokerRole define it, and an operator promotes",
    )
    controller_lease_ms: int = _setting(
        2500,
        "a leader that neither the controller nor its followers confirmed for this long "
        "refuses writes; the controller waits this long before it elects another",
        "ms",
    )
    controller_beat_interval_ms: int = _setting(
        250,
        "heartbeat interval of a broker to the controller; changes are reported immediately",
        "ms",
    )
    shutdown_handover_ms: int = _setting(
        3000,
        "a stopping replica waits this long until it has left the in-sync set, and a stopping "
        "leader until another replica leads; 0: it stops immediately",
        "ms",
    )
    ha_priority: int = _setting(
        0, "of replicas with equal logs, the one with the higher number is elected"
    )
    cluster_token: str = _setting(
        "", "secret of the cluster's internal calls; empty: only this machine may connect"
    )

    sync_from_last_file: bool = _setting(
        False,
        "an empty replica copies from the master's last segment on, not from the oldest "
        "one: it is in sync sooner, but is not electable until retention has deleted what "
        "it lacks",
    )
    ha_scrub_interval_ms: int = _setting(
        3_600_000,
        "interval at which finished segments are verified against their checksums and the "
        "other replicas; 0: only on request (cometmq ha diff) or after damage was found",
        "ms",
    )
    ha_scrub_rate: int = _setting(
        64 << 20, "read limit of the verification per second; 0: no limit", "bytes"
    )
    replay_tail: Literal["manual", "auto"] = _setting(
        "manual",
        "replay of messages from a diverged tail that this replica cut: manual (cometmq ha "
        "replay-tail) or auto (as soon as it follows a leader); consumers may receive "
        "duplicates",
    )

    def __post_init__(self) -> None:
        if self.broker_role not in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"):
            raise ValueError(
                f"brokerRole={self.broker_role} is not one of ASYNC_MASTER, SYNC_MASTER, SLAVE"
            )
        check_cluster_token(self.cluster_token)
        if not 0 <= self.ha_listen_port <= 65535:
            raise ValueError(f"haListenPort={self.ha_listen_port} is not a port (0..65535)")
        self._check_sync()
        self._check_times()
        self._check_controller()
        self._check_sizes()

    def _check_sync(self) -> None:
        if not 1 <= self.min_in_sync_replicas <= MAX_FOLLOWERS + 1:
            raise ValueError(
                f"minInSyncReplicas={self.min_in_sync_replicas} must be 1..{MAX_FOLLOWERS + 1}: "
                "it counts the master too"
            )
        if self.broker_role == "ASYNC_MASTER" and self.min_in_sync_replicas > 1:
            raise ValueError(
                "brokerRole=ASYNC_MASTER never waits for a replica, so "
                f"minInSyncReplicas={self.min_in_sync_replicas} cannot be kept: use "
                "SYNC_MASTER, or 1"
            )
        if (
            self.is_sync
            and not self.enable_controller_mode
            and self.ha_in_sync_lag_ms <= self.slave_timeout
        ):
            raise ValueError(
                f"haInSyncLagMs={self.ha_in_sync_lag_ms} must be longer than "
                f"slaveTimeout={self.slave_timeout}: a send that waits for a lost replica "
                "must time out before that replica leaves the in-sync set"
            )

    def _check_times(self) -> None:
        for key, value in (
            ("slaveTimeout", self.slave_timeout),
            ("haBeatIntervalMs", self.ha_beat_interval_ms),
            ("haReconnectMinMs", self.ha_reconnect_min_ms),
            ("haRefusedRetryMs", self.ha_refused_retry_ms),
            ("haOffsetsIntervalMs", self.ha_offsets_interval_ms),
        ):
            if value < 1:
                raise ValueError(f"{key}={value} must be at least 1 ms")
        if self.shutdown_handover_ms < 0:
            raise ValueError(f"shutdownHandoverMs={self.shutdown_handover_ms} must not be negative")
        if self.ha_reconnect_max_ms < self.ha_reconnect_min_ms:
            raise ValueError(
                f"haReconnectMaxMs={self.ha_reconnect_max_ms} is below haReconnectMinMs="
                f"{self.ha_reconnect_min_ms}"
            )
        if self.ha_beat_interval_ms * DEAD_AFTER_HEARTBEATS >= self.ha_in_sync_lag_ms:
            raise ValueError(
                f"haBeatIntervalMs={self.ha_beat_interval_ms}: {DEAD_AFTER_HEARTBEATS} heartbeats "
                f"must fit into haInSyncLagMs={self.ha_in_sync_lag_ms}, or idle replicas "
                "would leave the in-sync set"
            )

    def _check_controller(self) -> None:
        if self.controller_beat_interval_ms < 1:
            raise ValueError(
                f"controllerBeatIntervalMs={self.controller_beat_interval_ms} must be at least 1 ms"
            )
        if self.controller_beat_interval_ms * LEASE_HEARTBEATS > self.controller_lease_ms:
            raise ValueError(
                f"controllerLeaseMs={self.controller_lease_ms} must be at least "
                f"{LEASE_HEARTBEATS} times "
                f"controllerBeatIntervalMs={self.controller_beat_interval_ms}, or one late answer "
                "would stop the leader's writes"
            )
        if not self.enable_controller_mode:
            return
        if self.ha_master_address:
            raise ValueError(
                f"haMasterAddress={self.ha_master_address} sets a master, but with "
                "enableControllerMode=true the controller elects it: remove one of them"
            )
        if self.ha_beat_interval_ms * DEAD_AFTER_HEARTBEATS > self.controller_lease_ms:
            raise ValueError(
                f"controllerLeaseMs={self.controller_lease_ms} must be at least "
                f"{DEAD_AFTER_HEARTBEATS} times haBeatIntervalMs={self.ha_beat_interval_ms}: the "
                "heartbeats of an idle leader must renew its lease"
            )

    def _check_sizes(self) -> None:
        if self.ha_scrub_interval_ms < 0 or self.ha_scrub_rate < 0:
            raise ValueError("haScrubIntervalMs and haScrubRate cannot be negative")
        if self.replay_tail not in ("manual", "auto"):
            raise ValueError(f"replayTail={self.replay_tail} must be manual or auto")
        if not 4096 <= self.ha_transfer_batch_size <= MAX_FRAME_BYTES - FRAME_OVERHEAD_BYTES:
            raise ValueError(
                f"haTransferBatchSize={self.ha_transfer_batch_size} must be 4096.."
                f"{MAX_FRAME_BYTES - FRAME_OVERHEAD_BYTES} bytes"
            )
        if self.ha_window_size < self.ha_transfer_batch_size:
            raise ValueError(
                f"haWindowSize={self.ha_window_size} is below "
                f"haTransferBatchSize={self.ha_transfer_batch_size}: no chunk would fit"
            )

    @property
    def is_leader(self) -> bool:
        """Whether the configuration makes this replica the leader from its start."""
        return self.broker_role != "SLAVE" and not self.enable_controller_mode

    @property
    def is_sync(self) -> bool:
        return self.broker_role == "SYNC_MASTER"

    @property
    def lease_ns(self) -> int:
        return self.controller_lease_ms * 1_000_000

    @property
    def dead_after_ns(self) -> int:
        return self.ha_beat_interval_ms * DEAD_AFTER_HEARTBEATS * 1_000_000
