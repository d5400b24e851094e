"""A message whose record is damaged: consumers go on, and every view of the broker names it."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from dataclasses import replace
from pathlib import Path

from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import decode
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.live import settings, until
from cometmq.tests.broker.metrics.test_observed import fetch
from cometmq.tests.harness.cluster import cometmq_command
from cometmq.tests.harness.wire import Wire
from cometmq.tests.store.damage import Place, flip

COUNT = 60
DAMAGED = 7
FIRST_SEGMENT = "commitlog/00000000000000000000"


async def test_a_damaged_record_is_named_by_probe_metrics_group_and_verify(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    small = replace(chosen.store, mapped_file_size_commit_log=16 << 10)
    async with desk(tmp_path, replace(chosen, store=small)) as k:
        k.topic("T")
        k.group("g")
        await k.sent("T", *(b"%03d" % n + b"." * 200 for n in range(COUNT)))
        store = k.node.store
        found = store.get("T", 0, DAMAGED, 1).records[0]
        assert found.physical_offset < small.mapped_file_size_commit_log
        at = found.data.index(decode(found.data).body)
        flip(Place(tmp_path / FIRST_SEGMENT, found.physical_offset + at, 1 << 20))
        bodies: set[bytes] = set()

        async def receive() -> bool:
            answer = await k.receive("T", "g", k.context(remaining_ms=200))
            bodies.update(each.body[:3] for each in answer.messages)
            return len(bodies) == COUNT - 1

        for _ in range(200):
            if await receive():
                break
            await asyncio.sleep(0.02)
        assert bodies == {b"%03d" % n for n in range(COUNT) if n != DAMAGED}
        await until(lambda: len(store.blocks.gaps) == 1)
        code, text = await fetch(k.live, "/readyz")
        line = f"message missing: topic=T queue=0 offset={DAMAGED} file={FIRST_SEGMENT}"
        check = json.loads(text)["checks"]["messages"]
        assert (code, check["state"], check["reason"]) == (200, "degraded", line)
        _, metrics = await fetch(k.live, "/metrics")
        (sample,) = [m for m in metrics.splitlines() if m.startswith("cometmq_store_missing_mess")]
        assert float(sample.rpartition(" ")[2]) == 1
        async with Wire(k.live.bound.client, "c@1", "PYTHON") as wire:
            request = v1.DescribeGroupRequest(name="g")
            answer = await wire.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
        assert answer.code == v2.OK
        missing = [(q.topic, m.offset, m.file) for q in answer.queues for m in q.missing]
        assert missing == [("T", DAMAGED, FIRST_SEGMENT)]
        described = await command(
            "group", "describe", "g", "--endpoint", k.live.bound.client, "-o", "json"
        )
        (row,) = json.loads(described)["missing"]
        named = row["topic"], row["queue"], row["missing_offset"], row["file"]
        assert named == ("T", 0, DAMAGED, FIRST_SEGMENT)
    verified = await command("store", "verify", str(tmp_path), "-o", "json", code=5)
    (problem,) = json.loads(verified)["problems"]
    assert problem["file"] == FIRST_SEGMENT
    assert f"message {DAMAGED} of queue T/0" in problem["what"]


async def command(*words: str, code: int = 0) -> str:
    """Run the command line; return its output."""
    running = await asyncio.create_subprocess_exec(
        *cometmq_command(), *words, stdout=PIPE, stderr=PIPE
    )
    output, errors = await running.communicate()
    assert running.returncode == code, (output, errors)
    return output.decode()
