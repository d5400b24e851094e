"""`cometmq pipeline archive`, `check` and `compact`: writing and maintaining an archive."""

import time
from dataclasses import replace
from typing import Any

import click

from ...operations.errors import CliError, Exit
from ..links import links
from ..options import data_option, output_option, tls_options
from ..output import show_document
from ..times import duration
from .session import (
    SessionOptions,
    require_directories,
    show_report,
    spark_options,
    spark_session,
)


@click.command()
@click.argument("store", metavar="STORE")
@click.argument("out", metavar="ARCHIVE")
@click.option("--broker", default="", help="Broker name in the rows (default: the folder's name).")
@click.option(
    "--before",
    type=duration("h"),
    metavar="DURATION",
    help="Only segments not written to for this time, as 48h or 7d, or in hours.",
)
@click.option(
    "--live", is_flag=True, help="Archive up to the end of the log, not only whole segments."
)
@click.option(
    "--follow",
    type=duration("s"),
    metavar="DURATION",
    help="Repeat with this pause between rounds, as 10s or in seconds.",
)
@click.option(
    "--gate",
    default="",
    metavar="HOST:PORT",
    help="Check the archive and set the archive watermark of this broker.",
)
@click.option(
    "--codec",
    default="zstd",
    show_default=True,
    help="Compression: zstd, snappy, lz4, gzip or none.",
)
@click.option(
    "--level", type=int, default=1, show_default=True, help="Compression level (zstd and gzip)."
)
@click.option(
    "--split-bytes",
    type=int,
    help="Bytes of log for each task of a new archive (default: 256 MiB).",
)
@click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "skip", "permissive"]),
    default="fail",
    show_default=True,
    help="Action for damaged records of the log.",
)
@data_option
@tls_options
@click.option("--dry-run", is_flag=True, help="Show what would be archived.")
@spark_options
@output_option
def archive(master: str, memory: str, settings: tuple[str, ...], **said: Any) -> int:
    """Add the missing part of the log in STORE to ARCHIVE, as Parquet by topic and day.

    \b
    cometmq pipeline archive data/master/store archive --live --gate 127.0.0.1:8081
    """
    from ...pipeline.archive.row_file import CODECS, FileFormat
    from ...pipeline.jobs.archive import ArchivePlan

    if said["codec"] not in CODECS:
        raise CliError(f"--codec must be one of {', '.join(CODECS)}.", Exit.USAGE)
    pause_ms = said["follow"]
    if pause_ms == 0 or (pause_ms and said["dry_run"]):
        text = "--follow requires a pause of at least 1s and cannot be used with --dry-run."
        raise CliError(text, Exit.USAGE)
    age_ms = said["before"]
    plan = ArchivePlan(
        said["store"],
        said["out"],
        said["broker"],
        said["live"],
        file_format=FileFormat(said["codec"], said["level"]),
        split_bytes=said["split_bytes"],
        on_corrupt=said["on_corrupt"],
        gate=said["gate"],
        **links().keys(said["gate"]),
        tls=links().tls(said["gate"]) if said["gate"] else None,
    )
    require_directories(store=said["store"])
    with spark_session("archive", SessionOptions(master, memory, settings)) as spark:
        return _rounds(spark, plan, age_ms, pause_ms, said)


def _rounds(
    spark: Any, plan: Any, age_ms: int | None, pause_ms: int | None, said: dict[str, Any]
) -> int:
    from ...pipeline.jobs.archive import archive as run

    known = 0
    while True:
        before = None if age_ms is None else time.time_ns() // 1_000_000 - age_ms
        this = replace(plan, written_before_ms=before)
        report = run(spark, this, dry_run=said["dry_run"], known_end=known)
        if pause_ms is None:
            return show_report(report, said["output"])
        known = report.summary["log_end"]
        if report.summary["splits"] or report.problems:
            show_document(report.document() if said["output"] == "json" else report.summary)
            for problem in report.problems:
                click.echo(f"! {problem}", err=True)
        time.sleep(pause_ms / 1000)


@click.command()
@click.argument("out", metavar="ARCHIVE")
@click.option("--store", default="", help="Compare with the log of this store, where both have it.")
@click.option("--broker", default="", help="Name of the store's broker in the archive.")
@spark_options
@output_option
def check(
    *,
    out: str,
    store: str,
    broker: str,
    master: str,
    memory: str,
    settings: tuple[str, ...],
    output: str,
) -> int:
    """Read and check every file of ARCHIVE. Exit code 5 for problems.

    \b
    cometmq pipeline check archive --store data/master/store
    """
    from ...pipeline.jobs.archive import check_archive

    require_directories(store=store, archive=out)
    with spark_session("check", SessionOptions(master, memory, settings)) as spark:
        return show_report(check_archive(spark, out, store, broker), output)


@click.command()
@click.argument("out", metavar="ARCHIVE")
@click.option(
    "--target-mb", type=click.IntRange(1), default=256, show_default=True, help="Target file size."
)
@click.option(
    "--latest", metavar="TOPIC", help="Write the latest message of each key of this topic to --to."
)
@click.option("--to", metavar="DIR", help="With --latest: output folder.")
@click.option("--dry-run", is_flag=True, help="Show what would be merged.")
@spark_options
@output_option
def compact(master: str, memory: str, settings: tuple[str, ...], **said: Any) -> int:
    """Merge small files of ARCHIVE, or write the latest message of each key of a topic.

    \b
    cometmq pipeline compact archive --latest orders --to latest
    """
    from ...pipeline.jobs.compact import compact_files, latest_by_key

    if bool(said["latest"]) != bool(said["to"]):
        raise CliError("Use --latest TOPIC and --to DIR together.", Exit.USAGE)
    require_directories(archive=said["out"])
    with spark_session("compact", SessionOptions(master, memory, settings)) as spark:
        if said["latest"]:
            report = latest_by_key(spark, said["out"], said["latest"], said["to"])
        else:
            target = said["target_mb"] << 20
            report = compact_files(spark, said["out"], target_bytes=target, dry_run=said["dry_run"])
        return show_report(report, said["output"])
