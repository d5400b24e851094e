"""Shared options of `cometmq store`: the directory, and the sizes of its files.

Sizes are derived from the files where possible, otherwise from `--config broker.conf` or a flag; a
flag takes precedence.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ...operations.errors import CliError, Exit
from ...store.doctor.layout import Layout, NoStoreError, Sizes, discover
from ..config.properties import PropertiesError, read

_WHERE = "A store of `cometmq up` is DATA/NAME/store, such as data/master/store."

F = TypeVar("F", bound=Callable[..., Any])

#: Keys of broker.conf -> fields of `Sizes`.
_NUMBERS = {
    "mappedFileSizeCommitLog": "segment",
    "mappedFileSizeConsumeQueue": "queue_file",
    "mappedFileSizeConsumeQueueExt": "ext_file",
    "mapperFileSizeBatchConsumeQueue": "batch_file",
    "mappedFileSizeTimerLog": "timer_log_file",
    "maxHashSlotNum": "index_slots",
    "maxIndexNum": "index_entries",
    "timerPrecisionMs": "timer_precision_ms",
}
_LOG_PATHS = ("storePathCommitLog", "readOnlyCommitLogStorePaths")
#: Sizes rounded up to whole units, as in the broker.
_UNITS = {"queue_file": 20, "batch_file": 46}
_GROUP = "store_sizes"


def store_argument(command: F) -> F:
    """Add DIR and the options for sizes."""
    for option in (
        click.option(
            "--index-entries", type=click.IntRange(2), help="maxIndexNum of the index files."
        ),
        click.option(
            "--index-slots", type=click.IntRange(1), help="maxHashSlotNum of the index files."
        ),
        click.option(
            "-c",
            "--config",
            "config",
            type=click.Path(dir_okay=False, path_type=Path),
            help="The store's broker.conf, for sizes and log paths.",
        ),
        click.argument("directory", metavar="DIR", type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def open_layout(
    directory: Path, config: Path | None, index_slots: int | None, index_entries: int | None
) -> Layout:
    """Examine the directory. Raises CliError."""
    values: dict[str, Any] = _from_file(config) if config else {}
    if index_slots:
        values["index_slots"] = index_slots
    if index_entries:
        values["index_entries"] = index_entries
    try:
        layout = discover(directory.expanduser(), Sizes(**values))
    except NoStoreError as error:
        raise CliError(f"{error} {_WHERE}", Exit.NOT_FOUND) from None
    except OSError as error:
        raise CliError(f"Cannot read {error.filename or directory}: {error.strerror}.") from error
    _check_log(layout)
    return layout


def _check_log(layout: Layout) -> None:
    """Require the log: without it all other files would look wrong. Raises CliError."""
    names = layout.sizes.log_directories or (str(layout.root / "commitlog"),)
    folders = [Path(name).expanduser() for name in names]
    for folder in folders:
        if folder.is_file():
            raise CliError(f"{folder} is a file, but must be a folder of the commit log.")
    if layout.queues and not any(folder.is_dir() for folder in folders):
        raise CliError(
            f"{layout.root} has queues, but {' or '.join(names)} does not exist. If the log is "
            "elsewhere (storePathCommitLog), give the store's broker.conf with --config.",
            Exit.USAGE,
        )


def _from_file(path: Path) -> dict[str, Any]:
    try:
        entries = {entry.key: entry.value.strip() for entry in read(path)}
    except OSError as error:
        raise CliError(f"Cannot read {path}: {error.strerror}.", Exit.USAGE) from error
    except PropertiesError as error:
        raise CliError(str(error), Exit.USAGE) from error
    values: dict[str, Any] = {}
    for key, field in _NUMBERS.items():
        if key in entries:
            if not entries[key].isdigit() or not int(entries[key]):
                raise CliError(f"{path}: {key} must be a number above 0.", Exit.USAGE)
            unit = _UNITS.get(field, 1)
            values[field] = -(-int(entries[key]) // unit) * unit
    folders = [part for key in _LOG_PATHS for part in entries.get(key, "").split(",")]
    log_directories = tuple(folder.strip() for folder in folders if folder.strip())
    if log_directories:
        values["log_directories"] = log_directories
    return values


def lines_option(default: str = "table") -> Callable[[F], F]:
    """Add `-o table|json|jsonl|yaml`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "jsonl", "yaml"]),
        default=default,
        show_default=True,
        help="Output format; jsonl: one object on each line.",
    )
