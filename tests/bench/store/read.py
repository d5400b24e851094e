"""Sequential reading of one queue through `MessageStore.get`, messages of 128 bytes.

Prints rows. Every figure is CPU time of the reading thread, all from one run and alternating, so
that a busy machine slows figure and bound alike; medians of the rounds are printed.

* batches of 32 as the broker requests them (its own byte limit), and with RocketMQ's limits;
* one record per call, as for an acknowledgement that reads its message;
* a filter that one of five messages matches: messages checked per second;
* the bound: a plain copy of the same records out of the map, in one loop without any check.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.properties import java_hash
from cometmq.store.format.record import Message, encode_properties, pack_host
from cometmq.store.message_store import MessageStore
from cometmq.tests.bench.rows import Row, show

NOW_MS = 1_700_000_000_000
BODY_BYTES = 128
ANSWER_BYTES = 4 << 20
TOPIC = "TopicTest"
TARGET = 300_000


def filled(root: Path, count: int) -> MessageStore:
    """Make a store with `count` messages in one queue, reopened: units come from files."""
    config = StoreConfig(str(root), mapped_file_size_commit_log=256 << 20)
    store = MessageStore(config, lambda: NOW_MS)
    store.open()
    store.start()
    host = pack_host("127.0.0.1", 10911)
    for first in range(0, count, 1000):
        batch = [
            Message(
                TOPIC,
                0,
                f"{index}".encode().ljust(BODY_BYTES, b"."),
                encode_properties({"UNIQ_KEY": f"{index:032X}", "TAGS": f"Tag{index % 5}"}),
                born_timestamp_ms=NOW_MS,
                born_host=host,
                store_host=host,
            )
            for index in range(first, first + 1000)
        ]
        store.writer.append_many(batch)
        store.writer.dispatch(store.log_end)
    store.close()
    store = MessageStore(config, lambda: NOW_MS)
    store.open()
    store.start()
    return store


def read_all(
    store: MessageStore, count: int, batch: int, max_bytes: int | None, tags: frozenset[int] | None
) -> None:
    offset = found = 0
    while offset < count:
        result = store.get(TOPIC, 0, offset, batch, max_bytes, tag_codes=tags)
        found += len(result.records)
        offset = result.next_offset
    assert found == (count // 5 if tags else count), found


def rate(count: int, work: Callable[[], None]) -> float:
    """Return messages per second of this thread's CPU."""
    begin = thread_time_ns()
    work()
    return count * 1e9 / (thread_time_ns() - begin)


def copies(store: MessageStore, count: int) -> Callable[[], None]:
    """Copy slices of the same records out of the map."""
    records = store.get(TOPIC, 0, 0, count, 1 << 40).records
    places = [(r.physical_offset, r.physical_offset + len(r.data)) for r in records]
    data = store.log.segments[0].map

    def copy() -> None:
        kept = []
        for begin, end in places:
            kept.append(data[begin:end])

    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", default=None, help="where the store is made")
    options = parser.parse_args()
    count = options.records // 1000 * 1000
    folder = Path(tempfile.mkdtemp(prefix="store-read-", dir=options.directory))
    try:
        store = filled(folder, count)
        tag = frozenset({java_hash("Tag3")})
        works: list[Callable[[], None]] = [
            copies(store, count),
            lambda: read_all(store, count, 32, ANSWER_BYTES, None),
            lambda: read_all(store, count, 32, None, None),
            lambda: read_all(store, count, 1, ANSWER_BYTES, None),
            lambda: read_all(store, count, 32, ANSWER_BYTES, tag),
        ]
        rounds = [[rate(count, work) for work in works] for _ in range(options.rounds)]
        store.close()
    finally:
        shutil.rmtree(folder)
    bare, broker, limited, single, filtered = (
        statistics.median(figures[i] for figures in rounds) for i in range(len(works))
    )
    bound = f"bare copies {bare:,.0f}/s"
    show(
        [
            Row(
                "store: read a queue, 128 bytes, batches of 32",
                broker,
                "messages/s",
                bound,
                broker / bare,
                "at least 300,000/s",
                broker >= TARGET,
            ),
            Row("store: the same with RocketMQ's limits", limited, "messages/s", bound),
            Row("store: the same, one a call", single, "messages/s", bound),
            Row("store: the same, one of five matches a tag", filtered, "messages/s", bound),
        ]
    )


if __name__ == "__main__":
    main()
