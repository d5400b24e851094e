"""Real stores for tests of replication: small segments, messages of any size."""

import threading
import time
from pathlib import Path
from typing import Any

from cometmq.broker.core.build import native_parts
from cometmq.proto.native import load
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import Message, pack_host
from cometmq.store.format.results import PutStatus
from cometmq.store.message_store import MessageStore
from cometmq.tests.store.heard import Heard

HOST = pack_host("127.0.0.1", 8081)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def message(body: bytes, topic: str = "replicated", queue_id: int = 0) -> Message:
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=b"",
        born_timestamp_ms=1,
        born_host=HOST,
        store_host=HOST,
    )


class RealLog:
    """A started store in `directory`, with the face of `log_contract.WritableLog`."""

    def __init__(self, directory: Path, segment_size: int, **options: Any) -> None:
        self.directory = directory
        config = StoreConfig(
            store_path_root_dir=str(directory),
            mapped_file_size_commit_log=segment_size,
            mapped_file_size_consume_queue=20_000,
            **{"flush_interval_commit_log": 20, "flush_commit_log_least_pages": 1, **options},
        )
        self.heard = Heard()
        self.log = MessageStore(config, wall_ms, native=native_parts(load()), events=self.heard)
        self.log.open()
        self.flushed = threading.Condition()
        self.heard.flushed = self._on_flushed
        self.log.start()

    def _on_flushed(self, offset: int) -> None:
        with self.flushed:
            self.flushed.notify_all()

    def append(self, body: bytes) -> int:
        (result,) = self.log.writer.append_many([message(body)])
        assert result.status is PutStatus.PUT_OK, result
        return self.log.log_end

    def flush(self) -> None:
        with self.flushed:
            reached = self.flushed.wait_for(
                lambda: self.log.flushed_offset >= self.log.log_end, timeout=20
            )
        assert reached

    def close(self) -> None:
        self.log.close()
