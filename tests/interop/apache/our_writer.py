"""Writes a store for Apache's broker: `our_writer.py DIRECTORY OPTIONS COUNT [KILLED]`.

OPTIONS is JSON for `StoreConfig`. With a COUNT it writes that many messages and stops cleanly; with
0 it writes until it is killed and prints the number of acknowledged messages, one per line. With
KILLED every message is indexed at once, not in batches, and the process kills itself:

    between     a hundred messages after the checkpoint covers the first index file
    header      when the header of a later full file is written, and the checkpoint does not cover
                the file yet
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.format.index_file import IndexLayout, index_files, read_header
from cometmq.store.format.record import Message, encode_properties, pack_host
from cometmq.store.format.results import PutStatus
from cometmq.store.message_store import MessageStore

ORDERS, NOTES = "Orders", "Notes"
RETRY = "%RETRY%" + "g" * 150  # longer than 127 bytes: version 2 records
TOPICS = {ORDERS: 4, NOTES: 2, RETRY: 1}
#: Two tags of one hash, one that is not ASCII, none, and an ordinary one.
TAGS = ("AaAa", "BBBB", "标签", "", "TagA")
BORN = ("10.1.2.3", "2001:db8::8a2e:370:7334", "127.0.0.1")
STORED = ("127.0.0.1", "127.0.0.1", "127.0.0.1", "::1")
COMMIT, PREPARED = 0x8, 0x4
#: Messages are numbered in blocks; every third block is a batch, all of it for one queue.
BLOCK = 10


def body_of(number: int) -> bytes:
    """Return the body of a message by its number; some are empty."""
    if number % 50 == 49:
        return b""
    return f"{number:08d}".encode() + random.Random(number).randbytes(number * 7919 % 2500)


def keys_of(number: int) -> list[str]:
    """No key, one, or two."""
    return [f"order-{number}", f"ключ-{number % 17}"][: number % 3]


def in_batch(number: int) -> bool:
    """Whether the message with this number goes with its block as one batch."""
    return number // BLOCK % 3 == 2


def message_of(number: int) -> Message:
    """The message with this number."""
    names = list(TOPICS)
    topic, queue_id = NOTES, 1
    kind = 0
    if not in_batch(number):
        topic = RETRY if number % 11 == 10 else names[number % 2]
        queue_id = number // 2 % TOPICS[topic]
        kind = {7: COMMIT, 13: PREPARED}.get(number % 20, 0)
    properties = {"UNIQ_KEY": f"{number:032X}", "region": "eu", "имя": "значение=с знаком 😀"}
    if keys_of(number):
        properties["KEYS"] = " ".join(keys_of(number))
    if TAGS[number % 5]:
        properties["TAGS"] = TAGS[number % 5]
    hosts = number // BLOCK if in_batch(number) else number
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=body_of(number),
        properties=encode_properties(properties),
        flag=number,
        sys_flag=kind,
        born_timestamp_ms=1_700_000_000_000 + hosts,
        born_host=pack_host(BORN[hosts % 3], 40_000 + hosts % 100),
        store_host=pack_host(STORED[hosts % 4], 10_911),
        reconsume_times=hosts % 4,
        prepared_transaction_offset=number if kind == COMMIT else 0,
    )


def key_queries(numbers: Iterable[int]) -> list[dict[str, str]]:
    """Return keys of these messages to query: unique ids, single keys, keys of many messages, and
    an unused one."""
    asked = {(NOTES, "nosuchkey")}
    for number in numbers:
        topic = message_of(number).topic
        asked |= {(topic, key) for key in (f"{number:032X}", *keys_of(number))}
    return [{"topic": topic, "key": key} for topic, key in sorted(asked)]


def write(store: MessageStore, first: int, rng: random.Random) -> int:
    """Write the next batch or single messages of a block. Return the next number."""
    rest = BLOCK - first % BLOCK
    count = rest if in_batch(first) else rng.randrange(1, rest + 1)
    append = store.writer.append_batch if in_batch(first) else store.writer.append_many
    results = append([message_of(first + i) for i in range(count)])
    assert {result.status for result in results} == {PutStatus.PUT_OK}, results
    store.writer.dispatch(store.log_end)
    return first + count


def covered_ms(root: Path) -> int:
    """Return the time up to which the checkpoint covers the index."""
    path = root / "checkpoint"
    return Checkpoint.decode(path.read_bytes()).index_msg_timestamp_ms if path.exists() else 0


def uncovered(config: StoreConfig) -> bool:
    """Return whether a full index file, not the first one, has its header and the checkpoint does
    not cover it."""
    layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
    until_ms = covered_ms(config.root)
    headers = [read_header(path, layout) for path in index_files(str(config.index_directory))]
    full = [header for header in headers if header.count >= layout.entries]
    return until_ms > 0 and any(header.end_timestamp_ms > until_ms for header in full)


def kill_at_header(store: MessageStore) -> None:
    """End the process in front of the first fdatasync after the header was written."""

    def before(call: str) -> None:
        flushes = threading.current_thread().name == "store-flush-queues"
        if call == "fdatasync" and flushes and uncovered(store.config):
            os.kill(os.getpid(), signal.SIGKILL)

    store.disk.fault = before


def main() -> None:
    directory, options, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    killed = sys.argv[4] if len(sys.argv) > 4 else ""
    config = StoreConfig(directory, **options)
    store = MessageStore(config, lambda: time.time_ns() // 1_000_000)
    store.open()
    store.start()
    rng = random.Random(1)
    number = covered = 0
    if killed == "header":
        kill_at_header(store)
    while not count or number < count:
        number = write(store, number, rng)
        if killed:
            store.queries.query(ORDERS, "-")
        if killed == "between":
            covered = covered or (number if covered_ms(config.root) else 0)
            if covered and number >= covered + 100:
                os.write(1, b"%d\n" % number)
                os.kill(os.getpid(), signal.SIGKILL)
        if not count:
            os.write(1, b"%d\n" % number)
            time.sleep(0.002)
    store.close()
    print(number)


if __name__ == "__main__":
    main()
