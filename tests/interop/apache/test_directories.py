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
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.results import PutStatus
from cometmq.store.message_store import MessageStore
from cometmq.tests.formats.agreement import assert_agrees
from cometmq.tests.formats.cases import dispatch_all, units_of
from cometmq.tests.interop.apache import oracle, our_writer

pytestmark = pytest.mark.timeout(900)  # the first one fetches the jars
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


def run_writer(
    root: Path, options: dict[str, Any], count: int, kill_at: int = 0, killed: str = ""
) -> int:
    """Run the writer to its end, or kill it at a number of acknowledged messages, or let it kill
    itself (see our_writer.py). Return the number of acknowledged messages."""
    command = [sys.executable, our_writer.__file__, str(root), json.dumps(options), str(count)]
    with subprocess.Popen([*command, killed], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        written = 0
        for line in process.stdout:
            written = int(line)
            if kill_at and written >= kill_at and process.poll() is None:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == (-signal.SIGKILL if kill_at or killed else 0)
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
    (result,) = store.writer.append_many([our_writer.message_of(5)])
    assert result.status is PutStatus.PUT_OK
    assert result.physical_offset >= report["after"]["max_physical_offset"]
    dispatch_all(store)
    end = store.log_end
    store.close()
    store = opened(root, options)
    assert store.log_end == end
    store.close()


@pytest.mark.slow  # 14 s of CPU; a killed store needs more of both brokers
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


#: File sizes for two index files, of about 430 messages each.
TWO_FILES: dict[str, Any] = {"max_index_num": 1200, "flush_interval_consume_queue": 50}


def ask_keys(root: Path, work: Path, written: int, more: list[int]) -> dict[str, Any]:
    """Let Apache's broker open a killed store and answer key queries."""
    numbers = random.Random(1).sample(range(written), 220)
    queries = our_writer.key_queries([*numbers, *more])
    assert len(queries) >= 300
    plan = plan_for(written) | {"queries": queries, "consume": [], "write": []}
    view: dict[str, Any] = oracle.ask(root, work, plan, CONF | {"maxIndexNum": "1200"})["before"]
    check_numbers(view, written)
    return view


@pytest.mark.parametrize("thorough_ms", [50, pytest.param(60_000, marks=pytest.mark.slow)])
def test_a_killed_store_with_two_index_files_answers_key_queries_equally(
    tmp_path: Path, thorough_ms: int
) -> None:
    """The first file is full and covered by the checkpoint; the queues are ahead of the index's
    checkpoint, or were never flushed."""
    root, copy = tmp_path / "store", tmp_path / "copy"
    options = SIZES | TWO_FILES | {"flush_consume_queue_thorough_interval": thorough_ms}
    promised = run_writer(root, options, 0, killed="between")
    assert len(list((root / "index").iterdir())) >= 2  # more if the checkpoint was slow
    oracle.copy_of(root, copy)
    view = ask_keys(root, tmp_path / "apache", promised, [])
    ours = opened(copy, options)
    assert_agrees(ours, view)
    ours.close()
