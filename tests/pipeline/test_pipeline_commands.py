"""`cometmq pipeline`: every job as a command; insights, compaction, packing, usage errors."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click.testing
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkRuntimeError

import cometmq
from cometmq.cli.pipeline import (
    archive as pipeline_archive,
)
from cometmq.cli.pipeline import (
    session as pipeline_session,
)
from cometmq.cli.pipeline.session import tasks_of
from cometmq.cli.pipeline.spark_log import STDERR, SparkLog
from cometmq.cli.root import cli
from cometmq.client.testing.broker import TestBroker
from cometmq.operations.errors import CliError, Exit
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.archive import ArchivePlan, archive
from cometmq.pipeline.jobs.compact import latest_by_key
from cometmq.pipeline.jobs.insights import insights
from cometmq.tests.harness.cluster import cometmq_command, wait_until
from cometmq.tests.pipeline.logs import MadeLog, message
from cometmq.tests.pipeline.reading import whole_topic
from cometmq.tests.pipeline.written import sent, write_store

pytestmark = pytest.mark.timeout(600)

TABLE = ("replay", "--table", "/lake/t", "--format", "delta", "--topic", "t", "--to", "u")


@pytest.fixture
def run(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Calls a command on the session of the tests; its exit code and its document."""

    @contextmanager
    def session(*_: Any) -> Any:
        yield spark

    for name in ("archive", "sending", "store"):
        monkeypatch.setattr(f"cometmq.cli.pipeline.{name}.spark_session", session)

    def call(*arguments: str) -> tuple[int, Any]:
        runner = click.testing.CliRunner()
        words = ["pipeline", *arguments, "-o", "json"]
        result = runner.invoke(cli, words, standalone_mode=False)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.return_value, json.loads(result.stdout)

    return call


def test_a_job_runs_as_a_command(tmp_path: Path) -> None:
    """An embedded session, a table, the exit code; nothing but the job's own lines."""
    store = write_store(tmp_path / "broker-a", [sent("t", n) for n in range(500)])
    command = [*cometmq_command(), "pipeline", "verify", str(store), "--master", "local[1]"]
    log = tmp_path / "spark.log"
    command += ["--driver-memory", "512m", "--spark-log", str(log), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == Exit.DONE, done.stderr
    assert json.loads(done.stdout)["records"] == 500
    assert done.stderr == ""
    assert "log4j" in log.read_text()


def test_a_spark_that_does_not_start_is_one_sentence_and_its_log_stays(tmp_path: Path) -> None:
    store = write_store(tmp_path / "broker-a", [sent("t", 1)])
    command = [*cometmq_command(), "pipeline", "verify", str(store), "--master", "nowhere://"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert done.returncode == Exit.FAILED
    assert done.stdout == ""
    assert done.stderr.startswith("cometmq: Spark did not start: ")
    assert "Master must either be yarn or start with spark" in done.stderr
    (log,) = tmp_path.glob("cometmq-spark-*.log")
    assert done.stderr.endswith(f" Spark's log: {log}\n")
    assert done.stderr.count("\n") == 1


def test_a_temporary_spark_log_stays_only_after_a_failure_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = "An error occurred while calling o1.x.\n: Job aborted: reason\n\tat java"
    for error, left in ((PipelineError("ours"), 0), (PySparkRuntimeError(text), 1)):
        log = SparkLog("")
        with pytest.raises(CliError) as raised, log, pipeline_session.failures(log), log.starting():
            subprocess.run(["sh", "-c", "echo out; echo err >&2"], check=True)
            raise error
        found = [one.read_text() for one in tmp_path.iterdir()]
        assert found == ["out\nerr\n"] * left
    (path,) = tmp_path.iterdir()
    reason = f"The Spark job failed: Job aborted: reason. Spark's log: {path}"
    assert str(raised.value) == reason


def test_all_jobs_run_in_sequence(run: Callable[..., Any], tmp_path: Path) -> None:
    store = str(write_store(tmp_path / "broker-a", [sent("t", n) for n in range(1500)]))
    out = str(tmp_path / "archive")
    code, document = run("archive", store, out, "--live", "--dry-run")
    assert (code, document["dry_run"], Path(out).exists()) == (Exit.DONE, True, False)
    code, document = run("archive", store, out, "--live", "--split-bytes", "65536")
    assert (code, document["rows_written"]) == (Exit.DONE, 1500)
    code, document = run("archive", store, out, "--before", "1h")
    assert (code, document["splits"]) == (Exit.DONE, 0)
    code, document = run("check", out, "--store", store)
    assert (code, document["problems"]) == (Exit.DONE, [])
    code, document = run("reconcile", store, "--archive", out)
    assert (code, document["problems"]) == (Exit.DONE, [])
    code, document = run("reconcile", store, "--with", store)
    assert (code, document["different"]) == (Exit.DONE, 0)
    code, document = run("compact", out)
    assert (code, document["files_out"]) == (Exit.DONE, 1)
    code, document = run("replay", "--archive", out, "--topic", "t", "--to", "u", "--dry-run")
    assert (code, document["messages"], document["sent"]) == (Exit.DONE, 1500, 0)
    code, document = run("dlq", "--archive", out)
    assert (code, document["messages"]) == (Exit.DONE, 0)
    code, document = run("rebuild", store, str(tmp_path / "again"))
    assert (code, document["units"]) == (Exit.DONE, 1500)
    code, document = run("insights", store, str(tmp_path / "report"))
    assert (code, document["records"]) == (Exit.DONE, 1500)
    next(Path(out).glob("topic=t/dt=*/*.parquet")).unlink()
    code, document = run("check", out)
    assert code == Exit.PROBLEMS
    assert "cannot be read" in document["problems"][0]


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (("archive", "s", "a", "--codec", "zip"), "--codec must be one of zstd"),
        (("archive", "s", "a", "--follow", "0s"), "--follow requires a pause of at least 1s"),
        (("archive", "s", "a", "--follow", "9s", "--dry-run"), "cannot be used with --dry-run"),
        (("reconcile", "s"), "Give either --with STORE"),
        (("compact", "a", "--latest", "t"), "--latest TOPIC and --to DIR together"),
        (("dlq", "--store", "s", "--to", "t"), "--to requires --resend"),
        (("replay", "--topic", "t", "--to", "u"), "Give exactly one source"),
        ((*TABLE, "--queue", "0"), "--table cannot be used with --queue"),
        ((*TABLE, "--dry-run"), "--table cannot be used with --dry-run"),
        ((*TABLE, "--id", "again"), "--table cannot be used with --id"),
        (("verify", "s", "--topic", "t"), "--topic is for --table"),
        (("dlq",), "Give exactly one source"),
        (("dlq", "s", "--store", "s"), "Give exactly one source"),
        (("dlq", "s", "--reason", "("), "--reason is not a valid regular expression"),
    ],
)
def test_invalid_arguments_are_usage_errors_with_a_sentence(
    words: tuple[str, ...], document: str
) -> None:
    with pytest.raises(CliError, match=document) as caught:
        without_spark(*words)
    assert caught.value.code == Exit.USAGE


def without_spark(*words: str) -> None:
    """Calls a command; a session that it would start is a real one, in this process."""
    runner = click.testing.CliRunner()
    result = runner.invoke(cli, ["pipeline", *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "nowhere"),
        ("rebuild", "nowhere", "again"),
        ("insights", "nowhere", "out"),
        ("reconcile", "nowhere", "--with", "there"),
        ("archive", "nowhere", "out"),
        ("check", "nowhere"),
        ("compact", "nowhere"),
        ("dlq", "nowhere"),
        ("dlq", "--archive", "nowhere"),
        ("replay", "nowhere", "--topic", "t", "--to", "u"),
    ],
)
def test_a_missing_directory_is_reported_before_a_jvm_starts(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def started(*_: Any) -> None:
        raise AssertionError("a session was started")

    for name in ("archive", "sending", "store"):
        monkeypatch.setattr(f"cometmq.cli.pipeline.{name}.spark_session", started)
    with pytest.raises(CliError, match=r"no folder commitlog|nowhere is not an archive"):
        without_spark(*words)
    assert list(tmp_path.iterdir()) == []


def test_dlq_accepts_the_store_as_argument(
    run: Callable[..., Any],
) -> None:
    """`cometmq pipeline dlq STORE` equals `--store`; real dead letters are sent again."""
    with TestBroker() as broker:
        topic, group = broker.create_topic("poison"), broker.create_group("billing", max_attempts=1)
        with (
            cometmq.sync.Producer(broker.endpoints) as producer,
            cometmq.sync.SimpleConsumer(broker.endpoints, group=group, topics=topic) as consumer,
        ):
            for number in range(4):
                properties = {"reason": "no stock"} if number % 2 else {}
                producer.send(topic, f"{number}".encode(), keys=["k"], properties=properties)
            got = 0
            while got < 4:
                got += len(consumer.receive(invisible_for=30, wait=20))
            broker.clock.advance("40s")
            assert consumer.receive(wait=1) == []
        store = str(next(broker.directory.rglob("commitlog")).parent)
        wait_until("the store says so", lambda: run("dlq", store)[1]["messages"] == 4)
        code, document = run("dlq", store, "--group", group)
        assert code == Exit.DONE
        assert [(row["origin"], row["reason"], row["messages"]) for row in document["rows"]] == [
            (topic, "given up after 1 deliveries", 2),
            (topic, "no stock", 2),
        ]
        words = ("--reason", "stock", "--resend", "--yes", "--endpoint", broker.endpoints)
        code, document = run("dlq", store, *words)
        assert (code, document["sent"], document["problems"]) == (Exit.DONE, 2, [])
        found = whole_topic(broker.endpoints, topic, 6)
        assert sorted(int(one.body) for one in found) == [0, 1, 1, 2, 3, 3]


def test_follow_archives_appended_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Spark and with fake pauses; a round without new records prints nothing."""
    log = MadeLog(tmp_path / "broker-a").append(*(message(n) for n in range(900)))
    assert log.base, "one segment is full, one is not"
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            log.append(*(message(n) for n in range(900, 1000)))
        if len(pauses) == 4:
            raise KeyboardInterrupt

    @contextmanager
    def session(*_: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(pipeline_archive, "time", SimpleNamespace(sleep=pause))
    monkeypatch.setattr(pipeline_archive, "spark_session", session)
    words = ["pipeline", "archive", str(log.root), str(tmp_path / "out"), "--live"]
    words += ["--follow", "2s", "-o", "json"]
    result = click.testing.CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(result.exception, click.Abort)
    output, rounds = result.stdout.strip(), []
    while output:
        document, end = json.JSONDecoder().raw_decode(output)
        rounds.append((document["rows_written"], document["problems"]))
        output = output[end:].strip()
    assert rounds == [(900, []), (100, [])]
    assert pauses == [2.0] * 4
    offsets = ds.dataset(tmp_path / "out", partitioning="hive").to_table()["physicalOffset"]
    assert sorted(offsets.to_pylist()) == log.starts


def test_the_progress_bar_sums_the_running_stages() -> None:
    class Stage:
        def __init__(self, done: int, total: int) -> None:
            self.numCompletedTasks, self.numTasks = done, total

    class Tracker:
        def __init__(self) -> None:
            self.stages = {1: Stage(3, 8), 2: Stage(0, 2), 3: None}

        def getActiveStageIds(self) -> list[int]:
            return [1, 2, 3]

        def getStageInfo(self, number: int) -> Stage | None:
            return self.stages[number]

    assert tasks_of(Tracker()) == (3, 10)


def test_a_pipeline_error_is_extracted_from_sparks_exception() -> None:
    text = "Job aborted\n  cometmq.pipeline.errors.DamagedLogError: The log is damaged.\n at java"
    log = SparkLog(STDERR)
    with pytest.raises(CliError, match=r"^The log is damaged\.$"), pipeline_session.failures(log):
        raise RuntimeError(text)
    with pytest.raises(ValueError, match="else"), pipeline_session.failures(log):
        raise ValueError("else")


def test_the_packed_environment_has_what_a_worker_imports(tmp_path: Path) -> None:
    out = tmp_path / "env.tar.gz"
    command = [*cometmq_command(), "pipeline", "pack", str(out)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    with tarfile.open(out) as archive:
        archive.extractall(tmp_path / "environment", filter="fully_trusted")
    code = "import cometmq, pyarrow, sys; from cometmq.pipeline.jobs import archive, replay, dlq"
    code += "; print(sys.prefix, cometmq.__file__)"
    python = tmp_path / "environment" / "bin" / "python"
    done = subprocess.run(
        [str(python), "-I", "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.count(str(tmp_path)) == 2


def test_insights_count_all_messages(spark: Any, tmp_path: Path) -> None:
    messages = [
        sent("orders", n, KEYS="hot" if n % 2 else f"k{n}", body=b"x" * 100) for n in range(900)
    ]
    messages += [sent("small", n, queues=1, body=b"y") for n in range(100)]
    store = write_store(tmp_path / "broker-a", messages, step_ms=60_000)
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"orders@billing":{0:100,1:225,2:0}}}'
    )
    report = insights(spark, str(store), str(tmp_path / "out"), split_bytes=50_000)
    assert report.summary["records"] == 1000
    tables = {
        path.stem: pq.read_table(path).to_pylist() for path in (tmp_path / "out").glob("*.parquet")
    }
    assert sum(row["messages"] for row in tables["rates"]) == 1000
    assert sum(row["messages"] for row in tables["sizes"]) == 1000
    assert sum(row["messages"] for row in tables["latency"]) == 1000
    assert tables["keys"][0] == {"topic": "orders", "key": "hot", "messages": 450}
    assert [(row["group"], row["queue"], row["lag"]) for row in tables["lag"]] == [
        ("billing", 0, 125),
        ("billing", 1, 0),
        ("billing", 2, 225),
    ]
    (orders, small) = tables["skew"]
    assert (orders["queues"], orders["largest_to_mean"]) == (4, 1.0)
    assert (small["queues"], small["largest_share"]) == (1, 1.0)
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") >= 5
    assert "orders: hot" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_the_latest_of_every_key(spark: Any, tmp_path: Path) -> None:
    messages = [sent("accounts", n, queues=2, KEYS=f"account-{n % 10}") for n in range(200)]
    store = write_store(tmp_path / "broker-a", messages, step_ms=1000)
    out = tmp_path / "archive"
    archive(spark, ArchivePlan(str(store), str(out), live=True, split_bytes=8192))
    report = latest_by_key(spark, str(out), "accounts", str(tmp_path / "latest"))
    assert report.summary["keys"] == 10
    found = pq.read_table(tmp_path / "latest").to_pylist()
    assert sorted(row["body"] for row in found) == sorted(one.body for one in messages[-10:])
