"""`cometmq store retention`: why each segment of a log is kept or will be deleted. Offline.

Applies the broker's rules (`store/retention/rules.py`) to the settings of a broker.conf, the files'
modification times, this machine's time and disk use. State of a running broker (readers that hold a
segment, followers that need it, unflushed or undispatched bytes) is not considered.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...operations.errors import CliError
from ...store.config.store_config import StoreConfig
from ...store.doctor.layout import DataFile, Layout
from ...store.format.disk import Disk
from ...store.format.errors import StoreError
from ...store.retention.archive_watermark import ArchiveWatermark
from ...store.retention.rules import (
    UNKNOWN,
    Pressure,
    Rules,
    SegmentFacts,
    Situation,
    Verdict,
    decide,
    pressure_of,
    used_percent,
)
from ..config.loader import load
from ..config.sources import broker_owners
from ..options import output_option
from ..output import print_table, show_document
from .options import open_layout, store_argument

_NS_PER_MS = 1_000_000
_MS_PER_HOUR = 3_600_000


@click.command()
@store_argument
@click.option(
    "--hour",
    type=click.IntRange(0, 23),
    help="Hour of the day to assume (default: the present one).",
)
@output_option
def retention(
    *,
    directory: Path,
    config: Path | None,
    index_slots: int | None,
    index_entries: int | None,
    hour: int | None,
    output: str,
) -> None:
    """Explain for each segment in DIR whether it is kept or will be deleted, and why.

    \b
    cometmq store retention data/master/store -c broker.conf
    """
    layout = open_layout(directory, config, index_slots, index_entries)
    document = explain(layout, _settings(config, layout), time.time_ns() // _NS_PER_MS, hour)
    if output == "json":
        show_document(document)
        return
    _print(document)


def _settings(file: Path | None, layout: Layout) -> StoreConfig:
    """Return the retention settings: the file's, or the defaults."""
    loaded = load(broker_owners(), file=file, environment={})
    return replace(loaded.config(StoreConfig), store_path_root_dir=str(layout.root))


def explain(
    layout: Layout, config: StoreConfig, now_ms: int, hour: int | None = None
) -> dict[str, Any]:
    """Return all verdicts as one document. Raises CliError."""
    rules = Rules.of(config)
    disk = Disk()
    watermark = ArchiveWatermark(layout.root, disk)
    try:
        watermark.load()
    except StoreError as error:
        raise CliError(str(error)) from None
    files = list(layout.log.files)
    ahead = _made_ahead(files)
    used = files[: len(files) - len(ahead)]
    use, pressure = _pressure(layout, rules, disk)
    hour = time.localtime(now_ms / 1000).tm_hour if hour is None else hour
    size = layout.log.size
    facts = [
        SegmentFacts(file.start, file.start + size, file.path.stat().st_mtime_ns // _NS_PER_MS)
        for file in used
    ]
    situation = Situation(now_ms, hour, pressure, layout.log.end, watermark.value)
    rows = [
        _row(layout.name(file.path), verdict, rules)
        for file, verdict in zip(used, decide(facts, situation, rules), strict=True)
    ]
    return {
        "directory": str(layout.root),
        "in_use": layout.in_use,
        "hour": hour,
        "file_reserved_hours": rules.reserved_ms // _MS_PER_HOUR,
        "delete_when": sorted(rules.hours),
        "disk_use": use,
        "pressure": pressure.name.lower(),
        "archive_gate": rules.archive_gate,
        "archive_watermark": watermark.value,
        "segments": rows,
        "made_ahead": [layout.name(file.path) for file in ahead],
    }


def _made_ahead(files: Sequence[DataFile]) -> list[DataFile]:
    """Return the preallocated, still empty files at the end."""
    ahead: list[DataFile] = []
    for file in reversed(files):
        with file.path.open("rb") as content:
            if content.read(8).strip(b"\0"):
                break
        ahead.insert(0, file)
    return ahead


def _pressure(layout: Layout, rules: Rules, disk: Disk) -> tuple[int, Pressure]:
    folders = {file.path.parent for file in layout.log.files} or {layout.root}
    log = [_percent(disk, folder) for folder in folders]
    queues = _percent(disk, layout.root)
    return max(min(log), queues), pressure_of(rules, log, queues)


def _percent(disk: Disk, folder: Path) -> int:
    try:
        return used_percent(*disk.space(str(folder)))
    except OSError:
        return UNKNOWN


def _row(name: str, verdict: Verdict, rules: Rules) -> dict[str, Any]:
    segment = verdict.segment
    return {
        "file": name,
        "start": segment.start,
        "end": segment.end,
        "written_ms": segment.modified_ms,
        "expires_ms": segment.modified_ms + rules.reserved_ms,
        "verdict": "delete" if verdict.delete else "keep",
        "reason": verdict.reason.value,
        "why": verdict.sentence,
        "overrides": [reason.value for reason in verdict.overridden],
    }


def _print(document: dict[str, Any]) -> None:
    hours = ";".join(f"{hour:02d}" for hour in document["delete_when"])
    click.echo(
        f"{document['directory']}: fileReservedTime {document['file_reserved_hours']} h, "
        f"deleteWhen {hours}, it is hour {document['hour']:02d}; "
        f"the disk is {document['disk_use']} % full"
    )
    if document["archive_gate"]:
        click.echo(f"archiveGate is on; archive watermark: {document['archive_watermark']}")
    if not document["segments"]:
        click.echo("No segments.")
    else:
        names = ("file", "end", "written_ms", "expires_ms", "verdict", "why")
        print_table([{name: row[name] for name in names} for row in document["segments"]])
    if document["made_ahead"]:
        click.echo(f"preallocated, still empty: {', '.join(document['made_ahead'])}")
