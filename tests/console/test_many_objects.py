"""The console with 1,000 topics, 500 consumer groups and 2,500 consumers: what a page costs.

Durations depend on the machine, so the test counts: the calls of each page to the broker, by the
broker's own metrics, and the size of its answer; then the memory of the process that has answered
every page. `python -m cometmq.tests.bench.console_pages` measures durations.
"""

from __future__ import annotations

import asyncio
import copy
import re
from pathlib import Path
from urllib.request import urlopen

import psutil

from cometmq.proto import paths, v2
from cometmq.tests.broker.live import Live, create_group, create_topic, running, settings
from cometmq.tests.console.served import serve, told
from cometmq.tests.harness.cluster import wait_until
from cometmq.tests.harness.wire import Wire

TOPICS, GROUPS, CONSUMERS, AT_ONCE = 1_000, 500, 2_500, 50
#: Most of the consumers are in one group, as in a large deployment.
LARGEST = "crowd-250"
#: Calls of one page with any number of objects: lists, counts of the rows shown, names of broker
#: groups; and those of the overview within the time of the page.
CALLS_MAX = 20
#: Bytes of a page: 50 rows and the frame.
BYTES_MAX = 32_000
#: Resident memory of the console: the interpreter with gRPC and Starlette is 66 MB.
RESIDENT_BYTES_MAX = 120 << 20
PAGES = (
    *("/", "/topics", "/topics?q=many-0999", "/topics?page=20", "/topics/many-0500", "/groups"),
    *("/groups?sort=lag", "/groups/crowd-250", "/messages?topic=many-0001", "/dead-letters"),
    *("/timers", "/ha", "/store", "/clients", "/clients?page=50", "/clients?q=consumer-2499"),
    *("/users", "/audit", "/configuration"),
)
_COUNT = re.compile(r"^rocketmq_rpc_latency_milliseconds_count\{[^}]*\} ([0-9.e+]+)$", re.M)


def calls_of(metrics: str) -> float:
    """Return the calls that a broker has answered, from its metrics page at HOST:PORT."""
    with urlopen(f"http://{metrics}/metrics", timeout=60) as page:
        return sum(map(float, _COUNT.findall(page.read().decode())))


async def populate(live: Live) -> None:
    """Create the topics and the groups, and let the consumers join."""
    async with live.client() as wire:
        for n in range(0, TOPICS, AT_ONCE):
            names = [f"many-{one:04d}" for one in range(n, n + AT_ONCE)]
            await asyncio.gather(*(create_topic(wire, name, queues=1) for name in names))
        for n in range(0, GROUPS, AT_ONCE):
            names = [f"crowd-{one:03d}" for one in range(n, n + AT_ONCE)]
            await asyncio.gather(*(create_group(wire, name) for name in names))
        for n in range(0, CONSUMERS, AT_ONCE):
            await asyncio.gather(*(beat(wire, one) for one in range(n, n + AT_ONCE)))


async def test_a_page_asks_and_answers_as_little_with_many_topics_and_groups(
    tmp_path: Path,
) -> None:
    async with running(settings(tmp_path / "broker")) as live:
        await populate(live)
        await asyncio.to_thread(check_pages, tmp_path, live.bound.client, live.bound.metrics)


async def beat(wire: Wire, number: int) -> None:
    """Let one consumer join its group: every second one that of `LARGEST`."""
    own = copy.copy(wire)  # the connection is shared, the metadata are its own
    own.metadata = (("x-mq-client-id", f"consumer-{number:04d}"), *wire.metadata[1:])
    group = LARGEST if number % 2 else f"crowd-{number % GROUPS:03d}"
    request = v2.HeartbeatRequest(client_type=v2.PUSH_CONSUMER, group=v2.Resource(name=group))
    answer = await own.call(paths.HEARTBEAT, request, v2.HeartbeatResponse)
    assert answer.status.code == v2.OK, answer.status


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
        assert "2,500 connected clients" in told(console.get("/clients"))
        assert "1 connected client" in told(console.get("/clients?q=consumer-2499"))
        assert "50 of 1,255 clients" in told(console.get(f"/groups/{LARGEST}"))
        assert psutil.Process(console.pid).memory_info().rss <= RESIDENT_BYTES_MAX
