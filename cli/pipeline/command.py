"""`cometmq pipeline`: the table of Spark jobs."""

from typing import Any

import click

from ...operations.errors import CliError
from ..lazy_group import LazyGroup, Table
from .session import MISSING

COMMANDS: Table = {
    "archive": (
        "pipeline.archive",
        "archive",
        "Archive a store's log as Parquet; set the broker's archive watermark.",
    ),
    "check": (
        "pipeline.archive",
        "check",
        "Check the files of an archive, and compare it with a store.",
    ),
    "compact": (
        "pipeline.archive",
        "compact",
        "Merge small files, or write the latest message of each key.",
    ),
    "lake": (
        "pipeline.lake",
        "lake",
        "Write topics to a Delta or Iceberg table; compact it, remove its old versions.",
    ),
    "replay": (
        "pipeline.sending",
        "replay",
        "Send messages of an archive, a store or a table to a topic.",
    ),
    "dlq": ("pipeline.sending", "dlq", "Group dead letters, and send selected ones again."),
    "verify": ("pipeline.store", "verify", "Check a store's log and queues in parallel."),
    "rebuild": ("pipeline.store", "rebuild", "Rebuild queues and index in a separate directory."),
    "reconcile": (
        "pipeline.store",
        "reconcile",
        "Compare a store with another one or with an archive.",
    ),
    "insights": ("pipeline.store", "insights", "Report rates, sizes, latency, lag and hot keys."),
    "pack": ("pipeline.pack", "pack", "Pack this environment for the workers of a Spark cluster."),
}


#: Packages of the extra `spark`.
_EXTRA = ("numpy", "pandas", "pyarrow", "pyspark")


class _Jobs(LazyGroup):
    """Replaces the error of a missing package of the extra by how to install it."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRA:
                raise
            raise CliError(f"{MISSING} ({error})") from None


@click.group(cls=_Jobs, table=COMMANDS)
def pipeline() -> None:
    """Run Spark jobs, in an embedded session or on a cluster (--master)."""
