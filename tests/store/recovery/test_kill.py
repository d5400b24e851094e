"""SIGKILL of a real writer, again and again: nothing that it was promised is lost, nothing is
torn."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import decode
from cometmq.store.format.results import RecoveryReport
from cometmq.store.message_store import MessageStore
from cometmq.tests.store import writer
from cometmq.tests.store.kit import LIMIT, Kit

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 << 10,
    "mapped_file_size_consume_queue": 2000,
}


def run_and_kill(directory: Path, mode: str, seed: int, seconds: float) -> int:
    """Let the writer run, kill it; returns how many messages it was promised."""
    command = [sys.executable, writer.__file__, str(directory), mode, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 30)
        assert ready, "the writer did not begin"
        killer = threading.Timer(seconds, process.send_signal, [signal.SIGKILL])
        killer.start()
        output = process.stdout.read()
        killer.join()
    assert process.returncode == -signal.SIGKILL
    lines = output[: output.rfind(b"\n")].split(b"\n")
    return int(lines[-1].split()[1])


def recover(directory: Path) -> tuple[MessageStore, RecoveryReport]:
    store = MessageStore(StoreConfig(str(directory), **SETTINGS), lambda: 0)
    report = store.open()
    while store.dispatched_offset < store.log_end:
        store.writer.dispatch(LIMIT)
    return store, report


def check(store: MessageStore, promised: int) -> int:
    """Every message from the first to the last, once, whole, in the log and in its queue."""
    seen: dict[int, int] = {}
    for topic, queue_id in store.queues():
        for offset in range(store.max_offset(topic, queue_id)):
            (stored,) = store.get(topic, queue_id, offset, 1).records
            record = decode(stored.data)
            number = int(record.body[:8])
            expected = writer.message_of(number)
            assert (record.topic, record.queue_id) == (topic, queue_id)
            assert record.queue_offset == offset
            assert record.body == expected.body
            assert record.properties == expected.properties
            seen[number] = stored.physical_offset
    assert sorted(seen) == list(range(len(seen))), "none lost, none twice"
    assert len(seen) >= promised
    places = [seen[number] for number in range(len(seen))]
    assert places == sorted(places), "in the order of sending"
    return len(seen)


def check_beside_retention(store: MessageStore, promised: int) -> None:
    """No end of a queue has gone back, and what retention has left is whole."""
    ends = {key: store.writer.next_offset(*key) for key in store.queues()}
    count = sum(ends.values())
    assert count >= promised, "nothing is lost, and each number has its place in a queue"
    expected = Counter((m.topic, m.queue_id) for m in map(writer.message_of, range(count)))
    assert ends == expected, "none was taken twice"
    for topic, queue_id in store.queues():
        for offset in range(store.min_offset(topic, queue_id), ends[topic, queue_id]):
            (stored,) = store.get(topic, queue_id, offset, 1).records
            record = decode(stored.data)
            assert record.queue_offset == offset
            assert record.body == writer.message_of(int(record.body[:8])).body


def test_kill_minus_9_beside_retention_and_seldom_flushes_of_queues(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    chance, start = random.Random("retention"), 0
    for turn in range(3):
        promised = run_and_kill(directory, "retention", turn, chance.uniform(0.05, 0.25))
        store, _ = recover(directory)
        check_beside_retention(store, promised)
        start, before = store.log_start, start
        assert start > before, "segments were deleted"
        store.start()
        store.close()


@pytest.mark.parametrize("mode", ["async", "sync", "pool"])
def test_kill_minus_9(tmp_path: Path, mode: str) -> None:
    directory = tmp_path / "store"
    chance = random.Random(mode)
    for turn in range(4):
        promised = run_and_kill(directory, mode, turn, chance.uniform(0.05, 0.35))
        store, report = recover(directory)
        assert not report.clean
        check(store, promised)
        store.start()
        store.close()
        queues = Kit(directory, **SETTINGS).queue_files()
        rebuilt = Kit(tmp_path / f"rebuilt-{turn}", **SETTINGS)
        (tmp_path / f"rebuilt-{turn}").mkdir()
        (directory / "commitlog").rename(rebuilt.root / "commitlog")
        rebuilt.open()
        rebuilt.dispatch()
        rebuilt.close()
        assert rebuilt.queue_files() == queues, "the queues equal a rebuild from the log"
        (rebuilt.root / "commitlog").rename(directory / "commitlog")
    store, report = recover(directory)
    assert report.clean
    store.close()
