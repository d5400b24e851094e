"""Cost of `store verify`: all its checks, against one CRC-32 per record.

Prints rows. All figures come from one run: CPU time of this process, in rounds that alternate
between bound and verification; medians are printed. The log is in the page cache.

* bound: one CRC-32 for the body of every record in a fresh map of the segment, positions known.
* verify: log, queues, properties and everything else; with the index, and without.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.verify import verify
from cometmq.store.message_store import MessageStore
from cometmq.tests.bench.rows import Row, show
from cometmq.tests.bench.store.append import NOW_MS, messages
from cometmq.tests.bench.store.recovery import columns, read_and_check, seconds

BATCH = 512
TARGET = 400
BOUND_PART = 0.7


def make(config: StoreConfig, size: int) -> None:
    """Make a cleanly stopped store."""
    store = MessageStore(config, lambda: NOW_MS)
    store.open()
    store.start()
    batch = messages(BATCH)
    while store.log_end < size - (2 << 20):
        store.writer.append_many(batch)
        store.writer.dispatch(store.log_end, BATCH)
    store.close()


def check(root: Path) -> None:
    report = verify(discover(root))
    assert not report.findings.problems, report.findings.problems[:3]


def rows(root: Path, size: int, rounds: int) -> list[Row]:
    roots = {}
    for name, indexed in (("with the index", True), ("without an index", False)):
        config = StoreConfig(
            str(root / name), mapped_file_size_commit_log=size, message_index_enable=indexed
        )
        make(config, size)
        roots[name] = config
    log = roots["with the index"].commit_log_directory / f"{0:020d}"
    bodies = columns(log, check_crc=True)
    used = bodies[-1][1]
    spent: dict[str, list[float]] = {name: [] for name in ("bound", *roots)}
    for _ in range(rounds):
        spent["bound"].append(seconds(lambda: read_and_check(log, bodies)))
        for name, config in roots.items():
            spent[name].append(seconds(lambda config=config: check(config.root)))  # type: ignore[misc]
    rates = {name: used / statistics.median(times) / 1e6 for name, times in spent.items()}
    bound = rates.pop("bound")
    return [
        Row(
            f"store: verify {name}, 1 KiB",
            rate,
            "MB/s a core",
            f"read and CRC {bound:,.0f} MB/s",
            rate / bound,
            f"{TARGET} MB/s or {BOUND_PART:.0%} of the bound",
            rate >= TARGET or rate >= BOUND_PART * bound,
        )
        for name, rate in rates.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-verify-"))
    try:
        show(rows(root, options.mib << 20, options.rounds))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
