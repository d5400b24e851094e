"""Cost of recovery: an abnormal start that rebuilds all queues, and the scanner's walk alone.

Prints rows. All figures come from one run: CPU time of this process, in rounds that alternate
between bound, walks and recovery; medians are printed. The log is in the page cache.

* bound: one CRC-32 for the body of every record in a fresh map of the segment, positions known.
* recovery: `MessageStore.open` after a kill, without a checkpoint: walk with checksums, decide,
  drop all queue units and write them again.
* walk: all columns of all records, without and with checksums.
* dispatch: arrivals parsed from the log, for a follower that catches up, against one record at a
  time.
"""

from __future__ import annotations

import argparse
import mmap
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time_ns
from zlib import crc32

from cometmq.store import dispatch as dispatch_module
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.scan.walk import walk
from cometmq.tests.bench.rows import Row, show
from cometmq.tests.bench.store.append import NOW_MS, messages

BATCH = 512
RECOVERY_TARGET = 400
BOUND_PART = 0.7


def seconds(work: Callable[[], object]) -> float:
    begin = process_time_ns()
    work()
    return (process_time_ns() - begin) / 1e9


def make(config: StoreConfig, size: int) -> None:
    """Make a store as a killed process leaves it."""
    store = MessageStore(config, lambda: NOW_MS)
    store.open()
    store.start()
    batch = messages(BATCH)
    while store.log_end < size - (2 << 20):
        store.writer.append_many(batch)
        store.writer.dispatch(store.log_end, BATCH)
    store.close()
    (config.root / "checkpoint").unlink()
    (config.root / "abort").touch()


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map the file as recovery does: a fresh map, pages in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            yield view
        finally:
            view.release()


def columns(path: Path, *, check_crc: bool) -> list[tuple[int, int]]:
    """Return the positions of the bodies."""
    bodies: list[tuple[int, int]] = []
    with mapped(path) as data:
        for batch in walk(data, 0, 0, len(data), check_crc=check_crc):
            ends = batch.body_start + batch.body_length
            bodies += zip(batch.body_start.tolist(), ends.tolist(), strict=True)
    return bodies


def read_and_check(path: Path, bodies: list[tuple[int, int]]) -> None:
    with mapped(path) as data:
        for begin, end in bodies:
            crc32(data[begin:end])


def walk_only(path: Path, *, check_crc: bool) -> None:
    with mapped(path) as data:
        for _ in walk(data, 0, 0, len(data), check_crc=check_crc):
            pass


def recover(config: StoreConfig) -> None:
    store = MessageStore(config, lambda: NOW_MS)
    report = store.open()
    assert not report.clean
    assert report.units_rebuilt == report.records_scanned
    store.close()


def parse(config: StoreConfig, least_bytes: int) -> float:
    """Return microseconds per arrival, 10,000 at a time."""
    store = MessageStore(config, lambda: NOW_MS)
    store.open()
    kept, dispatch_module.BULK_BYTES_MIN = dispatch_module.BULK_BYTES_MIN, least_bytes  # type: ignore[misc]
    try:
        begin, count, spent = 0, 0, 0.0
        while count < 50_000 and begin < store.log_end:
            start = process_time_ns()
            arrivals, begin = store._dispatcher.parse(begin, store.log_end, 10_000)
            spent += (process_time_ns() - start) / 1000
            count += len(arrivals)
    finally:
        dispatch_module.BULK_BYTES_MIN = kept  # type: ignore[misc]
        store.close()
    return spent / count


def rows(config: StoreConfig, rounds: int) -> list[Row]:
    path = config.commit_log_directory / f"{0:020d}"
    bodies = columns(path, check_crc=True)
    recover(config)
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, work in (
            ("bound", lambda: read_and_check(path, bodies)),
            ("recovery", lambda: recover(config)),
            ("walk", lambda: walk_only(path, check_crc=False)),
            ("checked", lambda: walk_only(path, check_crc=True)),
        ):
            figures.setdefault(name, []).append(seconds(work))
    size = bodies[-1][1] / 1e6
    speed = {name: size / statistics.median(spent) for name, spent in figures.items()}
    ratios = {
        name: statistics.median(b / s for b, s in zip(figures["bound"], spent, strict=True))
        for name, spent in figures.items()
    }
    bound = f"read and CRC a record {speed['bound']:.0f} MB/s"
    found = [
        Row(
            "store: abnormal recovery of 1 KiB messages, queues rebuilt",
            speed["recovery"],
            "MB/s",
            bound,
            ratios["recovery"],
            "at least 400 MB/s a core, or 70 % of the bound",
            speed["recovery"] >= RECOVERY_TARGET or ratios["recovery"] >= BOUND_PART,
        ),
        Row("store: walk with checksums", speed["checked"], "MB/s", bound, ratios["checked"]),
        Row("store: walk, all columns", speed["walk"], "MB/s", bound, ratios["walk"]),
    ]
    plain, bulk = parse(config, 1 << 60), parse(config, dispatch_module.BULK_BYTES_MIN)
    found.append(
        Row(
            "store: arrivals out of the log, 10,000 at a time",
            bulk,
            "us",
            f"record by record {plain:.2f} us",
            plain / bulk,
        )
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256, help="size of the log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where the store is made")
    options = parser.parse_args()
    size = options.mebibytes << 20
    folder = Path(tempfile.mkdtemp(prefix="store-recovery-", dir=options.directory))
    try:
        config = StoreConfig(str(folder / "store"), mapped_file_size_commit_log=size)
        make(config, size)
        show(rows(config, options.rounds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
