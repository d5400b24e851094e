"""Broker settings: accepted and refused values, error sentences."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from cometmq.broker.base.config import BrokerConfig, split_addresses
from cometmq.broker.settings import check_settings
from cometmq.ha.config import HaConfig
from cometmq.nodes.setting_keys import entries, key_of


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"broker_id": -1}, "brokerId"),
        ({"broker_name": "a b"}, "brokerName"),
        ({"broker_cluster_name": ""}, "brokerClusterName"),
        ({"broker_ip1": ""}, "brokerIP1"),
        ({"broker_ip1": "host:1"}, "brokerIP1"),
        ({"namesrv_addr": "127.0.0.1"}, "HOST:PORT"),
        ({"grpc_server_port": 65_536}, "grpcServerPort"),
        ({"advertise": " "}, "advertise"),
        ({"advertise": "a:1,b:2"}, "IP addresses"),
        ({"advertise": "nonsense"}, "HOST:PORT"),
        ({"max_clients": 0}, "maxClients"),
        ({"channel_expired_timeout": 0}, "channelExpiredTimeout"),
    ],
)
def test_invalid_values_are_refused(changed: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        BrokerConfig(**changed)


def test_address_lists_are_parsed() -> None:
    assert split_addresses("a:1; b:2,[::1]:3;") == [("a", 1), ("b", 2), ("::1", 3)]
    assert BrokerConfig(advertise="10.0.0.1:1,10.0.0.2:2").advertise_list() == [
        ("10.0.0.1", 1),
        ("10.0.0.2", 2),
    ]
    assert BrokerConfig(advertise="echo").advertise_list() == []
    assert BrokerConfig(broker_ip1="::1").broker_ip1 == "::1"


def test_every_setting_has_help() -> None:
    assert all(field.metadata["help"] for field in fields(BrokerConfig))
    keys = [key_of(field) for field in fields(BrokerConfig)]
    assert "brokerIP1" in keys
    assert "metricsPromExporterPort" in keys


@pytest.mark.parametrize(
    ("broker", "ha", "word"),
    [
        ({}, {"broker_role": "SLAVE"}, "brokerId"),
        ({"broker_id": 1}, {}, "SLAVE"),
        ({"broker_id": 1}, {"broker_role": "SLAVE"}, "haMasterAddress"),
        ({"grpc_server_port": 10912}, {}, "haListenPort"),
    ],
)
def test_contradicting_settings_are_refused(
    broker: dict[str, Any], ha: dict[str, Any], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        check_settings(BrokerConfig(**broker), HaConfig(**ha))


def test_the_list_of_settings_hides_secrets_and_names_origins() -> None:
    found = entries(
        (BrokerConfig(broker_name="b1"), HaConfig(cluster_token="s3cret-of-the-tests")),
        {"brokerName": "file broker.conf"},
    )
    assert found["brokerName"] == ("b1", "file broker.conf")
    assert found["testHooks"] == ("false", "default")
    assert "s3cret" not in str(found)
