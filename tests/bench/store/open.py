"""Clean start with very many queues: 10,000 topics of 8 queues with a message each.

Prints rows. The store is made with `MessageStore`, with queue files of 2,000 bytes, and closed.
Then a separate process opens it, starts it and reads one message of every topic. Best of three.

* `MessageStore.open` and `start`, wall time; the target is 5 s. The bound: list the same folders,
  and open, read and close one file per queue, without product code.
* anonymous memory of that process (/proc/self/smaps_rollup); the target is below 400 MiB.
* open files of the process after it has read from 10,000 queues.
* time to create the queues and to stop the store.

Needs 180,000 inodes and 400 MB of disk for a minute.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import Message
from cometmq.store.message_store import MessageStore
from cometmq.tests.bench.rows import Row, show

NOW_MS = 1_700_000_000_000
QUEUES = 8
OPEN_S_TARGET = 5
ANONYMOUS_MIB_TARGET = 400
_BATCH = 800


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        str(root), mapped_file_size_commit_log=256 << 20, mapped_file_size_consume_queue=2000
    )


def topic(index: int) -> str:
    return f"Topic-{index:05d}"


def make(root: Path, topics: int) -> tuple[float, float]:
    """Make the store; return seconds for writing and for stopping."""
    store = MessageStore(config(root), lambda: NOW_MS)
    store.open()
    store.start()
    begin = monotonic()
    for first in range(0, topics, _BATCH // QUEUES):
        batch = [
            Message(topic(index), queue_id, bytes(128))
            for index in range(first, min(first + _BATCH // QUEUES, topics))
            for queue_id in range(QUEUES)
        ]
        store.writer.append_many(batch)
        store.writer.dispatch(store.log_end)
    made = monotonic()
    store.close()
    return made - begin, monotonic() - made


def scan(root: Path) -> float:
    """Measure the system calls alone."""
    begin = monotonic()
    with os.scandir(root / "consumequeue") as topics:
        for entry in topics:
            for name in os.listdir(entry.path):
                folder = f"{entry.path}/{name}"
                for file in os.listdir(folder):
                    descriptor = os.open(f"{folder}/{file}", os.O_RDONLY)
                    os.pread(descriptor, 4096, 0)
                    os.close(descriptor)
    return monotonic() - begin


def anonymous_mib() -> float:
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) / 1024
    return 0.0


def opened(root: Path, topics: int) -> dict[str, float]:
    """Open, start, and read one queue of every topic in a separate process."""
    scan_s = scan(root)
    store = MessageStore(config(root), lambda: NOW_MS)
    begin = monotonic()
    report = store.open()
    store.start()
    open_s = monotonic() - begin
    memory = anonymous_mib()
    assert report.clean and report.queues == topics * QUEUES, report
    for index in range(topics):
        assert len(store.get(topic(index), index % QUEUES, 0, 8).records) == 1
    descriptors = len(os.listdir("/proc/self/fd"))
    store.close()
    return {
        "scan_s": round(scan_s, 2),
        "open_s": round(open_s, 2),
        "anonymous_mib": round(memory, 1),
        "anonymous_after_reading_mib": round(anonymous_mib(), 1),
        "descriptors": descriptors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default=None, help="where the store is made")
    parser.add_argument("--opened", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.opened:
        print(json.dumps(opened(options.opened, options.topics)))
        return
    folder = Path(tempfile.mkdtemp(prefix="store-open-", dir=options.directory))
    command = [sys.executable, "-m", "cometmq.tests.bench.store.open"]
    command += ["--opened", str(folder), "--topics", str(options.topics)]
    try:
        made = make(folder, options.topics)
        rounds = []
        for _ in range(options.rounds):
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rounds.append(json.loads(done.stdout))
    finally:
        shutil.rmtree(folder)
    best = min(rounds, key=lambda figures: float(figures["open_s"]))
    queues = f"{options.topics * QUEUES:,} queues"
    show(
        [
            Row(
                f"store: clean start, {queues}",
                best["open_s"],
                "s",
                f"the bare system calls {best['scan_s']} s",
                round(best["scan_s"] / best["open_s"], 3),
                "below 5 s",
                best["open_s"] < OPEN_S_TARGET,
            ),
            Row(
                "store: anonymous memory after it",
                best["anonymous_mib"],
                "MiB",
                f"{best['anonymous_after_reading_mib']} MiB after reading from every topic",
                None,
                "below 400 MiB",
                best["anonymous_after_reading_mib"] < ANONYMOUS_MIB_TARGET,
            ),
            Row(
                "store: open files after reading from every topic",
                best["descriptors"],
                "",
                f"openQueueFilesMax {config(folder).open_queue_files_max}",
            ),
            Row(f"store: making {queues}", round(made[0], 2), "s"),
            Row("store: stopping it then", round(made[1], 2), "s"),
        ]
    )


if __name__ == "__main__":
    main()
