"""`cometmq store verify`: checks the files of a store against each other."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...operations.errors import Exit
from ..options import output_option
from ..output import print_table, show_document
from .options import open_layout, store_argument

if TYPE_CHECKING:
    from ...store.doctor.layout import Layout
    from ...store.doctor.verify import Report


@click.command()
@store_argument
@output_option
def verify(
    *,
    directory: Path,
    config: Path | None,
    index_slots: int | None,
    index_entries: int | None,
    output: str,
) -> int:
    """Check log, queues, index, timers, checkpoint and JSON files of DIR against each other.

    Prints byte ranges of files. Problems are findings that a start of the broker does not repair;
    all others are notes. Exit code 5 if there are problems.

    \b
    cometmq store verify data/master/store
    """
    layout = open_layout(directory, config, index_slots, index_entries)
    report = run_verify(layout, quiet=output == "json")
    if output == "json":
        show_document(report.document())
    else:
        show_report(report)
    return Exit.PROBLEMS if report.findings.problems else Exit.DONE


def run_verify(layout: "Layout", quiet: bool) -> "Report":
    """Verify, with a progress bar on a terminal."""
    from ...store.doctor.verify import verify as check

    with progress_bar(layout.log.end - layout.log.start, "verify", quiet) as advance:
        return check(layout, advance)


@contextmanager
def progress_bar(total: int, what: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a callback that takes the number of bytes done."""
    if quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def show_report(report: "Report") -> None:
    """Print the report."""
    findings = report.findings
    rows = [
        {
            "severity": one.severity,
            "file": one.file,
            "begin": one.begin,
            "end": one.end,
            "what": one.what,
        }
        for one in (*findings.problems, *findings.notes)
    ]
    if rows:
        print_table(rows)
    if findings.left_out:
        click.echo(f"{findings.left_out} more findings are not shown.")
    count = len(findings.problems)
    verdict = f"{count} problem{'s' * (count != 1)}" if count else "no problem"
    click.echo(
        f"{report.messages} messages in {report.bytes} bytes of log: {verdict}, "
        f"{len(findings.notes)} note{'s' * (len(findings.notes) != 1)}."
    )
