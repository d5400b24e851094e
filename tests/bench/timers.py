"""Delayed messages: many due in one second, with concurrent sends.

`python -m cometmq.tests.bench.timers [--quick]` starts a broker for each load and sends the
delayed messages through its door. `loadgen` sends to another topic at a steady rate around the due
time. Then the broker is stopped, and the delay of every delivery copy is read from its store.
Rows: the delay of the last copy, and the sender's p99, counted from the scheduled start of a send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cometmq.proto import v2
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.properties import property_value
from cometmq.store.format.record import decode_delivery
from cometmq.store.message_store import MessageStore

from ..harness.cluster import temporary
from ..harness.wire import Wire
from .rows import Row, show
from .server import ASYNC, LOADGEN, TOPIC

LATER = "later"
QUEUES = 8
BATCH = 100
BODY = os.urandom(1024)
# Delayed messages per second that a broker accepts on a busy machine.
FILL_PER_S = 4_000
SETTLE_S = 4
WINDOW_S = 6
RATE = 300
IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class Load:
    """Parameters of one run."""

    messages: int
    #: They are due evenly over so long; 0: all at the same millisecond.
    spread_ms: int
    #: The issue's words for the last one.
    late_ms: int


LOADS = (Load(20_000, 999, 1_000), Load(20_000, 0, 1_000), Load(100_000, 999, 4_000))


async def fill(address: str, load: Load, due_ms: int) -> None:
    """Send the delayed messages."""
    requests = iter(range(0, load.messages, BATCH))

    async def work(wire: Wire) -> None:
        for begin in requests:
            batch = []
            for n in range(begin, min(begin + BATCH, load.messages)):
                made = v2.Message(topic=v2.Resource(name=LATER), body=BODY)
                made.system_properties.message_id = f"01{n:032d}"
                made.system_properties.message_type = v2.DELAY
                at_ms = due_ms + n * load.spread_ms // load.messages
                made.system_properties.delivery_timestamp.FromMilliseconds(at_ms)
                batch.append(made)
            while True:  # the send queue can be full temporarily
                answer = await wire.send(batch, within_s=30)
                if answer.status.code == v2.OK:
                    break
                if answer.status.code != v2.TOO_MANY_REQUESTS:
                    raise RuntimeError(answer.status.message)
                await asyncio.sleep(0.05)

    async with Wire(address) as wire:
        await asyncio.gather(*(work(wire) for _ in range(IN_FLIGHT)))


def sender(address: str, pid: int) -> dict[str, Any]:
    """Send at a steady rate around the due time; return loadgen's result."""
    done = subprocess.run(
        [
            *(str(LOADGEN), "-endpoint", address, "-pid", str(pid), "-topic", TOPIC),
            *("-rate", str(RATE), "-inflight", "64", "-seconds", str(WINDOW_S), "-warm", "1"),
        ],
        capture_output=True,
        text=True,
        timeout=WINDOW_S + 60,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lateness(root: Path) -> list[int]:
    """Return how late each copy was stored, in ms; negative would be early."""
    store = MessageStore(StoreConfig(str(root)), lambda: 0)
    store.open()
    late = []
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            found = store.get(LATER, queue_id, offset, 1_000, 1 << 28)
            for stored in found.records:
                record = decode_delivery(stored.data)
                due_ms = int(property_value(record.properties, b"TIMER_DELIVER_MS"))
                late.append(record.store_timestamp_ms - due_ms)
            if found.next_offset <= offset:
                break
            offset = found.next_offset
    store.close()
    return late


def run(load: Load) -> list[Row]:
    """Run one load on a new broker."""
    with temporary("--single", *ASYNC) as cluster:
        node, address = cluster.node("master"), cluster.address("master")
        cluster.create_topic(TOPIC)
        alone = sender(address, node.pid)
        cluster.create_topic(LATER, kind="delay", queues=QUEUES)
        ahead_s = load.messages / FILL_PER_S + SETTLE_S + 2
        due_ms = int(time.time() + ahead_s) * 1000
        asyncio.run(fill(address, load, due_ms))
        left_s = due_ms / 1000 - time.time()
        if left_s < SETTLE_S / 2:
            raise RuntimeError(f"filling took {ahead_s - left_s:.1f} s: the machine is too busy")
        time.sleep(left_s - SETTLE_S / 2)
        found = sender(address, node.pid)
        time.sleep(1)
        cluster.stop()
        late = lateness(node.data / "store")
    words = f"{load.messages:,} due " + ("in one second" if load.spread_ms else "at one moment")
    if len(late) != load.messages or min(late) < 0:  # lost, repeated, or early
        raise RuntimeError(f"{words}: {len(late)} came, the first {min(late)} ms late")
    late.sort()
    return [
        Row(
            f"{words}: the last one is late by",
            late[-1],
            "ms",
            f"half of them by {late[len(late) // 2]} ms",
            None,
            f"at most {load.late_ms} ms",
            late[-1] <= load.late_ms,
        ),
        Row(
            f"{words}: a sender's p99 meanwhile",
            float(found["p99_ms"]),
            "ms",
            f"alone {alone['p99_ms']} ms; p50 {found['p50_ms']} ms at {RATE}/s, "
            f"{found['errors']} errors",
            None,
            "below 50 ms",
            float(found["p99_ms"]) < 50 and not found["errors"],
        ),
    ]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the smallest load only")
    loads = LOADS[:1] if parser.parse_args().quick else LOADS
    show([row for load in loads for row in run(load)])


if __name__ == "__main__":
    main()
