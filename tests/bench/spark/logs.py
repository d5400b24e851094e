"""Input of the pipeline benchmarks: a log of many messages, and a broker on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import Message, encode_properties, pack_host
from cometmq.store.message_store import MessageStore

BATCH = 512
MIB = 1 << 20


def make_log(root: Path, body_bytes: int, size: int) -> float:
    """Make a store with 16 topics of 4 queues; return its MB of log."""
    config = StoreConfig(
        store_path_root_dir=str(root), mapped_file_size_commit_log=max(size, 16 * MIB)
    )
    store = MessageStore(config, lambda: 1_760_000_000_000)
    store.open()
    store.start()
    number = 0
    host = pack_host("127.0.0.1", 10911)
    while store.log_end < size - 4 * MIB:
        batch = []
        for _ in range(BATCH):
            number += 1
            properties = encode_properties(
                {
                    "MSG_REGION": "DefaultRegion",
                    "UNIQ_KEY": f"{number:032X}",
                    "CLUSTER": "DefaultCluster",
                    "TAGS": f"Tag{number % 5}",
                    "KEYS": f"order-{number}",
                    "WAIT": "true",
                    "TRACE_ON": "true",
                }
            )
            body = (b"%016d" % number) * (body_bytes // 16)
            batch.append(
                Message(
                    f"topic-{number % 16:02d}",
                    number // 16 % 4,
                    body,
                    properties,
                    born_host=host,
                    store_host=host,
                    born_timestamp_ms=1_760_000_000_000 + number,
                )
            )
        store.writer.append_many(batch)
        store.writer.dispatch(store.log_end, BATCH)
    end = store.log_end
    store.close()
    return end / 1e6


class BrokerOn:
    """A broker on this directory in a separate process."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> tuple[str, int]:
        log = next((self._root / "commitlog").iterdir())
        code = (
            "import asyncio, dataclasses, sys\n"
            "from pathlib import Path\n"
            "from cometmq.tests.broker.live import running, settings\n"
            "async def main():\n"
            "    chosen = settings(Path(sys.argv[1]))\n"
            "    store = dataclasses.replace(chosen.store,\n"
            "        mapped_file_size_commit_log=int(sys.argv[2]), file_reserved_time=100000)\n"
            "    async with running(dataclasses.replace(chosen, store=store)) as live:\n"
            "        print(live.bound.client, flush=True)\n"
            "        await asyncio.to_thread(sys.stdin.read)\n"
            "asyncio.run(main())\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(self._root), str(log.stat().st_size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip(), self._process.pid

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
