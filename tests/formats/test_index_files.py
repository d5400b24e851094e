"""Index files of the golden cases: built again from the log they are Apache's, byte for byte, and
the key queries of the manifests have Apache's answers.

File names are creation times, so the clock gives the times in Apache's names. `expired` begins in
the middle of its log: its first index file holds entries of records that are gone, and is only
read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from cometmq.store.format.index_file import IndexLayout, guess_layout, index_files
from cometmq.store.message_store import MessageStore
from cometmq.store.query import KeyQuery, StoreQuery
from cometmq.tests.formats.cases import (
    CASES,
    KILLED,
    config_of,
    contents,
    dispatch_all,
    manifest,
    new_store,
    records_of,
    unpack,
)

TRIMMED = ("expired",)
LAYOUT = IndexLayout(100, 400)


def clock_of(names: list[str]) -> Callable[[], int]:
    """A wall clock that shows the time in the next of these file names whenever it is read."""
    times = [
        int(datetime.strptime(name[:14], "%Y%m%d%H%M%S").timestamp()) * 1000 + int(name[14:])
        for name in names
    ]
    return iter(times).__next__


@pytest.mark.parametrize("case", [case for case in CASES if case not in TRIMMED])
def test_rebuilt_files_equal_apaches(case: str, tmp_path: Path) -> None:
    root = unpack(case, tmp_path)
    expected = contents(root, "index")
    assert expected
    for name in expected:
        (root / name).unlink()
    clock = clock_of([Path(name).name for name in sorted(expected)])
    store = MessageStore(config_of(case, root), clock)
    store.open()
    store.start()
    dispatch_all(store)
    while store.index.turn():
        pass
    store.close()
    assert contents(root, "index") == expected


@pytest.mark.parametrize("case", CASES)
def test_opening_and_closing_changes_no_index_file(case: str, tmp_path: Path) -> None:
    root = unpack(case, tmp_path)
    before = contents(root, "index")
    store = new_store(case, root)
    store.open()
    store.start()
    dispatch_all(store)
    store.close()
    after = contents(root, "index")
    if (
        case in KILLED
    ):  # full files that the checkpoint vouches for stay, the others are built again
        assert [name for name in before if name not in after] == list(before)[-1:]
        assert {
            name: data for name, data in before.items() if name in after
        }.items() <= after.items()
    else:
        assert after == before


@pytest.mark.parametrize("case", CASES)
def test_key_queries_have_apaches_answers(case: str, tmp_path: Path) -> None:
    root = unpack(case, tmp_path)
    questions = manifest(case).get("key_queries", [])
    for path in index_files(str(root / "index")):
        assert guess_layout(path) == LAYOUT
    offline = StoreQuery([str(root / "commitlog")], str(root / "index"))
    with offline:
        for asked in questions:
            answer = offline.query(KeyQuery(asked["topic"], asked["key"], 64))
            assert [r.physical_offset for r in answer] == sorted(asked["physical_offsets"])
    store = new_store(case, root)
    store.open()
    store.start()
    dispatch_all(store)
    for asked in questions:
        answer = store.queries.query(asked["topic"], asked["key"])
        assert [r.physical_offset for r in answer] == sorted(asked["physical_offsets"])
    store.close()


@pytest.mark.parametrize("case", ["normal", "transaction", "v2", "grpc"])
def test_every_record_is_found_by_each_of_its_keys(case: str, tmp_path: Path) -> None:
    root = unpack(case, tmp_path)
    log, index = os.fspath(root / "commitlog"), os.fspath(root / "index")
    with StoreQuery([log], index, LAYOUT) as offline:
        for record, _ in list(records_of(root))[::3]:
            if record.sys_flag & 0xC == 0xC:  # rolled back
                continue
            keys = record.properties_dict
            at = record.store_timestamp_ms
            for kind, key in (("U", keys.get("UNIQ_KEY")), ("T", keys.get("TAGS"))):
                if key:
                    asked = KeyQuery(record.topic, key, 10_000, at, at, kind)
                    offsets = [found.physical_offset for found in offline.query(asked)]
                    assert record.physical_offset in offsets
            for key in filter(None, keys.get("KEYS", "").split(" ")):
                asked = KeyQuery(record.topic, key, 10_000, at, at, "K")
                offsets = [found.physical_offset for found in offline.query(asked)]
                assert record.physical_offset in offsets
