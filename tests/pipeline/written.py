"""Stores written by tests, with given topics, queues, keys and days, and small segments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.properties import encode_properties
from cometmq.store.format.record import Message
from cometmq.store.message_store import MessageStore

BEGIN_MS = 1_795_000_000_000
SEGMENT = 64 << 10
_TURN = 64


def sent(
    topic: str, number: int, *, queues: int = 4, body: bytes = b"", **properties: str
) -> Message:
    """Return message `number`; body and queue follow from the number."""
    said = {
        "KEYS": f"k{number}",
        "TAGS": f"t{number % 3}",
        "UNIQ_KEY": f"{topic}{number:020d}",
        **properties,
    }
    return Message(
        topic,
        number % queues,
        body or f"{topic} {number} ".encode() * (1 + number % 9),
        encode_properties(said),
        born_timestamp_ms=BEGIN_MS + number - 5,
    )


def write_store(
    root: Path,
    messages: Iterable[Message],
    *,
    step_ms: int = 1,
    segment: int = SEGMENT,
    **options: object,
) -> Path:
    """Write a closed store; the clock advances `step_ms` every 64 messages."""
    now = [BEGIN_MS]
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=segment,
        mapped_file_size_consume_queue=6000,
        max_hash_slot_num=200,
        max_index_num=800,
        **options,  # type: ignore[arg-type]
    )
    store = MessageStore(config, lambda: now[0])
    store.open()
    store.start()
    waiting = list(messages)
    for begin in range(0, len(waiting), _TURN):
        for result in store.writer.append_many(waiting[begin : begin + _TURN]):
            assert result.status.name == "PUT_OK", result
        now[0] += step_ms
        while store.dispatched_offset < store.log_end:
            store.writer.dispatch(store.log_end)
    while store.index.turn():
        pass
    store.close()
    return root
