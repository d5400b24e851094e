"""`cometmq store repair`: rebuilds derived files from the log and keeps the originals."""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...operations.errors import CliError, Exit
from ..options import output_option
from ..output import print_table, show_document
from .options import open_layout, store_argument
from .verify import progress_bar, run_verify

if TYPE_CHECKING:
    from ...store.doctor.layout import Layout
    from ...store.doctor.repair_plan import Plan
    from ...store.doctor.verify import Report


@click.command()
@store_argument
@click.option("--dry-run", is_flag=True, help="Print the plan without changing anything.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Accept that the log has lost flushed bytes at its end, and adapt the other files.",
)
@output_option
def repair(
    *,
    directory: Path,
    config: Path | None,
    index_slots: int | None,
    index_entries: int | None,
    dry_run: bool,
    accept_loss: bool,
    output: str,
) -> int:
    """Rebuild queues, index, checkpoint and wheel of DIR from its log, and cut a torn tail.

    Originals and a journal are kept in DIR/repair-TIME. Damage in the middle of the log is only
    reported. The broker must be stopped. Exit code 5 if problems remain.

    \b
    cometmq store repair data/master/store --dry-run
    """
    layout = open_layout(directory, config, index_slots, index_entries)
    if dry_run:
        report = run_verify(layout, quiet=output == "json")
        plan = _plan(layout, report, accept_loss)
        _show(plan, output)
        return Exit.PROBLEMS if plan.refused else Exit.DONE
    from ...store.format.disk import Disk
    from ...store.format.errors import StoreError
    from ...store.store_lock import StoreLock

    os.umask(0o777 & ~layout.root.stat().st_mode)  # new files are as private as the store
    disk = Disk()
    ownership = StoreLock(layout.root, disk)
    try:
        ownership.acquire()
        try:
            sizes = (config, index_slots, index_entries)
            return _repair(directory, sizes, accept_loss, output)
        finally:
            ownership.release()
    except StoreError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"The repair of {directory} stopped: {error}.") from error


def _plan(layout: "Layout", report: "Report", accept_loss: bool) -> "Plan":
    from ...store.doctor.repair_plan import plan_repair

    return plan_repair(layout, report, accept_loss)


def _repair(
    directory: Path,
    sizes: tuple[Path | None, int | None, int | None],
    accept_loss: bool,
    output: str,
) -> int:
    from ...store.doctor.journal import Journal, finish_interrupted
    from ...store.doctor.repair import Repair
    from ...store.format.disk import Disk

    quiet = output == "json"
    disk = Disk()
    for sentence in finish_interrupted(directory.expanduser(), disk):
        click.echo(f"cometmq: {sentence}", err=True)
    layout = open_layout(directory, *sizes)
    report = run_verify(layout, quiet)
    plan = _plan(layout, report, accept_loss)
    if not plan.steps:
        _show(plan, output)
        return Exit.PROBLEMS if plan.refused else Exit.DONE
    _show(plan, "table" if output == "table" else "")
    if sys.stdin.isatty() and output == "table":
        click.confirm("Carry out this plan?", abort=True)
    now_ms = time.time_ns() // 1_000_000
    stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    journal = Journal(layout.root, stamp, disk)
    try:
        total = layout.log.end - layout.log.start
        with progress_bar(total, "repair", quiet) as advance:
            Repair(layout, report, journal, disk).run(plan, now_ms, advance)
        after = run_verify(open_layout(directory, *sizes), quiet)
        left = after.findings.problems
        journal.write("finished", problems_left=len(left))
    finally:
        journal.close()
    if quiet:
        document = {"journal": str(journal.folder), **plan.document()}
        show_document({**document, "problems": [one.document() for one in left]})
    else:
        click.echo(f"Originals and journal are in {journal.folder}.")
        click.echo(f"Remaining problems: {len(left)}." if left else "No problems remain.")
    return Exit.PROBLEMS if left else Exit.DONE


def _show(plan: "Plan", output: str) -> None:
    if output == "json":
        show_document(plan.document())
    elif output == "table":
        if plan.steps:
            click.echo("Plan:")
            rows = [
                {"action": s.action.value, "target": s.target, "why": s.why} for s in plan.steps
            ]
            print_table(rows)
        if plan.refused:
            click.echo("Cannot be repaired; restore from another replica or a backup:")
            keys = ("file", "begin", "end", "what")
            print_table([{key: getattr(one, key) for key in keys} for one in plan.refused])
        if plan.log_is_short:
            click.echo(
                "The log lost flushed bytes at its end. Use --accept-loss to adapt the other files."
            )
        if not plan.steps and not plan.refused:
            click.echo("Nothing to repair.")
