"""Jobs verify, rebuild and reconcile: rebuilt files equal the broker's byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.rebuild import RebuildPlan, rebuild
from cometmq.pipeline.jobs.reconcile import reconcile_archive, reconcile_stores
from cometmq.pipeline.jobs.running import Report
from cometmq.pipeline.jobs.verify import verify
from cometmq.tests.formats.cases import CASES, contents
from cometmq.tests.pipeline.written import sent, write_store

pytestmark = pytest.mark.timeout(600)

SPLIT = 50_000
FILLER = bytes.fromhex("00000000000000007fffffff0000000000000000")


def again(root: Path, out: Path) -> Report:
    return rebuild(None, RebuildPlan(str(root), str(out), split_bytes=SPLIT))


@pytest.mark.parametrize("case", CASES)
def test_rebuilt_files_equal_those_of_apache(
    case: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    root = golden(case)
    report = again(root, tmp_path / "again")
    assert report.problems == []
    assert (report.summary["units_carried"] > 0) == (case == "expired")
    for folder in ("consumequeue", "consumequeue_ext", "index"):
        assert contents(tmp_path / "again", folder) == contents(root, folder), folder


def test_units_of_deleted_records_are_carried_over_from_the_store(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Fillers are written only if the store's files are missing."""
    root = tmp_path / "expired"
    shutil.copytree(golden("expired"), root)
    theirs = contents(root, "consumequeue")
    shutil.rmtree(root / "consumequeue" / "TopicExpired" / "1")
    damaged(root / "consumequeue" / "TopicExpired" / "0" / f"{4000:020d}", 20 * 5, b"\xff" * 20)
    report = again(root, tmp_path / "again")
    assert (report.problems, report.summary["units_carried"]) == ([], 5)
    starts = {(row["topic"], row["queue"]): row["first"] * 20 for row in report.rows}
    for name, data in contents(tmp_path / "again", "consumequeue").items():
        _, topic, queue, file = name.split("/")
        begin = starts[topic, int(queue)] - int(file)
        old = 0 if queue == "1" else 5 * 20
        assert data[begin:] == theirs[name][begin:]
        assert data[old:begin] == FILLER * ((begin - old) // 20)
        assert data[:old] == theirs[name][:old]


def test_a_queue_without_remaining_records_keeps_its_next_offset(tmp_path: Path) -> None:
    """A queue that restarts at 0 would be behind the consumers' offsets."""
    messages = [sent("idle", n, queues=2) for n in range(400)]
    messages += [sent("busy", n, queues=2) for n in range(900)]
    root = write_store(tmp_path / "store", messages)
    for segment in sorted((root / "commitlog").iterdir())[:2]:
        segment.unlink()
    report = again(root, tmp_path / "again")
    assert report.problems == []
    assert report.summary["queues_of_old_units"] == 2
    for folder in ("consumequeue", "index"):
        assert contents(tmp_path / "again", folder) == contents(root, folder), folder


def test_a_store_of_cometmq_is_rebuilt_with_spark(spark: object, tmp_path: Path) -> None:
    messages = [sent(f"t{n % 5}", n, queues=8) for n in range(5000)]
    root = write_store(tmp_path / "store", messages)
    out = tmp_path / "again"
    plan = RebuildPlan(str(root), str(out), split_bytes=100_000)
    report = rebuild(spark, plan)  # type: ignore[arg-type]
    assert report.problems == []
    assert report.summary["units"] == 5000
    for folder in ("consumequeue", "index"):
        assert contents(out, folder) == contents(root, folder)
    report = verify(spark, str(root), split_bytes=100_000)  # type: ignore[arg-type]
    assert (report.summary["records"], report.problems) == (5000, [])


def test_the_output_directory_must_be_outside_the_store_and_empty(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", [sent("t", 1)])
    with pytest.raises(PipelineError, match="is inside the store"):
        rebuild(None, RebuildPlan(str(root), str(root / "again")))
    with pytest.raises(PipelineError, match="not empty"):
        rebuild(None, RebuildPlan(str(root), str(tmp_path)))


@pytest.mark.parametrize("case", CASES)
def test_verify_finds_no_problem_in_a_golden_directory(
    case: str, golden: Callable[[str], Path]
) -> None:
    assert verify(None, str(golden(case)), split_bytes=SPLIT).problems == []


def damaged(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_verify_reports_a_unit_with_a_wrong_offset(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", [sent("t", n, queues=1) for n in range(100)])
    damaged(root / "consumequeue/t/0/00000000000000000000", 20 * 7, b"\0\0\0\0\0\1\2\3")
    (problem,) = verify(None, str(root)).problems
    assert problem.startswith("t/0: unit 7 points to 66051")


def test_verify_reports_a_missing_queue(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", [sent("t", n, queues=2) for n in range(100)])
    shutil.rmtree(root / "consumequeue/t/1")
    assert verify(None, str(root)).problems == ["t/1: 50 records have no unit."]
    (root / "abort").write_text("1")  # a broker has the store open, or was killed
    report = verify(None, str(root))
    assert (report.problems, report.summary["units_behind"]) == ([], 50)


def test_verify_reports_a_damaged_body_and_a_damaged_size(tmp_path: Path) -> None:
    body = b"b" * 500
    root = write_store(tmp_path / "store", [sent("t", n, queues=1, body=body) for n in range(300)])
    segment = root / "commitlog/00000000000000000000"
    at = segment.read_bytes().index(body, 20_000)
    damaged(segment, at + 100, b"?")
    problems = verify(None, str(root), split_bytes=30_000).problems
    assert len(problems) == 1
    assert "checksum of the body" in problems[0]
    assert verify(None, str(root), crc=False).problems == []
    damaged(segment, 0, b"\0\0\0\1")
    problems = verify(None, str(root), split_bytes=30_000).problems
    assert any("[0, " in problem for problem in problems)
    assert rebuild(None, RebuildPlan(str(root), str(tmp_path / "again"))).problems


def test_reconcile_reports_a_difference_of_replicas(tmp_path: Path) -> None:
    root = write_store(tmp_path / "a", [sent("t", n, body=b"b" * 300) for n in range(2000)])
    other = tmp_path / "b"
    shutil.copytree(root, other)
    report = reconcile_stores(None, str(root), str(other), digest_bytes=20_000)
    assert (report.problems, report.summary["different"]) == ([], 0)
    segment = other / "commitlog/00000000000000065536"
    at = segment.read_bytes().index(b"b" * 300, 5_000)
    damaged(segment, at - 70, b"\7")  # in a record's head
    report = reconcile_stores(None, str(root), str(other), digest_bytes=20_000)
    assert report.summary["different"] == 1
    assert "differ in [65536, 85536)" in report.problems[0]


def test_reconcile_reports_damaged_and_stray_archive_files(tmp_path: Path) -> None:
    from cometmq.pipeline.jobs.archive import ArchivePlan, archive

    root = write_store(tmp_path / "a", [sent("t", n) for n in range(3000)])
    out = tmp_path / "archive"
    archive(None, ArchivePlan(str(root), str(out), live=True, split_bytes=20_000))
    report = reconcile_archive(None, str(root), str(out))
    assert (report.problems, report.summary["units"] > 5) == ([], True)
    next(out.glob("topic=t/dt=*/*.parquet")).unlink()
    (out / "topic=t" / "stray.parquet").write_bytes(b"x")
    problems = reconcile_archive(None, str(root), str(out)).problems
    assert any("cannot be read" in problem for problem in problems)
    assert "topic=t/stray.parquet is in no commit record." in problems


def with_topic_that_leaves_the_store(root: Path) -> Path:
    """A store of 40 messages, half of them with a topic that is a path."""
    messages = [sent(topic, n) for n in range(20) for topic in ("abcdef", "orders")]
    write_store(root, messages)
    shutil.rmtree(root / "consumequeue" / "abcdef")
    for segment in (root / "commitlog").iterdir():
        segment.write_bytes(segment.read_bytes().replace(b"\x06abcdef", b"\x06../../"))
    return root


def test_a_topic_that_is_a_path_is_reported_and_writes_nothing(tmp_path: Path) -> None:
    root = with_topic_that_leaves_the_store(tmp_path / "store")
    out = tmp_path / "a" / "b" / "again"
    report = again(root, out)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["again"]
    assert {row["topic"] for row in report.rows} == {"orders"}
    for problems in (report.problems, verify(None, str(root)).problems):
        assert [p for p in problems if "cannot name a queue" in p] == [
            f"5 records have the topic '../../' and the queue id {n}, which cannot name a queue."
            for n in range(4)
        ]


def test_the_output_is_private(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", [sent("t", n) for n in range(20)])
    again(root, tmp_path / "again")
    assert (tmp_path / "again").stat().st_mode & 0o077 == 0
