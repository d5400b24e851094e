"""The streaming archive under SIGKILL: plain PyArrow reads each row exactly once."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from cometmq.pipeline.archive.manifest import all_manifests, files_of, strays
from cometmq.tests.formats.cases import records_of
from cometmq.tests.pipeline.killing import Killer
from cometmq.tests.pipeline.written import sent, write_store

pytest.importorskip("pyspark", reason="pyspark is not installed")


def killed(tmp_path: Path, count: int, drivers: int, workers: int) -> None:
    messages = [sent(f"topic{n % 3}", n, body=b"b" * (n % 300 + 1)) for n in range(count)]
    store = write_store(tmp_path / "store", messages, segment=256 << 10)
    expected = sorted(record.physical_offset for record, _ in records_of(store))
    killer = Killer(store, tmp_path / "out", tmp_path / "checkpoint", messages=500)
    while killer.driver_kills < drivers:
        assert killer.kill_driver(), killer.log[-1]
        seen(tmp_path / "out", expected, whole=False)
    while killer.worker_kills < workers:
        before = killer.worker_kills
        killer.kill_workers(workers)
        assert killer.worker_kills > before, killer.log[-1]
    killer.finish()
    seen(tmp_path / "out", expected, whole=True)
    found = all_manifests(str(tmp_path / "out"))
    assert strays(str(tmp_path / "out"), found) == []
    assert sum(file.rows for file in files_of(found)) == count
    assert list((tmp_path / "out" / "_staging").iterdir()) == []
    print(f"{killer.runs} drivers, {killer.driver_kills} and {killer.worker_kills} killed")


def seen(out: Path, expected: list[int], whole: bool) -> None:
    """At any time no row twice and no file that cannot be read; at the end all of them."""
    table = ds.dataset(out, partitioning="hive").to_table(columns=["physicalOffset"])
    offsets = sorted(table["physicalOffset"].to_pylist())
    assert len(offsets) == len(set(offsets))
    assert set(offsets) <= set(expected)
    assert not whole or offsets == expected


@pytest.mark.timeout(1800)
def test_archiving_survives_a_driver_kill_and_a_worker_kill(tmp_path: Path) -> None:
    killed(tmp_path, 4_000, 1, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_archiving_survives_twenty_driver_and_twenty_worker_kills(tmp_path: Path) -> None:
    killed(tmp_path, 60_000, 20, 20)
