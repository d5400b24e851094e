"""A cluster under load and Prometheus: every panel shows data, every rule finds its metrics."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path

import cometmq
from cometmq.proto import v2
from cometmq.tests.broker.desk import Desk, message
from cometmq.tests.broker.live import Live
from cometmq.tests.deploy.monitored import WITHIN_S, monitored
from cometmq.tests.deploy.prometheus import ROOT, Prometheus, program, prometheus

DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
#: Alerts of the load: its groups leave messages, and one of them has dead letters.
OF_THE_LOAD = ("CometMQDeadLetters", "CometMQGroupWithoutConsumers")
#: Alerts of a follower that has ended.
OF_A_LOSS = ("CometMQTargetDown", "CometMQReplicaDead", "CometMQUnderReplicated")
#: Words of a rule that stand before `{` or `(` or alone, and are no metrics.
_SELECTOR = re.compile(r"\b((?:rocketmq|cometmq|process)_\w+|up)\b(\{[^}]*\})?")


async def load(leader: Live, proxy: str) -> None:
    """Use every feature that has metrics, again and again."""
    desk = Desk(leader, leader.node.acks, leader.node.pulls)
    for name, kind in (("t", v2.NORMAL), ("later", v2.DELAY), ("pay", v2.TRANSACTION)):
        desk.topic(name, 2, kind)
    desk.topic("empty")
    desk.group("once", max_attempts=1)

    async def check(_message: object) -> cometmq.Resolution:
        return cometmq.Resolution.UNKNOWN

    async with (
        cometmq.Producer(proxy) as producer,
        cometmq.TransactionProducer(leader.bound.client, topics=["pay"], checker=check) as paying,
        cometmq.SimpleConsumer(proxy, group="g", topics="t", wait=1) as consumer,
        cometmq.SimpleConsumer(leader.bound.client, group="idle", topics="empty", wait=1) as idle,
    ):
        while True:
            # On a busy machine a send may time out; the next round repeats it.
            with suppress(cometmq.errors.CometError):
                for _ in range(3):
                    await producer.send("t", b"x" * 100)
                await producer.send("later", b"y", deliver_in=timedelta(hours=1))
                async with paying.transaction("pay", b"1"):
                    pass
                with suppress(ZeroDivisionError):
                    async with paying.transaction("pay", b"2"):
                        raise ZeroDivisionError
                for one in (await consumer.receive())[1:]:
                    await consumer.ack(one)
                await idle.receive()
            with suppress(cometmq.errors.CometError):
                await producer.send("missing", b"z")
            await desk.send(message("missing"))
            for group in ("once", "again"):
                await desk.receive("t", group, batch=1, invisible_ms=10_000)
            desk.advance(10_001)


def expressions() -> list[tuple[str, str]]:
    """Return every query of every panel with its place; variables select everything."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                text = re.sub(r"\$(cluster|node|topic|group)\b", ".*", target["expr"])
                text = text.replace("$__rate_interval", "1m")
                assert "$" not in text, text
                found.append((f"{path.stem}: {panel['title']}", text))
    return found


async def empty(server: Prometheus, wanted: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the expressions that have no series now."""

    def ask() -> list[tuple[str, str]]:
        return [(place, text) for place, text in wanted if not server.query(text)]

    return await asyncio.to_thread(ask)


async def shown(server: Prometheus, wanted: list[tuple[str, str]]) -> None:
    """Wait until every expression has series."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + WITHIN_S
    while wanted:
        with suppress(OSError):  # the server starts
            wanted = await empty(server, wanted)
        assert loop.time() < end_s, wanted
        await asyncio.sleep(0.5)


def active(*names: str) -> list[tuple[str, str]]:
    """Return queries for alerts whose condition holds, whether their `for` has passed or not."""
    return [(name, f'ALERTS{{alertname="{name}"}}') for name in names]


def rule_selectors(server: Prometheus) -> list[tuple[str, str]]:
    """Return every selector of every rule; check that the rules are evaluated without errors."""
    found = []
    for group in server.api("rules")["groups"]:
        for rule in group["rules"]:
            assert rule["health"] in ("ok", "unknown"), rule
            for name, labels in _SELECTOR.findall(rule["query"]):
                # Whether something is dead or refused is not to be seen in a healthy cluster.
                kept = labels.replace('state="dead"', "").replace("{}", "")
                found.append((rule["name"], f"{name}{kept}"))
    assert len(found) > 20
    return found


async def test_panels_show_data_rules_find_their_metrics_and_alerts_tell_a_loss(
    tmp_path: Path,
) -> None:
    program("prometheus")
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(monitored(tmp_path))
        leader, targets = live.leader, live.targets
        server = stack.enter_context(prometheus(tmp_path / "prometheus", targets))
        loading = asyncio.create_task(load(leader, live.proxy))
        try:
            panels = expressions()
            assert len(panels) > 60
            await asyncio.wait(
                {loading, asyncio.create_task(shown(server, panels))},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if loading.done():
                await loading
            await shown(server, panels)
            await shown(server, await asyncio.to_thread(rule_selectors, server))
            await shown(server, [("targets", f"count(up == 1) == {len(targets)}")])
            await shown(server, active(*OF_THE_LOAD))
            lost = active(*OF_A_LOSS)
            end_s = asyncio.get_running_loop().time() + WITHIN_S
            while await empty(server, lost) != lost:
                late = asyncio.get_running_loop().time() > end_s
                assert not late, "every replica is alive"
                await asyncio.sleep(0.5)
            await live.stop(live.follower)
            await shown(server, lost)
        finally:
            loading.cancel()
            with suppress(asyncio.CancelledError):
                await loading
