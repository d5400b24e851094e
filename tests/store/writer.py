"""A process that appends until it is killed: `python writer.py DIRECTORY MODE SEED`, with MODE
sync, async, pool or retention.

Prints `END BODY-NUMBER` for everything that it was promised: in sync mode what was flushed, in
async mode what was appended (the page cache survives the process), with the transient pool what was
committed. With retention, old segments are deleted all the time, beside queues that nothing else
flushes; what was flushed is promised once the first is deleted. The checker is `test_kill.py`.
"""

from __future__ import annotations

import os
import random
import sys
import time

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import Message, encode_properties
from cometmq.store.message_store import MessageStore
from cometmq.tests.store.retention_kit import HOUR, LATER_MS, rounds

FLUSHED = ("sync", "retention")
#: Queue units stay in memory until retention wants their segments.
SELDOM_MS = 3_600_000


def body_of(number: int) -> bytes:
    """Any body can be checked from its number alone."""
    return f"{number:08d}".encode() + random.Random(number).randbytes(number * 7919 % 3000)


def message_of(number: int) -> Message:
    return Message(
        f"Topic{number % 3}",
        number % 4,
        body_of(number),
        encode_properties({"UNIQ_KEY": f"{number:032x}", "TAGS": f"T{number % 5}"}),
    )


def main() -> None:
    directory, mode, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rng = random.Random(seed)
    config = StoreConfig(
        directory,
        mapped_file_size_commit_log=256 << 10,
        mapped_file_size_consume_queue=2000,
        flush_disk_type="SYNC_FLUSH" if mode in FLUSHED else "ASYNC_FLUSH",
        transient_store_pool_enable=mode == "pool",
        commit_interval_commit_log=10,
        commit_commit_log_thorough_interval=10,
        flush_interval_consume_queue=SELDOM_MS if mode == "retention" else 20,
        flush_consume_queue_thorough_interval=100,
        delete_commit_log_files_interval=0,
    )
    store = MessageStore(config, lambda: time.time_ns() // 1_000_000)
    store.open()
    number = 0
    while store.dispatched_offset < store.log_end:
        number += len(store.writer.dispatch(store.log_end))
    number = sum(store.writer.next_offset(topic, queue_id) for topic, queue_id in store.queues())
    store.start()
    first = store.log_start
    promised: list[tuple[int, int]] = []
    while True:
        batch = [message_of(number + i) for i in range(rng.randrange(1, 64))]
        results = store.writer.append_many(batch)
        number += len(batch)
        promised.append((results[-1].end, number))
        store.writer.dispatch(store.log_end)
        if mode == "retention":
            if store.log_start > first:
                store.retention.step(LATER_MS, HOUR)
            else:
                rounds(store)  # the clock of the kill starts when a file is deleted
                if store.log_start == first:
                    continue
        limit = store.flushed_offset if mode in FLUSHED else store.log_end
        lines = [f"{end} {count}\n" for end, count in promised if end <= limit]
        del promised[: len(lines)]
        os.write(1, "".join(lines).encode())


if __name__ == "__main__":
    main()
