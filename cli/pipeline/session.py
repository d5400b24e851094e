"""The Spark session of a job, and a progress bar from Spark's status tracker.

Without `--master` Spark runs in this process tree (`local[*]`). The bar is drawn on a terminal
only; Spark's log goes to a file (`spark_log.py`). A report becomes a table or JSON; problems in it
give exit code 5.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...operations.errors import CliError, Exit
from ..output import print_table, show_document, show_fields
from .interruption import Interruption
from .spark_log import STDERR, SparkLog, is_of_spark, keep_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...pipeline.jobs.running import Report

F = TypeVar("F", bound=Callable[..., Any])
_POLL_S = 0.2
#: Set by spark-submit, which has already started the JVM.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
#: How to install the extra.
MISSING = (
    "The pipeline requires Spark: pip install 'cometmq[spark]' (without Java also 'cometmq[java]')."
)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Spark's options."""

    master: str
    memory: str
    settings: tuple[str, ...]


def spark_options(command: F) -> F:
    """Add `--master`, `--driver-memory`, `--conf` and `--spark-log`."""
    for option in (
        click.option(
            "--spark-log",
            default="",
            metavar="FILE",
            expose_value=False,
            callback=keep_place,
            help="Write Spark's log to this file, or with - to stderr [default: a temporary file,"
            " kept if Spark fails].",
        ),
        click.option(
            "--conf",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="A Spark setting; repeatable.",
        ),
        click.option(
            "--driver-memory",
            "memory",
            default="1g",
            show_default=True,
            help="Memory of the driver's JVM.",
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            metavar="URL",
            help="Spark master: local[N], spark://HOST:PORT, yarn or k8s://...",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def spark_session(job: str, options: SessionOptions) -> Iterator["SparkSession"]:
    """Open a session for one job; convert errors of the job, also those wrapped by Spark. Raises
    CliError."""
    try:
        from pyspark.sql import SparkSession

        from ...pipeline.pyspark_rocketmq import configure, register
    except ImportError as error:
        raise CliError(f"{MISSING} ({error})") from None
    said = _settings(options)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "spark.pyspark.python" in said:
        os.environ["PYSPARK_PYTHON"] = said["spark.pyspark.python"]
    elif options.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    submitted = _SUBMITTED in os.environ
    log = SparkLog(STDERR) if submitted else SparkLog.of_command()
    with log, failures(log), Interruption() as interruption:
        builder = configure(SparkSession.builder)
        builder = builder.appName(f"cometmq pipeline {job}")
        if not submitted:  # otherwise set by spark-submit
            builder = builder.master(options.master).config("spark.driver.memory", options.memory)
        for key, value in said.items():
            builder = builder.config(key, value)
        try:
            with log.starting():
                spark = builder.getOrCreate()
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise log.not_started(error) from error
        interruption.install()
        try:
            register(spark)
            with _progress(spark, job):
                yield spark
        except KeyboardInterrupt:
            interruption.mute(spark)
            raise
        finally:
            spark.stop()


def require_directories(*, store: str = "", archive: str = "") -> None:
    """Check that the directories exist, before a JVM is started. Raises CliError."""
    from ...pipeline.errors import UnreachableError
    from ...pipeline.segments import segments

    if store:
        try:
            segments(store)
        except UnreachableError as error:
            raise CliError(str(error)) from None
    if archive and not os.path.isdir(archive):
        raise CliError(f"{archive} is not an archive: no such directory.")


def _settings(options: SessionOptions) -> dict[str, str]:
    found = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for text in options.settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise CliError(f"--conf must be KEY=VALUE, but is '{text}'.", Exit.USAGE)
        found[key] = value
    return found


@contextmanager
def _progress(spark: "SparkSession", job: str) -> Iterator[None]:
    """Show a bar of finished tasks while a job runs."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    ended = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        task = bar.add_task(job, total=None)
        while not ended.wait(_POLL_S):
            done, total = tasks_of(tracker)
            if total:
                bar.update(task, completed=done, total=total)

    thread = threading.Thread(target=watch, name="pipeline-progress", daemon=True)
    with bar:
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def tasks_of(tracker: Any) -> tuple[int, int]:
    """Return the numbers of finished and of all tasks of the active stages."""
    done = total = 0
    for number in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(number)
        if stage is not None:
            done += stage.numCompletedTasks
            total += stage.numTasks
    return done, total


def show_report(report: "Report", output: str, columns: Sequence[str] = ()) -> int:
    """Print a report; returns the exit code."""
    if output == "json":
        show_document(report.document())
    else:
        show_fields(report.summary, output)
        if report.rows:
            click.echo()
            print_table([{name: row[name] for name in columns or row} for row in report.rows])
        for problem in report.problems:
            click.echo(f"! {problem}")
    return Exit.PROBLEMS if report.problems else Exit.DONE


@contextmanager
def failures(log: SparkLog) -> Iterator[None]:
    """Convert errors of a job, also those wrapped by Spark, to CliError."""
    from ...pipeline.errors import PipelineError

    try:
        yield
    except PipelineError as error:
        raise CliError(str(error)) from error
    except CliError:
        raise
    except Exception as error:
        if sentence := _cause(str(error)):
            raise CliError(sentence) from error
        if is_of_spark(error):
            raise log.failed(error) from error
        raise


def _cause(text: str) -> str:
    """Return the message of our own error inside a Spark failure; "" if there is none."""
    for line in text.splitlines():
        name, colon, sentence = line.strip().partition(": ")
        ours = ("cometmq.pipeline.", "cometmq.client.errors.", "cometmq.store.format.errors.")
        if colon and name.startswith(ours):
            return sentence
    return ""
