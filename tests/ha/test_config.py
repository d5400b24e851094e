"""Settings of replication: defaults, and contradictions refused with a sentence."""

from dataclasses import fields
from typing import Any

import pytest

from cometmq.ha.config import HaConfig


def test_defaults_match_the_protocol() -> None:
    config = HaConfig()
    assert (config.broker_role, config.ha_listen_port) == ("ASYNC_MASTER", 10912)
    assert (config.ha_transfer_batch_size, config.ha_window_size) == (256 * 1024, 8 << 20)
    assert (config.ha_beat_interval_ms, config.dead_after_ns) == (500, 1_500_000_000)
    assert (config.slave_timeout, config.ha_in_sync_lag_ms) == (3000, 5000)


def test_every_setting_has_help() -> None:
    assert all(field.metadata.get("help") for field in fields(HaConfig))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"broker_role": "MASTER"}, "brokerRole"),
        ({"ha_listen_port": 70_000}, "haListenPort"),
        ({"min_in_sync_replicas": 0, "broker_role": "SYNC_MASTER"}, "minInSyncReplicas"),
        ({"min_in_sync_replicas": 2}, "SYNC_MASTER"),
        ({"broker_role": "SYNC_MASTER", "slave_timeout": 5000}, "haInSyncLagMs"),
        ({"ha_beat_interval_ms": 2000}, "haBeatIntervalMs"),
        ({"ha_beat_interval_ms": 0}, "haBeatIntervalMs=0 must be at least 1 ms"),
        ({"ha_reconnect_max_ms": 50}, "haReconnectMaxMs"),
        ({"ha_transfer_batch_size": 100}, "haTransferBatchSize"),
        ({"ha_window_size": 1000}, "haWindowSize"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HaConfig(**settings)


def test_a_slave_may_share_its_masters_settings() -> None:
    assert not HaConfig(broker_role="SLAVE", min_in_sync_replicas=2).is_leader


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"controller_lease_ms": 700}, "3 times controllerBeatIntervalMs"),
        ({"controller_beat_interval_ms": 0}, "at least 1 ms"),
        ({"enable_controller_mode": True, "ha_master_address": "a:1"}, "the controller elects it"),
        (
            {
                "enable_controller_mode": True,
                "controller_lease_ms": 1000,
                "controller_beat_interval_ms": 100,
            },
            "heartbeats of an idle leader",
        ),
    ],
)
def test_a_contradiction_about_the_controller_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        HaConfig(**settings)


def test_with_a_controller_no_replica_leads_by_configuration() -> None:
    assert HaConfig().is_leader
    assert not HaConfig(enable_controller_mode=True).is_leader
