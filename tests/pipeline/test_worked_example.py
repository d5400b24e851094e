"""The programs of docs/pipeline.md: a report, an archive, a replay, the report again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.testing.broker import TestBroker
from cometmq.pipeline.archive.gate import get_watermark
from cometmq.pipeline.archive.planning import snapshot
from cometmq.pipeline.source.options import Access
from cometmq.tests.harness.cluster import wait_until

pytestmark = pytest.mark.timeout(900)

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipeline.md"


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def test_the_worked_example(spark: Any, broker: TestBroker, tmp_path: Path) -> None:
    for name in ("orders", "orders-again"):
        broker.create_topic(name, type="normal", queues=4)
    store = next(broker.directory.rglob("commitlog")).parent
    said: dict[str, Any] = {}
    for number, program in enumerate(programs()):
        if "ArchivePlan" in program:
            end = get_watermark(Access(broker.endpoints)).log_end
            wait_until("all of it is confirmed", lambda end=end: snapshot(str(store)).end >= end)
        exec(compile(program, f"docs/pipeline.md, program {number}", "exec"), said)
        if "ENDPOINT =" in program:
            said |= {"ENDPOINT": broker.endpoints, "STORE": str(store), "FOLDER": str(tmp_path)}
    assert said["replayed"].summary["sent"] == 200
    right = {
        country: (
            round(sum(1000 + n for n in range(200) if n % 3 == place) / 100, 2),
            len(range(place, 200, 3)),
        )
        for place, country in enumerate(("de", "fr", "it"))
    }
    assert said["right"] == right
    assert said["wrong"] == {name: (round(euros * 10, 2), n) for name, (euros, n) in right.items()}
