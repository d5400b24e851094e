"""Cost of the store: append with dispatch against the record codec, and group commit.

Prints one JSON line. All figures come from one run, in alternating pairs, so that a busy machine
slows both sides of a ratio; medians of the pairs are printed.

* `codec_us`: `encode` of a message with a body of 1 KiB, the bound.
* `append_us`: the same messages through `append_many` in batches, with `dispatch` to the consume
  queues after every batch (page-cache mode: no wait for the disk; no index, see store_index).
* `ratio`: codec_us / append_us; the target is 0.45.
* `copy_us`: a plain copy of the same bytes into a map of the same segment.
* `records_per_fdatasync`: SYNC_FLUSH with 64 senders that each wait for their record before the
  next send; counted, not timed; the target is 8.

Every round has a new store, and the previous one is deleted, so that the page cache reuses pages,
as on a machine that has run for a while.
"""

import argparse
import json
import mmap
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import Message, encode, encode_properties, pack_host
from cometmq.store.message_store import MessageStore
from cometmq.tests.store.heard import Heard

BODY_BYTES = 1024
QUEUES = 8
NOW_MS = 1_700_000_000_000


def messages(count: int) -> list[Message]:
    host = pack_host("127.0.0.1", 10911)
    return [
        Message(
            "TopicTest",
            index % QUEUES,
            os.urandom(BODY_BYTES),
            encode_properties(
                {
                    "UNIQ_KEY": f"{index:032X}",
                    "KEYS": f"order-{index}",
                    "TAGS": f"Tag{index % 5}",
                    "region": "eu",
                }
            ),
            born_timestamp_ms=NOW_MS,
            born_host=host,
            store_host=host,
        )
        for index in range(count)
    ]


def timed(work: Callable[[], None], count: int) -> float:
    """Return microseconds of this thread's CPU per record."""
    begin = thread_time_ns()
    work()
    return (thread_time_ns() - begin) / 1000 / count


def one_round(batches: list[list[Message]], count: int, root: Path) -> tuple[float, float, float]:
    config = StoreConfig(
        str(root), mapped_file_size_commit_log=256 << 20, message_index_enable=False
    )
    store = MessageStore(config, lambda: NOW_MS)
    store.open()
    store.start()

    def codec() -> None:
        for batch in batches:
            for index, message in enumerate(batch):
                encode(message, index, index, NOW_MS)

    def append() -> None:
        for batch in batches:
            store.writer.append_many(batch)
            store.writer.dispatch(store.log_end)

    codec_us = timed(codec, count)
    append_us = timed(append, count)
    assert store.dispatched_offset == store.log_end
    copy_us = copy_cost(store, root / "commitlog" / f"{0:020d}", count)
    store.close()
    shutil.rmtree(root)
    return codec_us, append_us, copy_us


def copy_cost(store: MessageStore, path: Path, count: int) -> float:
    size = store.log_end // count
    parts = [store.read_log(index * size, size) for index in range(count)]
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as target:

        def copy() -> None:
            position = 0
            for part in parts:
                end = position + len(part)
                target[position:end] = part
                position = end

        return timed(copy, count)


class Sender(threading.Thread):
    """The loop of a broker: appends records of its senders, releases them when flushed."""

    def __init__(self, root: Path, senders: int, records: int) -> None:
        super().__init__()
        config = StoreConfig(
            str(root),
            mapped_file_size_commit_log=64 << 20,
            flush_disk_type="SYNC_FLUSH",
            message_index_enable=False,
        )
        self.heard = Heard()
        self.store = MessageStore(config, lambda: NOW_MS, events=self.heard)
        self.senders = senders
        self.records = records
        self.flushed = threading.Event()

    def run(self) -> None:
        store = self.store
        self.heard.flushed = lambda _offset: self.flushed.set()
        store.open()
        store.start()
        sample = messages(self.senders)
        waiting: list[tuple[int, Message]] = []  # end of the record, its sender
        ready = list(sample)
        sent = 0
        while sent < self.records:
            while ready:  # one append per turn: as if senders arrived separately
                message = ready.pop()
                waiting.append((store.writer.append_many([message])[0].end, message))
                sent += 1
            self.flushed.wait(5)
            self.flushed.clear()
            done = store.flushed_offset
            ready += [message for end, message in waiting if end <= done]
            waiting = [pair for pair in waiting if pair[0] > done]
        self.flushes = store._threads.rounds
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", default=None, help="where the stores are made")
    options = parser.parse_args()
    count = options.records // options.batch * options.batch
    all_messages = messages(count)
    batches = [all_messages[i : i + options.batch] for i in range(0, count, options.batch)]
    folder = Path(tempfile.mkdtemp(prefix="store-append-", dir=options.directory))
    try:
        one_round(batches, count, folder / "warm")
        rounds = [one_round(batches, count, folder / str(i)) for i in range(options.rounds)]
        sender = Sender(folder / "sync", senders=64, records=6400)
        sender.start()
        sender.join()
    finally:
        shutil.rmtree(folder)
    codec_us, append_us, copy_us = (statistics.median(r[i] for r in rounds) for i in range(3))
    figures = {
        "benchmark": "store_append",
        "batch": options.batch,
        "codec_us": round(codec_us, 3),
        "append_us": round(append_us, 3),
        "copy_us": round(copy_us, 3),
        "codec_per_second": round(1e6 / codec_us),
        "append_per_second": round(1e6 / append_us),
        "ratio": round(statistics.median(r[0] / r[1] for r in rounds), 3),
        "ratio_target": 0.45,
        "copy_ratio": round(statistics.median(r[2] / r[1] for r in rounds), 3),
        "sync_senders": 64,
        "sync_flushes": sender.flushes,
        "records_per_fdatasync": round(sender.records / sender.flushes, 1),
        "records_per_fdatasync_target": 8,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
