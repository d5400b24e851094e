"""Cost of the index: append with dispatch and index against the record codec, in one run.

The native crate reads the entries if it is installed; `COMETMQ_NATIVE=off` measures NumPy.

Messages have a body of 1 KiB, a UNIQ_KEY, one KEY and a tag: three entries each. Sides of a ratio
alternate; medians of the rounds are printed.

* `encode` is the bound for `append_many` in batches, `dispatch` after every batch, and the index
  in its own batches: the target is 0.25.
* A dispatch call that indexes a batch is the longest wait of the loop: it should stay under 5 ms.
* A full file is written every 20,000,000 entries; until then its slots are in memory.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns

from cometmq.proto import native
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.disk import Disk
from cometmq.store.format.index_file import USUAL_LAYOUT, IndexHeader
from cometmq.store.format.index_writer import IndexWriter
from cometmq.store.format.record import Message, encode
from cometmq.store.message_store import MessageStore
from cometmq.store.native_parts import NativeParts
from cometmq.tests.bench.rows import Row, show
from cometmq.tests.bench.store.append import NOW_MS, messages

Batches = list[list[Message]]
RATIO_TARGET = 0.25


def microseconds(work: Callable[[], None]) -> float:
    begin = thread_time_ns()
    work()
    return (thread_time_ns() - begin) / 1000


def codec(batches: Batches) -> None:
    for batch in batches:
        for index, message in enumerate(batch):
            encode(message, index, index, NOW_MS)


def run_store(batches: Batches, root: Path, indexed: bool) -> tuple[float, list[float]]:
    """Return total microseconds, and milliseconds of each dispatch call."""
    config = StoreConfig(
        str(root), mapped_file_size_commit_log=256 << 20, message_index_enable=indexed
    )
    crate = native.load()
    entries = None if crate is None else crate.index_entries
    store = MessageStore(config, lambda: NOW_MS, native=NativeParts(index_entries=entries))
    store.open()
    store.start()
    steps: list[float] = []

    def work() -> None:
        for batch in batches:
            store.writer.append_many(batch)
            begin = thread_time_ns()
            store.writer.dispatch(store.log_end)
            steps.append((thread_time_ns() - begin) / 1e6)

    total = microseconds(work)
    assert store.dispatched_offset == store.log_end
    assert not indexed or store.index.behind < store.log_end // 8
    store.close()
    shutil.rmtree(root)
    return total, steps


def full_file_ms(path: Path) -> float:
    writer = IndexWriter(str(path), USUAL_LAYOUT, IndexHeader(), Disk(), create=True)
    writer._slots[:] = 1
    writer._changed[:] = True
    took = microseconds(writer.write_out) / 1000
    writer.close()
    path.unlink()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=24_576)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", default=None, help="where the stores are made")
    options = parser.parse_args()
    count = options.records // options.batch * options.batch
    everything = messages(count)
    batches = [everything[i : i + options.batch] for i in range(0, count, options.batch)]
    folder = Path(tempfile.mkdtemp(prefix="store-index-", dir=options.directory))
    rounds: list[tuple[float, float, float]] = []
    longest: list[float] = []
    try:
        run_store(batches, folder / "warm", indexed=True)
        for number in range(options.rounds):
            bound = microseconds(lambda: codec(batches))
            indexed, steps = run_store(batches, folder / f"i{number}", indexed=True)
            plain, _ = run_store(batches, folder / f"p{number}", indexed=False)
            rounds.append((bound, indexed, plain))
            longest += sorted(steps)[-(count // 2048) :]
        full_ms = statistics.median(full_file_ms(folder / "1") for _ in range(3))
    finally:
        shutil.rmtree(folder)
    codec_us, indexed_us, plain_us = (
        statistics.median(row[i] for row in rounds) / count for i in range(3)
    )
    ratio = statistics.median(row[0] / row[1] for row in rounds)
    step_ms = statistics.median(longest)
    show(
        [
            Row(
                "store: append, dispatch and index 1 KiB, three keys",
                round(indexed_us, 3),
                "us",
                f"record codec {codec_us:.3f} us, without index {plain_us:.3f} us",
                round(ratio, 3),
                "at least 25 % of the codec's rate",
                ratio >= RATIO_TARGET,
            ),
            Row(
                "store: a dispatch call that indexes a batch",
                round(step_ms, 2),
                "ms CPU",
                f"longest {max(longest):.2f} ms",
            ),
            Row("store: writing out a full index file", round(full_ms, 1), "ms CPU"),
        ]
    )


if __name__ == "__main__":
    main()
