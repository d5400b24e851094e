"""The console with 1,000 topics and 500 consumer groups: calls and bytes of a page are bounded.

Durations depend on the machine, so the test counts: the calls of each page to the broker, by the
broker's own metrics, and the size of its answer. `docs/console.md` has measured times.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.request import urlopen

from cometmq.tests.broker.live import create_group, create_topic, running, settings
from cometmq.tests.console.served import serve, told
from cometmq.tests.harness.cluster import wait_until

TOPICS, GROUPS, AT_ONCE = 1_000, 500, 50
#: Calls of one page with any number of objects: lists, counts of the rows shown, names of broker
#: groups; and those of the overview within the time of the page.
CALLS_MAX = 20
#: Bytes of a page: 50 rows and the frame.
BYTES_MAX = 32_000
PAGES = (
    *("/", "/topics", "/topics?q=many-0999", "/topics?page=20", "/topics/many-0500", "/groups"),
    *("/groups?sort=lag", "/groups/crowd-250", "/messages?topic=many-0001", "/dead-letters"),
    *("/timers", "/ha", "/store", "/clients", "/users", "/audit", "/configuration"),
)
_COUNT = re.compile(r"^rocketmq_rpc_latency_milliseconds_count\{[^}]*\} ([0-9.e+]+)$", re.M)


def calls_of(metrics: str) -> float:
    """Return the calls that a broker has answered, from its metrics page at HOST:PORT."""
    with urlopen(f"http://{metrics}/metrics", timeout=60) as page:
        return sum(map(float, _COUNT.findall(page.read().decode())))


async def test_a_page_asks_and_answers_as_little_with_many_topics_and_groups(
    tmp_path: Path,
) -> None:
    async with running(settings(tmp_path / "broker")) as live:
        async with live.client() as wire:
            for n in range(0, TOPICS, AT_ONCE):
                names = [f"many-{one:04d}" for one in range(n, n + AT_ONCE)]
                await asyncio.gather(*(create_topic(wire, name, queues=1) for name in names))
            for n in range(0, GROUPS, AT_ONCE):
                names = [f"crowd-{one:03d}" for one in range(n, n + AT_ONCE)]
                await asyncio.gather(*(create_group(wire, name) for name in names))
        await asyncio.to_thread(check_pages, tmp_path, live.bound.client, live.bound.metrics)


def check_pages(folder: Path, endpoint: str, metrics: str) -> None:
    with serve(folder, endpoint) as console:
        wait_until("the cluster is read", lambda: "500 groups" in told(console.get("/")))
        assert "1,000 topics" in told(console.get("/topics?q=many-"))
        assert calls_of(metrics) > 0
        for path in PAGES:
            before = calls_of(metrics)
            page = console.get(path)
            assert calls_of(metrics) - before <= CALLS_MAX, path
            assert len(page.encode()) <= BYTES_MAX, path
