"""Stores are handed to the released Apache broker and back without loss.

`our_writer.py` writes a store and stops cleanly or is killed with -9. Apache's broker opens it,
must report the same content, and its consumers must read it. Then Apache's broker appends and stops
cleanly or dies, and CometMQ's store must report the same content.
"""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.message_store import MessageStore, PutStatus
from cometmq.tests.formats.agreement import assert_agrees
from cometmq.tests.formats.cases import dispatch_all, units_of
from cometmq.tests.interop.apache import oracle, our_writer

pytestmark = pytest.mark.timeout(300)  # the first one fetches the jars
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 131_072,
    "mapped_file_size_consume_queue": 2_000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
CONF = {
    "mappedFileSizeCommitLog": "131072",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
#: The killed store has the whole-record checksum, which Apache then verifies while it recovers, and
#: extension files.
WITH_CRC: dict[str, Any] = {
    "enabled_append_prop_crc": True,
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 4_096,
    "flush_interval_consume_queue": 50,
}
CONF_WITH_CRC = {
    "enabledAppendPropCRC": "true",
    "forceVerifyPropCRC": "true",
    "enableConsumeQueueExt": "true",
    "mappedFileSizeConsumeQueueExt": "4096",
}
NOW_MS = 1_900_000_000_000


def run_writer(root: Path, options: dict[str, Any], count: int, kill_at: int = 0) -> int:
    """Run the writer to its end or kill it. Return the number of acknowledged messages."""
    until = (lambda written: written >= kill_at) if kill_at else None
    return run_writer_until(root, options, count, until)


def run_writer_until(
    root: Path,
    options: dict[str, Any],
    count: int,
    until: Callable[[int], bool] | None,
    *more: str,
) -> int:
    """Run the writer to its end, or kill it when `until` returns true for the number of
    acknowledged messages. Return that number."""
    command = [sys.executable, our_writer.__file__, str(root), json.dumps(options), str(count)]
    command += more
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        written = 0
        for line in process.stdout:
            written = int(line)
            if until is not None and until(written) and process.poll() is None:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == (-signal.SIGKILL if until is not None else 0)
    return written


def opened(root: Path, options: dict[str, Any]) -> MessageStore:
    store = MessageStore(StoreConfig(str(root), **options), lambda: NOW_MS)
    store.open()
    store.start()  # rebuilds the index of a killed store
    dispatch_all(store)
    return store


def plan_for(written: int) -> dict[str, Any]:
    """Plan: query keys, consume one topic, then write over several segments and index files."""
    orders = [our_writer.message_of(i) for i in range(written)]
    count = sum(m.topic == our_writer.ORDERS and m.sys_flag & 0xC != 0x4 for m in orders)
    more = [
        {
            "topic": (our_writer.ORDERS, our_writer.NOTES, our_writer.RETRY)[i % 3],
            "queue": 0,
            "tags": our_writer.TAGS[i % 5] or None,
            "keys": f"back-{i}",
            "body_b64": base64.b64encode(our_writer.body_of(i)).decode(),
            "born": our_writer.BORN[i % 3],
            "host": our_writer.STORED[i % 4],
        }
        for i in range(150)
    ]
    return {
        "topics": [{"name": name, "queues": n} for name, n in our_writer.TOPICS.items()],
        "queries": our_writer.key_queries(range(0, written, max(written // 60, 1)))
        + [{"topic": more[i]["topic"], "key": more[i]["keys"]} for i in (0, 77, 149)],
        "consume": [{"group": "Readers", "topic": our_writer.ORDERS, "count": count}],
        "write": more,
    }


def check_numbers(view: dict[str, Any], promised: int) -> None:
    """Check that every message exists once and unchanged; prepared ones are in no queue."""
    seen: set[int] = set()
    for unit in units_of(view):
        number = unit["flag"]
        message = our_writer.message_of(number)
        assert unit["record_topic"] == message.topic
        assert base64.b64decode(unit["stored_body_b64"]) == message.body
        assert unit["properties"]["UNIQ_KEY"] == f"{number:032X}"
        seen.add(number)
    end = max(seen) + 1
    prepared = {n for n in range(end) if our_writer.message_of(n).sys_flag & 0xC == 0x4}
    assert seen == set(range(end)) - prepared
    assert end >= promised - 1  # the last may be a prepared one


def check_consumed(consumed: list[dict[str, Any]], view: dict[str, Any]) -> None:
    """Check that the consumers received every message of the topic once, as stored."""
    expected = Counter(
        (unit["record_queue_id"], unit["record_queue_offset"], unit["stored_body_b64"])
        for unit in units_of(view)
        if unit["record_topic"] == our_writer.ORDERS
    )
    assert Counter((m["queue"], m["queue_offset"], m["body_b64"]) for m in consumed) == expected


def check_reopened_by_cometmq(root: Path, options: dict[str, Any], report: dict[str, Any]) -> None:
    """Check that CometMQ's store reads what Apache's broker left, and appends to it."""
    assert {one["status"] for one in report["written"]} == {"PUT_OK"}
    store = opened(root, options)
    assert_agrees(store, report["after"])
    (result,) = store.append_many([our_writer.message_of(5)])
    assert result.status is PutStatus.PUT_OK
    assert result.physical_offset >= report["after"]["max_physical_offset"]
    dispatch_all(store)
    end = store.log_end
    store.close()
    store = opened(root, options)
    assert store.log_end == end
    store.close()


def test_a_cleanly_stopped_store_is_exchanged_without_loss(tmp_path: Path) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    written = run_writer(root, SIZES, 600)
    oracle.copy_of(root, copy)
    report = oracle.ask(root, tmp_path / "apache", plan_for(written), CONF)
    check_numbers(report["before"], written)
    check_consumed(report["consumed"][0], report["before"])
    ours = opened(copy, SIZES)
    assert_agrees(ours, report["before"])
    ours.close()
    check_reopened_by_cometmq(root, SIZES, report)


def test_a_killed_store_is_exchanged_without_loss(tmp_path: Path) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    options = SIZES | WITH_CRC
    promised = run_writer(root, options, 0, kill_at=600)
    assert (root / "abort").exists()
    oracle.copy_of(root, copy)
    report = oracle.ask(
        root, tmp_path / "apache", plan_for(promised), CONF | CONF_WITH_CRC, halt=True
    )
    check_numbers(report["before"], promised)
    check_consumed(report["consumed"][0], report["before"])
    ours = opened(copy, options)
    assert_agrees(ours, report["before"])
    ours.close()
    check_reopened_by_cometmq(root, options, report)


@pytest.mark.parametrize("thorough_ms", [50, 60_000])
def test_a_killed_store_with_two_index_files_answers_key_queries_equally(
    tmp_path: Path, thorough_ms: int
) -> None:
    """The first file is full and covered by the checkpoint; the queues are ahead of the index's
    checkpoint, or were never flushed."""
    root, copy = tmp_path / "store", tmp_path / "copy"
    options = SIZES | {
        "max_index_num": 1200,
        "flush_interval_consume_queue": 50,
        "flush_consume_queue_thorough_interval": thorough_ms,
    }
    covered = 0

    def until(written: int) -> bool:
        """A hundred messages after the checkpoint covers the first index file."""
        nonlocal covered
        data = root / "checkpoint"
        if not covered and data.exists():
            stamp = Checkpoint.decode(data.read_bytes()).index_msg_timestamp_ms
            covered = written if stamp else 0
        return covered > 0 and written >= covered + 100

    promised = run_writer_until(root, options, 0, until, "indexed")
    assert len(list((root / "index").iterdir())) >= 2  # more if the checkpoint was slow
    oracle.copy_of(root, copy)
    queries = our_writer.key_queries(random.Random(1).sample(range(promised), 220))
    assert len(queries) >= 300
    plan = plan_for(promised) | {"queries": queries, "consume": [], "write": []}
    report = oracle.ask(root, tmp_path / "apache", plan, CONF | {"maxIndexNum": "1200"})
    check_numbers(report["before"], promised)
    ours = opened(copy, options)
    assert_agrees(ours, report["before"])
    ours.close()
