"""Archive: each row exactly once after crashes; damage is reported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from cometmq.pipeline.archive import manifest as manifests
from cometmq.pipeline.archive.coverage import covered_to, left_to_do
from cometmq.pipeline.archive.errors import ArchiveError
from cometmq.pipeline.archive.manifest import all_manifests, files_of, finish, strays
from cometmq.pipeline.archive.names import folder_of, split_name, sync_folder
from cometmq.pipeline.archive.planning import grid_splits, snapshot
from cometmq.pipeline.archive.settings import only_writer, open_archive
from cometmq.pipeline.archive.splits import SplitWork, archive_split
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.archive import ArchivePlan, archive, check_archive
from cometmq.pipeline.jobs.compact import compact_files
from cometmq.pipeline.splits import Split
from cometmq.tests.formats.cases import CASES, records_of
from cometmq.tests.pipeline.written import BEGIN_MS, sent, write_store

SPLIT = 16 << 10


def rows(root: Path) -> pa.Table:
    """What plain PyArrow reads from the folder."""
    return ds.dataset(root, partitioning="hive").to_table()


def plan(store: Path, out: Path, **more: Any) -> ArchivePlan:
    return ArchivePlan(str(store), str(out), live=True, split_bytes=SPLIT, **more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three topics, one with a name that a path cannot have, over two days."""
    names = ("orders", "payments", "%RETRY%group")
    messages = [sent(names[n % 3], n // 3, body=b"x" * (n % 200 + 1)) for n in range(3000)]
    root = tmp_path_factory.mktemp("store") / "broker-a"
    return write_store(root, messages, step_ms=3_600_000)


@pytest.mark.parametrize("case", CASES)
def test_a_golden_directory_is_archived_record_by_record(
    case: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    root = golden(case)
    report = archive(None, plan(root, tmp_path))
    expected = sorted((record.physical_offset, record.topic) for record, _ in records_of(root))
    assert report.summary["rows_written"] == len(expected)
    found = [
        (offset, file.topic)
        for file in files_of(all_manifests(str(tmp_path)))
        for offset in pq.read_table(tmp_path / file.path, partitioning=None)[
            "physicalOffset"
        ].to_pylist()
    ]
    assert sorted(found) == expected
    assert rows(tmp_path).num_rows == len(expected)
    assert check_archive(None, str(tmp_path), str(root)).problems == []
    assert archive(None, plan(root, tmp_path)).summary["splits"] == 0


def test_files_hold_one_topic_and_day_in_queue_order(store: Path, tmp_path: Path) -> None:
    archive(None, plan(store, tmp_path))
    table = rows(tmp_path)
    assert sorted(set(table["topic"].to_pylist())) == ["%RETRY%group", "orders", "payments"]
    assert len(set(table["dt"].to_pylist())) == 3
    one = next((tmp_path / "topic=orders").glob("dt=*/*.parquet"))
    part = pq.read_table(one, partitioning=None)
    assert "topic" not in part.column_names
    assert part.schema.metadata[b"cometmq.topic"] == b"orders"
    order = list(zip(part["queueId"].to_pylist(), part["queueOffset"].to_pylist(), strict=True))
    assert order == sorted(order)
    for stamp in part["storeTimestamp"].to_pylist():
        assert f"dt={stamp.date()}" == one.parent.name


def test_a_round_continues_at_the_archived_end(store: Path, tmp_path: Path) -> None:
    found = snapshot(str(store))
    for end in (found.start + 5000, found.start + 70_000, found.end):
        part = replace(found, end=end)
        done = manifests_ranges(tmp_path, "broker-a")
        for cell in left_to_do(grid_splits(part, SPLIT, live=True), done):
            archive_split(SplitWork(str(tmp_path), cell))
    assert check_archive(None, str(tmp_path), str(store)).problems == []
    offsets = rows(tmp_path)["physicalOffset"].to_pylist()
    assert sorted(offsets) == sorted(record.physical_offset for record, _ in records_of(store))
    ranges = manifests_ranges(tmp_path, "broker-a")
    assert covered_to(ranges, found.start) == found.end


def manifests_ranges(root: Path, broker: str) -> list[tuple[int, int]]:
    from cometmq.pipeline.archive.coverage import ranges_of

    return ranges_of(all_manifests(str(root)), broker)


def test_only_complete_segments_are_archived_without_live(store: Path, tmp_path: Path) -> None:
    report = archive(None, replace(plan(store, tmp_path), live=False))
    last = snapshot(str(store)).log
    ends = [segment.end for segment in last if segment.end <= snapshot(str(store)).end]
    assert manifests_ranges(tmp_path, "broker-a") == [(0, max(ends))]
    assert report.problems == []


class DiedError(BaseException):
    """What SIGKILL is to the code that it meets."""


@pytest.mark.parametrize("step", range(1, 40, 3))
def test_a_crash_at_any_step_leaves_each_row_once(
    step: int, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes the file system is a step; the last one is never reached."""
    calls = 0

    def dying(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                raise DiedError
            return real(*arguments, **named)

        return call

    names = ("rename", "link", "unlink", "makedirs")
    found = snapshot(str(store))
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(os, name, dying(getattr(os, name)))
        patch.setattr(manifests, "sync_folder", dying(sync_folder))
        with pytest.raises(DiedError):
            for cell in grid_splits(found, 64 << 10, live=True):
                archive_split(SplitWork(str(tmp_path), cell))
    archive(None, replace(plan(store, tmp_path), split_bytes=64 << 10))
    offsets = rows(tmp_path)["physicalOffset"].to_pylist()
    assert sorted(offsets) == sorted(record.physical_offset for record, _ in records_of(store))
    assert strays(str(tmp_path), all_manifests(str(tmp_path))) == []
    assert os.listdir(tmp_path / "_staging") == []


def test_the_first_of_two_attempts_at_a_split_counts(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was given up commits after its successor."""
    from cometmq.pipeline.archive import splits

    cell = grid_splits(snapshot(str(store)), SPLIT, live=True)[0]
    work = SplitWork(str(tmp_path), cell)
    real = manifests.commit

    def late(root: str, manifest: Any) -> bool:
        monkeypatch.setattr(splits, "commit", real)
        other = archive_split(work)
        assert other.fresh
        return real(root, manifest)

    monkeypatch.setattr(splits, "commit", late)
    # Its folder was swept together with its successor's: it finds the record and is content.
    assert not archive_split(work).fresh
    offsets = rows(tmp_path)["physicalOffset"].to_pylist()
    assert len(offsets) == len(set(offsets)) > 0
    assert len(all_manifests(str(tmp_path))) == 1


def test_a_second_archiver_of_one_broker_is_refused(tmp_path: Path) -> None:
    open_archive(str(tmp_path))
    with (
        only_writer(str(tmp_path), "x"),
        pytest.raises(ArchiveError, match="Another process runs the job"),
        only_writer(str(tmp_path), "x"),
    ):
        raise AssertionError


def test_the_split_size_of_an_archive_cannot_be_changed(store: Path, tmp_path: Path) -> None:
    archive(None, plan(store, tmp_path))
    with pytest.raises(ArchiveError, match="splitBytes=16384"):
        archive(None, replace(plan(store, tmp_path), split_bytes=32 << 10))
    with pytest.raises(ArchiveError, match="at least"):
        open_archive(str(tmp_path / "other"), 1)


def _damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_check_reports_damage_in_the_archive(store: Path, tmp_path: Path) -> None:
    archive(None, plan(store, tmp_path))
    files = sorted(tmp_path.glob("topic=*/dt=*/*.parquet"))
    _damage(files[0], files[0].stat().st_size // 3)
    files[-1].unlink()
    problems = check_archive(None, str(tmp_path), str(store)).problems
    assert len(problems) >= 2
    names = " ".join(problems)
    assert files[0].name in names
    assert files[-1].name in names


def test_check_reports_a_changed_log(store: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "broker-a"
    shutil.copytree(store, copy)
    archive(None, plan(copy, tmp_path / "archive"))
    _damage(copy / "commitlog" / "00000000000000000000", 20_000)
    problems = check_archive(None, str(tmp_path / "archive"), str(copy)).problems
    assert problems == ["Bytes [16384, 32768) of the log differ from the archived ones."]


def test_another_log_under_the_same_broker_name_is_refused(
    tmp_path: Path,
) -> None:
    """Every broker of `cometmq up` has its log in a folder named `store`."""
    one, two = (tmp_path / name / "store" for name in ("one", "two"))
    for root, byte in ((one, b"1"), (two, b"2")):
        root.parent.mkdir()
        write_store(root, [sent("orders", n, body=byte * 200) for n in range(500)])
    out = tmp_path / "archive"
    assert archive(None, plan(one, out)).summary["rows_written"] == 500
    with pytest.raises(PipelineError, match=r"another log under the broker name 'store'.*--broker"):
        archive(None, plan(two, out))
    assert archive(None, plan(two, out, broker="two")).summary["rows_written"] == 500
    assert archive(None, plan(one, out)).summary["splits"] == 0
    assert rows(out).num_rows == 1000


def test_compaction_merges_small_files_that_check_verifies(store: Path, tmp_path: Path) -> None:
    archive(None, plan(store, tmp_path))
    before = rows(tmp_path).sort_by("physicalOffset")
    count = len(list(tmp_path.glob("topic=*/dt=*/*.parquet")))
    report = compact_files(None, str(tmp_path), target_bytes=1 << 20)
    assert len(list(tmp_path.glob("topic=*/dt=*/*.parquet"))) == 9 < count
    assert report.summary["files_out"] == 9
    assert rows(tmp_path).sort_by("physicalOffset").equals(before)
    assert check_archive(None, str(tmp_path), str(store)).problems == []
    assert compact_files(None, str(tmp_path)).summary["folders"] == 0
    assert archive(None, plan(store, tmp_path)).summary["splits"] == 0


def test_a_crash_during_compaction_keeps_each_row_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(None, plan(store, tmp_path))
    before = rows(tmp_path).sort_by("physicalOffset")
    real = os.unlink
    calls = 0

    def dying(path: Any, *arguments: Any, **named: Any) -> None:
        nonlocal calls
        if (
            str(path).endswith(".parquet")
            and os.path.dirname(str(path)).rpartition("/")[2][:3] == "dt="
        ):
            calls += 1
            if calls == 3:
                raise DiedError
        real(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", dying)
        with pytest.raises(DiedError):
            compact_files(None, str(tmp_path))
    # The listing has rows twice now; the records do not.
    assert sum(file.rows for file in files_of(all_manifests(str(tmp_path)))) == before.num_rows
    finish(str(tmp_path))
    assert rows(tmp_path).sort_by("physicalOffset").equals(before)


def test_a_topic_too_long_for_a_folder_is_truncated_with_a_checksum() -> None:
    long = "%RETRY%" + "g" * 255
    folder = folder_of(long, 20_000)
    assert all(len(part) <= 255 for part in folder.split("/"))
    assert folder != folder_of(long + "h", 20_000)
    assert split_name("a.b", 0, 0) != split_name("a", 0, 0)


def test_archived_ranges_are_not_planned_again() -> None:
    cell = Split("r", 0, "p", 0, 100, "b")
    assert left_to_do([cell], []) == [cell]
    assert left_to_do([cell], [(0, 100)]) == []
    assert left_to_do([cell], [(0, 40)]) == [replace(cell, start=40)]
    assert left_to_do([cell], [(200, 300)]) == [cell]
    assert covered_to([(0, 40), (50, 60)], 0) == 40
    assert covered_to([(0, 40)], 60) == 0


def test_archived_times_equal_those_of_the_records(store: Path, tmp_path: Path) -> None:
    archive(None, plan(store, tmp_path))
    first = min(rows(tmp_path)["storeTimestamp"].to_pylist())
    assert round(first.timestamp() * 1000) == BEGIN_MS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("removes", ["../victim"]),
        ("removes", ["/victim"]),
        ("path", "topic=orders/../../victim"),
        ("staged", "../victim"),
        ("name", "../victim"),
        ("name", "another"),
    ],
)
def test_a_commit_record_that_names_paths_outside_is_refused(
    field: str, value: Any, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "archive"
    archive(None, plan(store, out))
    victim = tmp_path / "victim"
    victim.write_text("kept")
    record = sorted((out / "_manifest").glob("*.json"))[-2]
    document = json.loads(record.read_text())
    target = document if field in document else document["files"][0]
    target[field] = [str(tmp_path) + one for one in value] if value == ["/victim"] else value
    record.write_text(json.dumps(document))
    (out / "_staging" / f"{record.stem}~1").mkdir(parents=True)
    with pytest.raises(ArchiveError, match="is not a commit record"):
        finish(str(out))
    assert victim.read_text() == "kept"
