"""A synchronous group while its slave is away (docs/design/delivery-guarantees.md).

Waits that are open when the slave dies are answered SLAVE_PERSISTENCE_TIMEOUT. After the slave has
left the in-sync set, writes continue with minInSyncReplicas=1 and are refused with 2. The tests
assert order and outcome, not times; the waits have generous limits.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.drills.logwalk import log_difference, log_end, walk
from cometmq.proto import v2
from cometmq.proto.errors import code_name
from cometmq.tests.drills.kill9 import store_of
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.wire import Wire, normal_message

TOPIC = "sync"
NEXT_S, MANY = 0.2, 300  # attempts of a send: for at least a minute
_numbers = itertools.count(1)


def prepare(data: Path, **keys: str) -> None:
    """Write settings of the master before `cometmq up` starts."""
    folder = data / "master"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in keys.items()))


async def send(wire: Wire) -> int:
    """Send once with a long deadline; return the status code."""
    message = normal_message(TOPIC, f"01{next(_numbers):032X}", b"body")
    answer = await wire.send([message], within_s=60.0)
    return int(answer.status.code)


async def codes_until(wire: Wire, wanted: int) -> list[int]:
    """Send until the wanted code is returned; return every code."""
    codes: list[int] = []
    for _ in range(MANY):
        codes.append(await send(wire))
        if codes[-1] == wanted:
            return codes
        await asyncio.sleep(NEXT_S)
    raise AssertionError(f"{code_name(wanted)} never came: {sorted(set(codes))}")


def slave_dies(cluster: Cluster, wanted: int) -> tuple[list[int], list[int]]:
    """Freeze the slave with sends waiting, kill it; return their codes and the codes after it."""

    async def scenario() -> tuple[list[int], list[int]]:
        async with Wire(cluster.address("master")) as wire:
            assert await codes_until(wire, v2.OK)
            slave = cluster.node("slave").pid
            os.kill(slave, signal.SIGSTOP)  # nothing is acknowledged from here on
            waiting = [asyncio.ensure_future(send(wire)) for _ in range(8)]
            await asyncio.sleep(0.5)
            await asyncio.to_thread(cluster.kill9, "slave")
            return list(await asyncio.gather(*waiting)), await codes_until(wire, wanted)

    return asyncio.run(scenario())


@pytest.mark.timeout(900)
def test_open_waits_time_out_and_writes_continue(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster().wait_in_sync()
    cluster.create_topic(TOPIC)
    waiting, after = slave_dies(cluster, v2.OK)
    assert set(waiting) == {v2.SLAVE_PERSISTENCE_TIMEOUT}
    assert set(after[:-1]) <= {v2.SLAVE_PERSISTENCE_TIMEOUT}

    cluster.restart("slave")
    stores = [store_of(cluster.node(role).data) / "commitlog" for role in ("master", "slave")]
    wait_until("the slave has caught up", lambda: log_end(stores[0]) == log_end(stores[1]))
    cluster.stop()
    assert log_difference(*stores) == ""


@pytest.mark.timeout(900)
def test_writes_are_refused_below_min_in_sync_replicas(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    prepare(cluster.data, minInSyncReplicas="2")
    try:
        cluster.start().wait_in_sync()
        cluster.create_topic(TOPIC)
        waiting, after = slave_dies(cluster, v2.HA_NOT_AVAILABLE)
        assert set(waiting) == {v2.SLAVE_PERSISTENCE_TIMEOUT}
        assert set(after[:-1]) <= {v2.SLAVE_PERSISTENCE_TIMEOUT}
        cluster.restart("slave")

        async def accepted_again() -> list[int]:
            async with Wire(cluster.address("master")) as wire:
                return await codes_until(wire, v2.OK)

        codes = asyncio.run(accepted_again())
        assert set(codes[:-1]) <= {v2.HA_NOT_AVAILABLE, v2.SLAVE_PERSISTENCE_TIMEOUT}
    finally:
        cluster.stop()


@pytest.mark.timeout(900)
def test_a_refused_send_is_not_in_the_log(tmp_path: Path) -> None:
    """HA_NOT_AVAILABLE means that nothing was written."""
    cluster = Cluster(tmp_path / "cluster")
    prepare(cluster.data, minInSyncReplicas="2")
    try:
        cluster.start().wait_in_sync()
        cluster.create_topic(TOPIC)
        slave_dies(cluster, v2.HA_NOT_AVAILABLE)
        log = store_of(cluster.node("master").data) / "commitlog"
        before = sum(record.topic == TOPIC for record in walk(log))

        async def refused() -> set[int]:
            async with Wire(cluster.address("master")) as wire:
                return {await send(wire) for _ in range(20)}

        assert asyncio.run(refused()) == {v2.HA_NOT_AVAILABLE}
        assert sum(record.topic == TOPIC for record in walk(log)) == before
    finally:
        cluster.stop()
