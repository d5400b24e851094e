"""The golden cases: store directories that the released Apache RocketMQ 5.5.0 broker wrote.

`golden/CASE.tar.gz` is the directory as the broker left it, `CASE.json.gz` (the manifest) what was
sent and what that broker read back, `CASE.recovered.json.gz` what it read after it had recovered a
killed copy.
Tests open copies only. What one has to know of the manifests:

* They were written before the stop, so a broker that still works (the check rounds of
  `transaction`)
  may have appended more: `LOG_ENDS`, and queues that are longer than the manifest says.
* Properties are sorted by name there, so their order on disk is taken from the log.
* Key queries are in no particular order; IPv6 hosts are in long form.
"""

from __future__ import annotations

import atexit
import gzip
import hashlib
import ipaddress
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import Record, decode
from cometmq.store.message_store import MessageStore
from cometmq.tests.harness.sparse import copy_tree

GOLDEN = Path(__file__).parent / "golden"
CASES = tuple(sorted(path.name[:-7] for path in GOLDEN.glob("*.tar.gz")))
KILLED = ("killed", "delay-killed")
#: Cases that the store must write again byte for byte.
REWRITTEN = ("normal", "crc", "ext", "batch", "compressed", "long-topic", "v2", "hosts")
#: Cases with messages that wait for a time.
TIMED = ("delay", "delay-killed", "timer-roll", "grpc")
#: Where the log ends after a restart, if that is not what the manifest says (see the docstring;
#: `hosts`: the segment that holds nothing but a blank is taken back).
LOG_ENDS = {"transaction": 150_622, "hosts": 262_144}
#: The sizes of all cases; a manifest's `broker_conf` has what was set besides.
SMALL_SIZES = {
    "mappedFileSizeCommitLog": "131072",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "mappedFileSizeTimerLog": "52000",
}
NOW_MS = 1_800_000_000_000
BLANK_MAGIC = bytes.fromhex("cbd43194")


@cache
def manifest(name: str) -> dict[str, Any]:
    with gzip.open(GOLDEN / f"{name}.json.gz") as file:
        said: dict[str, Any] = json.load(file)
    return said


def read_back(case: str) -> dict[str, Any]:
    """What Apache's broker reads from the directory; for a killed one after its own recovery."""
    return manifest(f"{case}.recovered" if case in KILLED else case)


def unpack(case: str, folder: Path) -> Path:
    """The case's directory below `folder`. A timer wheel (37 MiB) comes only where it holds
    timers."""
    copy_tree(_unpacked(case), folder / case)
    return folder / case


@cache
def _unpacked(case: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="cometmq-golden-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(GOLDEN / f"{case}.tar.gz") as archive:
        members = [
            member
            for member in archive.getmembers()
            if case in TIMED or not member.name.endswith("/timerwheel")
        ]
        archive.extractall(folder, members, filter="data")
    copy_tree(folder / case, folder / "with-holes")
    return folder / "with-holes"


def key_of(field: Any) -> str:
    """The key in broker.conf of a field of StoreConfig."""
    key: str = field.metadata.get("key", "")
    return key or re.sub("_([a-z0-9])", lambda match: match[1].upper(), field.name)


def config_of(case: str, root: Path, **options: Any) -> StoreConfig:
    """The configuration that the case was written with."""
    conf = SMALL_SIZES | manifest(case)["broker_conf"]
    values: dict[str, Any] = {}
    for field in fields(StoreConfig):
        text = conf.get(key_of(field))
        if text is None:
            continue
        assert field.default is not MISSING
        kind = type(field.default)
        values[field.name] = text == "true" if kind is bool else kind(text)
    values["store_path_root_dir"] = str(root)
    return StoreConfig(**(values | options))


def new_store(case: str, root: Path, **options: Any) -> MessageStore:
    return MessageStore(config_of(case, root, **options), lambda: NOW_MS)


def dispatch_all(store: MessageStore) -> None:
    while store.dispatched_offset < store.log_end:
        before = store.dispatched_offset
        store.writer.dispatch(store.log_end)
        assert store.dispatched_offset > before, store.refusal


def queues_of(said: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for topic, queues in said["queues"].items():
        for queue_id, queue in queues.items():
            yield topic, int(queue_id), queue


def units_of(said: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for _, _, queue in queues_of(said):
        yield from queue["units"]


def host(text: str) -> tuple[str, int]:
    """Address in its short form, and port."""
    address, port = text.rsplit("|", 1)
    return str(ipaddress.ip_address(address.partition("%")[0])), int(port)


def contents(root: Path, *folders: str) -> dict[str, bytes]:
    """Every file below these folders (all without any)."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (not folders or path.relative_to(root).parts[0] in folders)
    }


def digests(root: Path) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents(root).items()}


def records_of(root: Path) -> Iterator[tuple[Record, bytes]]:
    """Every record of the segments with its bytes, by a walk of our own from blank to blank."""
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        position = 0
        while data[position : position + 4] != bytes(4):
            if data[position + 4 : position + 8] == BLANK_MAGIC:
                break
            record = decode(data[position:])
            assert record.physical_offset == int(path.name) + position
            yield record, data[position : position + record.size]
            position += record.size
