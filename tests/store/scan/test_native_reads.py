"""The native reader of records returns what the Python reader returns, also from damaged stores.

Two equal stores get the same damage and the same reads, one through each reader; repairs included.
`TEST_EXAMPLES=20000 pytest tests/store/scan/test_native_reads.py` runs longer.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.proto import native
from cometmq.store.format.properties import SCHEDULE_TOPIC, encode_properties, java_hash
from cometmq.store.format.record import pack_host
from cometmq.store.format.results import StoredRecord
from cometmq.store.native_parts import NativeParts
from cometmq.tests.store.kit import SEGMENT, Kit

CRATE = native.load()
QUEUE_RECORDS: Any = CRATE and CRATE.queue_records
TOPIC, LONG_TOPIC = "TopicTest", "t" * 127
TAGS = ("", "A", "B", "é𝄞", "A||B")

pytestmark = pytest.mark.skipif(
    QUEUE_RECORDS is None, reason="the native crate is not installed (scripts/native_door)"
)


class NativeKit(Kit):
    """A store that reads through the native crate."""

    native = NativeParts(records=QUEUE_RECORDS and QUEUE_RECORDS(StoredRecord))


def fill(kit: Kit) -> None:
    """Write records of all forms, over several segments."""
    v6 = pack_host("2001:db8::1", 1)
    for number in range(120):
        tag = TAGS[number % len(TAGS)]
        properties = {"UNIQ_KEY": f"u{number}", "TAGS": tag} if tag else {"MYTAGS": "A"}
        fields: dict[str, Any] = {"properties": encode_properties(properties)}
        if number % 13 == 0:
            fields["born_host"] = v6
        if number % 17 == 0:
            fields["properties"] = b"TAGS\x01A\x02TAGS\x01B\x02TAGS\x01\x02"
        if number % 19 == 0:
            fields["properties"] = b"TAGS\x01\xff\x02x"
        body = b"" if number % 7 == 0 else f"{number}".encode().ljust(number)
        topic = (TOPIC, TOPIC, TOPIC, LONG_TOPIC)[number % 4]
        kit.write(body, topic=topic, queue_id=number % 5 // 4, **fields)
    kit.write(topic=SCHEDULE_TOPIC, properties=encode_properties({"DELAY": "3", "TAGS": "A"}))
    kit.write(topic=SCHEDULE_TOPIC, properties=encode_properties({"TAGS": "A"}))
    kit.dispatch()


@pytest.fixture(scope="module")
def filled_store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        kit = Kit(Path(directory) / "store")
        kit.open()
        fill(kit)
        kit.close()
        yield kit.root


_reads = st.tuples(
    st.sampled_from(((TOPIC, 0), (TOPIC, 0), (TOPIC, 1), (LONG_TOPIC, 0), (SCHEDULE_TOPIC, 0))),
    st.integers(0, 80),
    st.integers(1, 40),
    st.sampled_from((1, 300, 1500, 1 << 20)),
    st.sampled_from((None, None, ("A",), ("é𝄞", "B"), ("unknown",))),
)
#: Position in the log or in the units of a queue, and the new byte.
_damage = st.tuples(st.booleans(), st.integers(0, 4 * SEGMENT - 1), st.integers(0, 255))


def damage(kit: Kit, in_log: bool, at: int, byte: int) -> None:
    if in_log:
        kit.change(at, bytes([byte]))
        return
    files = sorted((kit.root / "consumequeue" / TOPIC).rglob("0*"))
    files = [path for path in files if path.is_file()]
    path = files[at % len(files)]
    with path.open("r+b") as file:
        file.seek(at % path.stat().st_size)
        file.write(bytes([byte]))


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_damage, max_size=4), st.lists(_reads, min_size=1, max_size=12), st.booleans())
def test_both_readers_return_the_same(
    filled_store: Path, damages: list[Any], reads: list[Any], sealed: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        kits: list[Kit] = []
        for kind in (Kit, NativeKit):
            root = Path(directory) / kind.__name__
            shutil.copytree(filled_store, root)
            kits.append(kind(root, enabled_append_prop_crc=sealed))
            kits[-1].open_only()
            for place in damages:
                damage(kits[-1], *place)
        for (topic, queue_id), offset, count, size, tags in reads:
            codes = None if tags is None else frozenset(map(java_hash, tags))
            results = [
                kit.store.get(topic, queue_id, offset, count, size, tag_codes=codes) for kit in kits
            ]
            assert results[0] == results[1]
        readers = [kit.store.reader for kit in kits]
        assert readers[0].check.mismatches == readers[1].check.mismatches
        assert readers[0].stopped == readers[1].stopped
        for kit in kits:
            kit.close()


def test_common_records_are_read_in_one_call(filled_store: Path, tmp_path: Path) -> None:
    shutil.copytree(filled_store, tmp_path / "store")
    kit = NativeKit(tmp_path / "store")
    kit.open_only()
    calls = []

    class Counted:
        def read(self, *args: Any, **named: Any) -> Any:
            found = QUEUE_RECORDS(StoredRecord).read(*args, **named)
            calls.append(found[0])
            return found

    kit.store.reader._native = Counted()
    result = kit.store.get(TOPIC, 1, 0, 4, 1 << 20)
    assert len(result.records) == 4
    assert sum(calls) > 0
    kit.close()


def test_a_read_keeps_no_memory(filled_store: Path, tmp_path: Path) -> None:
    shutil.copytree(filled_store, tmp_path / "store")
    kit = NativeKit(tmp_path / "store")
    kit.open_only()

    def read(times: int) -> int:
        return sum(len(kit.store.get(TOPIC, 1, 0, 4, 1 << 20).records) for _ in range(times))

    read(10)  # fills the caches
    before = sys.getallocatedblocks()
    records = read(1_000)
    assert sys.getallocatedblocks() - before < records / 100
    kit.close()
