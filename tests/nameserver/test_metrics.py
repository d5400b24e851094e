"""The metrics port of a nameserver with a controller."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.tests.broker.live import running, settings, until


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


async def test_a_nameserver_exports_its_groups_and_elections(tmp_path: Path) -> None:
    config = NameserverConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        namesrv_metrics_port=0,
        controller=True,
        namesrv_data_dir=str(tmp_path / "n"),
    )
    server = NameserverServer(config)
    address = await server.start()
    chosen = settings(tmp_path / "b", namesrv_addr=address)
    object.__setattr__(chosen.ha, "enable_controller_mode", True)
    try:
        async with running(chosen) as live:
            await until(lambda: live.node.leadership.is_leader, 60)
            await until(lambda: any(group.leader() for group in server._table.groups()), 60)
            page = await asyncio.to_thread(read, f"http://{server.metrics_address}/metrics")
            await asyncio.to_thread(read, f"http://{server.metrics_address}/readyz")
    finally:
        await server.stop(0.5)
    found = {
        (
            sample.name,
            *(v for k, v in sample.labels.items() if k in ("state", "change", "event")),
        ): (sample.value, sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["cometmq_nameserver_replicas", "alive"][0] == 1
    assert found["cometmq_nameserver_members_total", "registered"][0] >= 1
    assert found["cometmq_nameserver_has_leader",][0] == 1
    assert found["cometmq_controller_active",][0] == 1
    assert found["cometmq_controller_sessions",][0] == 1
    assert found["cometmq_controller_changes_total", "leader"][0] >= 1
    value, labels = found["cometmq_controller_epoch",]
    assert (value >= 1, labels["group"], labels["node_type"]) == (True, "broker-a", "nameserver")
    assert labels["node_id"].endswith(":" + address.rpartition(":")[2])


async def test_a_nameserver_without_a_metrics_port_opens_none() -> None:
    server = NameserverServer(NameserverConfig(bind_address="127.0.0.1", listen_port=0))
    await server.start()
    assert server.metrics_address == ""
    await server.stop(0.5)
