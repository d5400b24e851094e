"""Every alert fires on a real fault: live brokers, nameservers and proxies, scraped by Prometheus.

The rules are those of deploy/prometheus with two changes, both made by `drill_rules`: an alert
fires at once (no `for`), and the thresholds of `DRILLED` suit a test. The windows of `rate` and
`increase` are unchanged. test_alerts.py evaluates the unchanged rules on written series.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec import structs

from cometmq.broker.lifecycle import Bound
from cometmq.broker.pop.queue import PopQueue
from cometmq.front.clock import Clock
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import decode
from cometmq.store.format.results import StoredRecord
from cometmq.store.timer.store import TimerFlush
from cometmq.tests.broker.broker_process import BrokerProcess
from cometmq.tests.broker.core.test_full_disk_broker import fill, small_disk
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import (
    Live,
    create_topic,
    follower_of,
    running,
    settings,
    until,
)
from cometmq.tests.broker.test_replicas import in_sync
from cometmq.tests.broker.timing import HOUR, delayed
from cometmq.tests.broker.timing import TOPIC as LATER
from cometmq.tests.broker.transacting import prepared
from cometmq.tests.deploy.monitored import WITHIN_S, monitored
from cometmq.tests.deploy.prometheus import RULES, Prometheus, prometheus
from cometmq.tests.deploy.test_alerts import ALERTS
from cometmq.tests.deploy.test_live_monitoring import OF_A_LOSS, OF_THE_LOAD
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.harness.relay import Relay
from cometmq.tests.harness.wire import Wire, normal_message
from cometmq.tests.nameserver.fake_broker import Link, controller_config
from cometmq.tests.store.damage import Place, flip

__all__ = ["small_disk"]

pytestmark = pytest.mark.timeout(900)  # a busy machine starts brokers and Prometheus slowly

#: By alert: the threshold of the rule, that of its drill, and the reason.
DRILLED = {
    "CometMQEventLoopSlow": ("0.1", "1", "the load of other tests delays an event loop by 100 ms"),
    "CometMQReplicaBehind": ("67108864", "1048576", "64 MiB of messages take seconds to write"),
    "CometMQFlushBehind": ("268435456", "1048576", "256 MiB of messages take seconds to write"),
    "CometMQDispatchBehind": ("16777216", "1048576", "the messages of CometMQFlushBehind"),
    "CometMQConsumerLag": ("100000", "100", "100,000 messages take seconds to send"),
    "CometMQTransactionsOpen": ("1000", "10", "1,000 half messages take seconds to send"),
}
#: The alerts of each drill.
OF_PROCESSES = ("CometMQEventLoopSlow", "CometMQDescriptorsShort", "CometMQVersionsDiffer")
OF_RESTARTS = ("CometMQRestarts", "CometMQTargetDown")
OF_A_GROUP = ("CometMQGroupWithoutLeader", "CometMQElectionHeld", "CometMQProxyHeldInVain")
OF_CONTROLLERS = ("CometMQNoActiveController",)
OF_A_SILENT_FOLLOWER = (
    *("CometMQReplicaBehind", "CometMQWritesRefused", "CometMQSendsRefused"),
    "CometMQTimersOverdue",
)
OF_RETURNS = ("CometMQInSyncFlapping", "CometMQLeaderUnreachable")
OF_A_SMALL_DISK = ("CometMQDiskNearlyFull", "CometMQDiskFull")
OF_A_HUNG_DISK = ("CometMQFlushBehind", "CometMQDispatchBehind", "CometMQSendsSlow")
OF_CONSUMERS = (
    *("CometMQConsumerLag", "CometMQConsumerDelayed", "CometMQDeadLetters"),
    "CometMQPopReviveDelayed",
)
OF_TRANSACTIONS = ("CometMQTransactionsOpen", "CometMQTransactionsGivenUp")
OF_DAMAGE = ("CometMQMissingMessages", "CometMQTimersStopped", "CometMQStoreNotWritable")


def test_every_alert_has_a_live_drill() -> None:
    drilled = {
        *(*OF_THE_LOAD, *OF_A_LOSS, *OF_PROCESSES, *OF_RESTARTS, *OF_A_GROUP, *OF_CONTROLLERS),
        *(*OF_A_SILENT_FOLLOWER, *OF_RETURNS, *OF_A_SMALL_DISK),
        *(*OF_A_HUNG_DISK, *OF_CONSUMERS, *OF_TRANSACTIONS, *OF_DAMAGE),
        *("CometMQFrequentElections", "CometMQDiskFullSoon"),
    }
    assert drilled == set(ALERTS)


def drill_rules(path: Path) -> Path:
    """Write the rules without `for`, and with the thresholds of DRILLED."""
    text = re.sub(r"\n +for: \w+", "", RULES.read_text())
    for name, (shipped, drilled, _) in DRILLED.items():
        rule = rf"(- alert: {name}\n +expr: '.*)> {shipped}'"
        text, found = re.subn(rule, rf"\1> {drilled}'", text)
        assert found == 1, name
    path.write_text(text)
    return path


class Watch:
    """What has fired, at a server that scrapes every other second."""

    def __init__(self, server: Prometheus, targets: list[str]) -> None:
        self._server, self._targets = server, targets
        self._since_s = time.time()

    async def fired(self) -> set[str]:
        """Return the alerts that have fired since it was quiet."""
        window_s = max(1, int(time.time() - self._since_s))
        firing = f'ALERTS{{alertstate="firing"}}[{window_s}s]'
        expression = f"count by (alertname) (count_over_time({firing}))"
        found = await asyncio.to_thread(self._server.query, expression)
        return {one["metric"]["alertname"] for one in found}

    async def quiet(self, *names: str) -> None:
        """Wait until every target was scraped twice and none of these alerts fires.

        A busy machine may make one fire before that.
        """
        expression = 'count(count_over_time(up{job="cometmq"}[1h]) > 1)'

        await self.shows(f"{expression} == {len(self._targets)}")
        await self.shows(f'absent(ALERTS{{alertname=~"{"|".join(names)}", alertstate="firing"}})')
        self._since_s = time.time()

    async def fires(self, *names: str) -> None:
        """Wait until these alerts have fired."""

        missing = set(names)

        async def all_fired() -> bool:
            missing.difference_update(await self.fired())
            return not missing

        await self._wait(all_fired, missing)

    async def shows(self, expression: str) -> None:
        """Wait until an expression has series."""

        async def shown() -> bool:
            return bool(await asyncio.to_thread(self._server.query, expression))

        await self._wait(shown, expression)

    async def _wait(self, condition: Any, what: object) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + WITHIN_S
        while True:
            with suppress(OSError):  # the server starts
                if await condition():
                    return
            assert loop.time() < end_s, what
            await asyncio.sleep(0.2)


@asynccontextmanager
async def watching(root: Path, *targets: str) -> AsyncIterator[Watch]:
    """Run Prometheus with the rules of the drills."""
    rules = drill_rules(root / "rules.yml")
    with prometheus(root / "prometheus", list(targets), rules, every="2s") as server:
        yield Watch(server, list(targets))


@asynccontextmanager
async def stopped_often(pid: int) -> AsyncIterator[None]:
    """Stop the process for 1.5 s again and again: so late are the timers of its event loop."""

    async def stop_often() -> None:
        while True:
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(1.5)
            finally:
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(1)  # it is scraped

    stopping = asyncio.create_task(stop_often())
    try:
        yield
    finally:
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping


async def test_alerts_of_processes(tmp_path: Path) -> None:
    """SIGSTOP, a lower limit of descriptors, an end, three restarts, another version."""
    (port,) = free_ports(1)
    order = {"metrics_prom_exporter_port": port}
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(running(settings(tmp_path / "other")))
        broker = await stack.enter_async_context(BrokerProcess(tmp_path / "a", **order))
        targets = (broker.metrics, other.bound.metrics)
        watch = await stack.enter_async_context(watching(tmp_path, *targets))
        await watch.quiet(*OF_PROCESSES, *OF_RESTARTS)
        pid = broker.process.pid
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 5, used + 5))
        async with stopped_often(pid):
            await watch.fires("CometMQEventLoopSlow", "CometMQDescriptorsShort")
        # A scrape of the stopped process may have failed.
        down = 'ALERTS{alertname="CometMQTargetDown", alertstate="firing"}'
        await watch.shows(f"absent({down})")
        await broker.kill()
        await watch.shows(down)
        for number in range(1, 4):
            version = {"version": "0.0.9"} if number == 3 else {}
            async with BrokerProcess(tmp_path / "a", **order, **version):
                await watch.shows(f"changes(process_start_time_seconds[1h]) >= {number}")
                if version:
                    await watch.fires("CometMQRestarts", "CometMQVersionsDiffer")


async def code_of(wire: Wire, sent: v2.Message) -> int:
    """Send with a short deadline, which the proxy keeps; with longer ones on a slow machine."""
    for within_s in (3, 10):
        try:
            return int((await wire.send([sent], within_s)).status.code)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return int((await wire.send([sent], 30)).status.code)


async def test_alerts_of_a_group_without_leader(tmp_path: Path) -> None:
    """Switchovers; then both replicas stop, and the one that may lack messages returns alone."""
    async with monitored(tmp_path) as live, watching(tmp_path, *live.targets) as watch:
        await watch.quiet(*OF_A_GROUP, "CometMQFrequentElections")
        link = Link(live.namesrv)
        group = live.leader.node.cluster.own().name
        for _ in range(4):
            async with asyncio.timeout(WITHIN_S):
                while True:  # refused while a replica of a busy machine is not in sync
                    request = v1.SwitchoverRequest(group=group, to=live.broker_id(live.follower))
                    answer = await link.call(paths.SWITCHOVER, request, v1.GroupsResponse, ())
                    await live.in_sync()
                    if answer.code == v2.OK:
                        break
        await link.close()
        await watch.fires("CometMQFrequentElections")
        async with Wire(live.proxy, "c@1") as wire:
            await create_topic(wire, "t", queues=1)
            assert (await wire.send([normal_message("t", "a", b"x")], 30)).status.code == v2.OK
            behind = live.broker_id(live.follower)
            await live.stop(live.follower)
            await until(lambda: live.leader.node.replication.in_sync_count == 1, WITHIN_S)
            await live.stop(live.leader)
            await live.start(behind)
            assert await code_of(wire, normal_message("t", "b", b"x")) == v2.HA_NOT_AVAILABLE
            await watch.fires(*OF_A_GROUP)


async def test_alerts_of_controllers(tmp_path: Path) -> None:
    """Two of three nameservers stop: the third decides nothing alone."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    async with AsyncExitStack() as stack:
        servers = []
        for number, address in enumerate(addresses):
            peers = [one for one in addresses if one != address]
            config = controller_config(
                tmp_path / f"n{number}",
                listen_port=int(address.rpartition(":")[2]),
                namesrv_metrics_port=0,
                controller_peers=",".join(peers),
                controller_lease_ms=2_000,
            )
            servers.append(NameserverServer(config))
            await servers[-1].start()
            stack.push_async_callback(servers[-1].stop, 0.2)
        watch = await stack.enter_async_context(
            watching(tmp_path, *(server.metrics_address for server in servers))
        )
        await watch.shows("sum(cometmq_controller_active) == 1")
        for server in servers[1:]:
            await server.stop(0.2)
        await watch.fires(*OF_CONTROLLERS)


async def refused(one: Desk, watch: Watch, topic: str) -> None:
    """Send 400 messages that are refused: more than one a second over five minutes."""
    for number in range(400):
        assert (await one.send(message(topic))).status.code == v2.HA_NOT_AVAILABLE
        if not number:  # a counter that appears has not increased: the first must be seen alone
            await watch.shows('cometmq_refused_sends_total{cause="ha_not_available"}')


async def test_alerts_of_a_follower(tmp_path: Path) -> None:
    """Its connection falls silent, and a delayed message becomes due meanwhile; then it goes and
    returns; at last the leader ends."""
    clock = Clock()
    base = in_sync(settings(tmp_path / "a"), minimum=2)
    chosen = replace(base, ha=replace(base.ha, ha_in_sync_lag_ms=4_000, slave_timeout=500))
    (port,) = free_ports(1)
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(AsyncExitStack())
        leader = await leading.enter_async_context(running(chosen, clock))
        one = Desk(leader, leader.node.acks, leader.node.pulls)
        members = leader.node.replication
        relay = Relay(int(leader.bound.ha.rpartition(":")[2]))
        through = structs.replace(leader.bound, ha=await relay.start())
        stack.push_async_callback(relay.stop)

        def follower(dialled: Bound) -> AbstractAsyncContextManager[Live]:
            return running(follower_of(dialled, tmp_path / "b", metrics_prom_exporter_port=port))

        async with follower(through) as second:
            targets = (leader.bound.metrics, second.bound.metrics)
            watch = await stack.enter_async_context(watching(tmp_path, *targets))
            await until(lambda: members.in_sync_count == 2)
            one.topic("t")
            one.topic(LATER, message_type=v2.DELAY)
            due_ms = clock.wall_ms() + HOUR
            async with asyncio.timeout(WITHIN_S):
                # Refused while the follower of a busy machine is not in sync.
                while (await one.send(delayed(b"late", due_ms))).status.code != v2.OK:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await watch.quiet(*OF_A_SILENT_FOLLOWER, *OF_RETURNS)
            relay.make_deaf()
            relay.refuse()
            for number in range(4):  # each is stored, and its sender learns that no replica has it
                await one.send(message("t", bytes(500_000), f"big-{number}"))
            await watch.fires("CometMQReplicaBehind", "CometMQWritesRefused")
            await refused(one, watch, "t")
            one.advance(2 * HOUR)
            await watch.fires(*OF_A_SILENT_FOLLOWER)
        for _ in range(4):
            async with follower(leader.bound):
                await until(lambda: members.in_sync_count == 2)
            await until(lambda: members.in_sync_count == 1)
        async with follower(leader.bound):
            await watch.fires("CometMQInSyncFlapping")
            await leading.aclose()
            await watch.fires("CometMQLeaderUnreachable")


async def test_alerts_of_a_small_disk(tmp_path: Path, small_disk: Path) -> None:
    """A file system of 12 MiB fills up."""
    base = settings(small_disk / "store")
    chosen = replace(base, store=replace(base.store, clean_resource_interval=50))
    async with (
        desk(small_disk / "store", chosen) as one,
        watching(tmp_path, one.live.bound.metrics) as watch,
    ):
        await watch.quiet(*OF_A_SMALL_DISK)
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        (small_disk / "ballast").write_bytes(bytes(free * 7 // 8))
        await watch.fires("CometMQDiskFullSoon", "CometMQDiskNearlyFull")
        fill(small_disk / "ballast")
        await watch.fires(*OF_A_SMALL_DISK)


async def test_alerts_of_a_hung_and_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fdatasync hangs under sends that wait for it, and fails later."""
    base = settings(tmp_path / "store")
    store = replace(base.store, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=300_000)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(desk(tmp_path, replace(base, store=store)))
        wire = await stack.enter_async_context(one.live.client())
        watch = await stack.enter_async_context(watching(tmp_path, one.live.bound.metrics))
        one.topic("t")
        one.topic(LATER, message_type=v2.DELAY)
        assert (await wire.send([normal_message("t", "first", b"x")])).status.code == v2.OK
        await watch.quiet(*OF_A_HUNG_DISK, "CometMQStoreNotWritable", "CometMQTimersStopped")
        goes_on = threading.Event()
        stack.callback(goes_on.set)

        def hang(call: str) -> None:
            if call == "fdatasync":
                goes_on.wait()

        disk = one.node.store.disk
        disk.fault = hang
        waiting = [
            asyncio.create_task(wire.send([normal_message("t", f"m{n}", bytes(500_000))], 300))
            for n in range(4)
        ]
        await watch.fires("CometMQFlushBehind", "CometMQDispatchBehind")
        goes_on.set()
        assert {answer.status.code for answer in await asyncio.gather(*waiting)} == {v2.OK}
        await watch.fires("CometMQSendsSlow")

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "the disk")

        monkeypatch.setattr(TimerFlush, "run", fail)
        due_ms = one.node.runtime.clock.wall_ms() + HOUR
        assert (await one.send(delayed(b"late", due_ms))).status.code == v2.OK
        await watch.fires("CometMQTimersStopped")
        disk.fault = fail
        await one.send(message("t"))
        await watch.fires("CometMQStoreNotWritable")


async def test_alerts_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that does not keep up, one dead letter, a queue that redeliveries cannot read,
    producers that do not decide, damage."""
    base = settings(tmp_path / "store", transaction_check_max=1)
    store = replace(base.store, mapped_file_size_commit_log=16 << 10)
    async with (
        desk(tmp_path, replace(base, store=store)) as one,
        watching(tmp_path, one.live.bound.metrics) as watch,
    ):
        for topic in ("t", "again", "damaged"):
            one.topic(topic)
        one.topic("pay", message_type=v2.TRANSACTION)
        one.group("once", max_attempts=1)
        await watch.quiet(*OF_CONSUMERS, *OF_TRANSACTIONS, "CometMQMissingMessages")
        for number in range(102):
            assert (await one.send(message("t", b"x", f"m{number}"))).status.code == v2.OK
        assert (await one.receive("t", "slow", batch=1)).code == v2.OK
        await watch.fires("CometMQConsumerLag")
        reviver = one.node.pop.reviver
        read = reviver._read

        def fail(queue: PopQueue, offset: int) -> StoredRecord | None:
            if queue.topic == "t":
                raise OSError(errno.EIO, "the disk")
            return read(queue, offset)

        monkeypatch.setattr(reviver, "_read", fail)
        await prepared(one, "pay", *(f"half-{number}" for number in range(11)))
        await watch.fires("CometMQTransactionsOpen")
        await one.sent("again", b"fails")
        assert (await one.receive("again", "once", invisible_ms=10_000)).code == v2.OK
        one.advance(301_000)
        await one.nothing("again", "once")
        one.advance(30_000)
        await watch.fires(*OF_CONSUMERS, *OF_TRANSACTIONS)
        await one.sent("damaged", b"0" * 200, b"1" * 200)
        await one.sent("t", *(b"." * 1_000 for _ in range(32)))  # the segment is not the last one
        found = one.node.store.get("damaged", 0, 0, 1).records[0]
        at = found.physical_offset + found.data.index(decode(found.data).body)
        size = store.mapped_file_size_commit_log
        first = at // size * size
        flip(Place(tmp_path / "store" / "commitlog" / f"{first:020d}", at - first, size))
        await one.receive("damaged", "reader")
        await watch.fires("CometMQMissingMessages")
