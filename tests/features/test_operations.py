"""Operations: metrics with RocketMQ's names, lag, in flight and retries.

Row "Metrics"; disk full and retention are tested beside the store
(docs/formats/broker-semantics.md, section 11).
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cometmq.proto import paths, v1, v2
from cometmq.tests.features.client import Client
from cometmq.tests.features.house import House
from cometmq.tests.features.table import SEMANTICS

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Groups of the list that do not apply to this broker: other engines, other protocols, other
#: processes.
ELSEWHERE = ("RocksDB", "tiered store", "remoting", "proxy", "controller")


def expected(page: Path) -> set[str]:
    """Return the metric names of sections 11.2 and 11.3."""
    text = page.read_text(encoding="utf-8").partition("### 11.2 Broker")[2]
    lines = text.partition("### 11.4")[0].splitlines()
    rows = [line for line in lines if not line.startswith(tuple(f"| {a} |" for a in ELSEWHERE))]
    return set(re.findall(r"rocketmq_[a-z_]+", "\n".join(rows)))


async def exported(house: House) -> dict[str, float]:
    """Return every metric family of /metrics with the sum of its samples."""
    url = f"http://{house.live.bound.metrics}/metrics"

    def read() -> str:
        with urllib.request.urlopen(url, timeout=20) as answer:
            text: str = answer.read().decode()
        return text

    text = await asyncio.to_thread(read)
    return {
        family.name: sum(sample.value for sample in family.samples)
        for family in text_string_to_metric_families(text)
    }


def found(name: str, families: dict[str, float]) -> bool:
    """Return whether a metric exists; exporters may remove `_total` and append a unit."""
    return any(f.startswith(name.removesuffix("_total")) for f in families)


@pytest.mark.feature("Metrics")
async def test_metrics_have_rocketmqs_names(client: Client, house: House) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    await client.ack(topic, group, [await client.one(topic, group)])
    names = expected(SEMANTICS)
    assert len(names) > 30
    families = await exported(house)
    assert sorted(name for name in names if not found(name, families)) == []


@pytest.mark.feature("Metrics")
async def test_lag_in_flight_and_retries_are_counted(client: Client, house: House) -> None:
    topic, group = await client.topic(), client.name("group")
    for body in "abcd":
        await client.send(topic, body)
    got = await client.take(topic, group, 3, batch=3, invisible_s=10)
    await client.ack(topic, group, got[:1])
    request = v1.DescribeGroupRequest(name=group)

    async def progress() -> v1.GroupProgress:
        answer = await client.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
        made: v1.GroupProgress = answer.progress
        return made

    now = await progress()
    assert (now.lag, now.in_flight, now.retries) == (3, 2, 0)
    await client.advance(10_000)
    for _ in range(1200):
        now = await progress()
        if now.retries == 2:
            break
        await asyncio.sleep(0.05)
    assert (now.lag, now.in_flight, now.retries) == (3, 0, 2)
    again = await client.take(topic, group, 3)
    assert sorted(m.system_properties.delivery_attempt for m in again) == [1, 2, 2]
    await client.ack(topic, group, again)
    now = await progress()
    assert (now.lag, now.in_flight, now.retries) == (0, 0, 0)
    listed = await client.call(paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse)
    assert group in [one.name for one in listed.groups]
    assert len(listed.progress) == len(listed.groups)
    assert listed.code == v2.OK
