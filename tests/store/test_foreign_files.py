"""Files and folders of a directory that are not ours stay as they are, whatever happens to the
store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.tests.store.kit import Kit

#: What Apache keeps beside the file store (docs/formats/store-format.md, section 1), and what an
#: operator might. (Databases in place of its files are refused: `test_other_engines.py`.)
FOREIGN = (
    "rocksdbstore/CURRENT",
    "rocksdbstore/MANIFEST-000005",
    "kvStore/000004.log",
    "compaction/position-checkpoint",
    "compaction/compactionLog/Topic/0/00000000000000000000",
    "compaction/compactionCq/Topic/0/00000000000000000000",
    "batchconsumequeue/Batches/0/00000000000000000000",
    "config/topics.json",
    "config/consumerOffset.json",
    "config/acls/000003.sst",
    "config/timercheck",
    "config/timermetrics",
    "timerlog/00000000000000000000",
    "timerwheel",
    "epochFileCheckpoint",
    "brokerIdentity",
    "abort.bak",
    "notes.txt",
)


def foreign(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in FOREIGN}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_foreign_files_are_left_unchanged(tmp_path: Path, end: str) -> None:
    kit = Kit(tmp_path / "store")
    for name in FOREIGN:
        path = kit.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name}\0".encode() * 40)
    before = foreign(kit.root)
    kit.open()
    for _ in range(2):
        for number in range(8):
            kit.write(f"body {number}".encode() * 20)
        if end == "stop":
            kit.reopen()
        else:
            kit.kill()
            kit.open()
        assert foreign(kit.root) == before
    kit.close()
    assert foreign(kit.root) == before
