"""`cometmq pipeline archive`, `check` and `compact`: what fills an archive and keeps it in order."""

import re
import time
from typing import Any

import click

from ..errors import CliError, Exit
from ..options import output_option
from ..output import show_json
from .session import (
    SessionOptions,
    failures,
    show_report,
    spark_options,
    spark_session,
    there,
)

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str, option: str) -> int:
    """Milliseconds of `48h`, `30m`, `7d`, `10s`. Raises CliError."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise CliError(f"{option} must be like 48h, 30m or 7d, but is '{text}'.", Exit.USAGE)
    return int(found[1]) * _UNITS_MS[found[2]]


@click.command()
@click.argument("store", metavar="STORE")
@click.argument("out", metavar="ARCHIVE")
@click.option(
    "--broker", default="", help="Name of the broker in the rows; the folder's if not said."
)
@click.option(
    "--before", metavar="AGE", help="Only segments that were not written to for so long: 48h."
)
@click.option("--live", is_flag=True, help="Up to the end of the log, not whole segments only.")
@click.option(
    "--follow", metavar="PAUSE", help="Repeat, with such a pause between the rounds: 10s."
)
@click.option(
    "--gate", default="", metavar="HOST:PORT", help="Check, and set the broker's watermark."
)
@click.option("--codec", default="zstd", show_default=True, help="zstd, snappy, lz4, gzip or none.")
@click.option("--level", type=int, default=1, show_default=True, help="Of zstd and gzip.")
@click.option("--split-bytes", type=int, help="Of a new archive: bytes of log a task (256 MiB).")
@click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "skip", "permissive"]),
    default="fail",
    show_default=True,
    help="What becomes of damage in the log.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be archived.")
@spark_options
@output_option
def archive(master: str, memory: str, settings: tuple[str, ...], **said: Any) -> int:
    """Write what ARCHIVE lacks of the log in STORE, as Parquet by topic and day."""
    from ...pipeline.archive.row_file import CODECS, FileFormat
    from ...pipeline.jobs.archive import ArchivePlan

    if said["codec"] not in CODECS:
        raise CliError(f"--codec must be one of {', '.join(CODECS)}.", Exit.USAGE)
    pause_ms = duration_ms(said["follow"], "--follow") if said["follow"] else None
    if pause_ms == 0 or (pause_ms and said["dry_run"]):
        text = "--follow needs a pause of 1s at least, and does not go with --dry-run."
        raise CliError(text, Exit.USAGE)
    age_ms = duration_ms(said["before"], "--before") if said["before"] else None
    plan = ArchivePlan(
        said["store"],
        said["out"],
        said["broker"],
        said["live"],
        file_format=FileFormat(said["codec"], said["level"]),
        split_bytes=said["split_bytes"],
        on_corrupt=said["on_corrupt"],
        gate=said["gate"],
    )
    there(store=said["store"])
    with failures(), spark_session("archive", SessionOptions(master, memory, settings)) as spark:
        return _rounds(spark, plan, age_ms, pause_ms, said)


def _rounds(
    spark: Any, plan: Any, age_ms: int | None, pause_ms: int | None, said: dict[str, Any]
) -> int:
    from dataclasses import replace

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
            show_json(report.document() if said["output"] == "json" else report.summary)
            for problem in report.problems:
                click.echo(f"! {problem}", err=True)
        time.sleep(pause_ms / 1000)


@click.command()
@click.argument("out", metavar="ARCHIVE")
@click.option("--store", default="", help="Compare with this store, as far as it has the log.")
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
    """Read every file of ARCHIVE back. Exit code 5 if something is not what it should be."""
    from ...pipeline.jobs.archive import check_archive

    there(store=store, archive=out)
    with failures(), spark_session("check", SessionOptions(master, memory, settings)) as spark:
        return show_report(check_archive(spark, out, store, broker), output)


@click.command()
@click.argument("out", metavar="ARCHIVE")
@click.option(
    "--target-mb", type=click.IntRange(1), default=256, show_default=True, help="Of a file."
)
@click.option(
    "--latest", metavar="TOPIC", help="Not in place: the latest message of every key of it."
)
@click.option("--to", metavar="DIR", help="With --latest: where that goes.")
@click.option("--dry-run", is_flag=True, help="Say what would be merged.")
@spark_options
@output_option
def compact(master: str, memory: str, settings: tuple[str, ...], **said: Any) -> int:
    """Merge small files of ARCHIVE, or write the latest message of every key of a topic."""
    from ...pipeline.jobs.compact import compact_files, latest_by_key

    if bool(said["latest"]) != bool(said["to"]):
        raise CliError("--latest TOPIC and --to DIR belong together.", Exit.USAGE)
    there(archive=said["out"])
    with failures(), spark_session("compact", SessionOptions(master, memory, settings)) as spark:
        if said["latest"]:
            report = latest_by_key(spark, said["out"], said["latest"], said["to"])
        else:
            target = said["target_mb"] << 20
            report = compact_files(spark, said["out"], target_bytes=target, dry_run=said["dry_run"])
        return show_report(report, said["output"])
