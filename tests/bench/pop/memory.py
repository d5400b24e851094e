"""Memory of a message in flight: the pop state of one group, and its part of the journal.

`python -m cometmq.tests.bench.pop.memory [--messages N] [--batch N]` delivers messages in batches
and prints the bytes that each one takes while in flight. The bound is 500 per message, for batches
of 32 with the journal. Then every second one is acknowledged, and the others expire.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

from cometmq.broker.journal.core import PopJournal
from cometmq.broker.names.delivery import DeliveryRef, PopOptions
from cometmq.broker.pop.group import PopGroup
from cometmq.tests.bench.rows import Row, show

BOUND_BYTES = 500
BATCH = 32
HIDDEN_MS = 60_000
START_MS = 1_800_000_000_000
QUEUES = 8


def fill(core: PopGroup, messages: int, batch: int, tell: Callable[..., Any] | None) -> None:
    """Deliver a number of messages from the group's queues."""
    now_ms = START_MS
    while messages > 0:
        for queue_id in range(QUEUES):
            queue = core.queues[0, queue_id]
            first = queue.next_read
            offsets = tuple(range(first, first + batch))
            now_ms += 1
            terms = PopOptions(now_ms, HIDDEN_MS, "client@1@2@3")
            core.deliver(queue, offsets, first + batch, terms)
            if tell is not None:
                tell(queue, offsets, terms)
            messages -= batch


def grown(work: Callable[[], object]) -> int:
    """Return the bytes that remain allocated afterwards."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = work()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return after - before


def made(messages: int) -> PopGroup:
    """Make a group with queues at their beginning."""
    core = PopGroup("topic", "group", messages, START_MS)
    for queue_id in range(QUEUES):
        core.add_queue((0, queue_id), 0)
    return core


def with_journal(messages: int, batch: int) -> object:
    """Do the same with a journal that has written nothing: its maximum."""
    core = made(messages)
    journal = PopJournal(stay_ms=1_000, margin_ms=3_000, buffer_max=messages)

    def tell(queue: Any, offsets: tuple[int, ...], terms: PopOptions) -> None:
        book = journal.book(queue.topic, core.group, queue.queue_id)
        journal.delivered(book, offsets, terms.now_ms, terms.invisible_ms, 0)

    fill(core, messages, batch, tell)
    return core, journal


def alone(messages: int, batch: int) -> PopGroup:
    """Measure the pop state alone."""
    core = made(messages)
    fill(core, messages, batch, None)
    return core


def measure(messages: int, batch: int) -> list[Row]:
    """Return all rows for one batch size."""
    rows = []
    for name, work in (("pop state", alone), ("with its journal", with_journal)):
        # A message received alone has its own checkpoint; see docs/performance.md.
        asked = work is alone or batch == BATCH
        size = grown(partial(work, messages, batch)) / messages
        rows.append(
            Row(
                f"{name}, batches of {batch}",
                size,
                "B/message",
                target=f"under {BOUND_BYTES}" if asked else "",
                met=size < BOUND_BYTES if asked else None,
            )
        )
    core = alone(messages, batch)
    begin = time.perf_counter()
    for queue_id in range(QUEUES):
        queue = core.queues[0, queue_id]
        for offset in range(0, queue.next_read, 2):
            core.ack(
                DeliveryRef((0, queue_id), offset, queue.unacked[offset].pop_ms, 1 << 60), START_MS
            )
    acked = time.perf_counter() - begin
    begin = time.perf_counter()
    core.expire(1 << 60, lambda client_id: False)
    expired = time.perf_counter() - begin
    rows += [
        Row(f"acknowledge, batches of {batch}", acked / messages * 2e6, "us/message"),
        Row(f"expire, batches of {batch}", expired / messages * 2e6, "us/message"),
    ]
    return rows


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=0, help="messages of a batch; 0: 32 and 1")
    chosen = parser.parse_args()
    batches = [chosen.batch] if chosen.batch else [BATCH, 1]
    show([row for batch in batches for row in measure(chosen.messages, batch)])


if __name__ == "__main__":
    main()
