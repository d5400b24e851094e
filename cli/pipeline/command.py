"""The commands of `cometmq pipeline`: jobs on Spark. A table, so that help imports nothing heavy."""

import click

from ..lazy_group import LazyGroup, Table

COMMANDS: Table = {
    "archive": (
        "pipeline.archive",
        "archive",
        "A store's log to Parquet; tell the broker how far.",
    ),
    "check": ("pipeline.archive", "check", "Read an archive back, and compare it with a store."),
    "compact": ("pipeline.archive", "compact", "Few large files, or the latest of every key."),
    "replay": ("pipeline.sending", "replay", "Messages of an archive or a store into a topic."),
    "dlq": ("pipeline.sending", "dlq", "Group dead letters; send some of them again."),
    "verify": ("pipeline.store", "verify", "A store's log and queues, in parallel."),
    "rebuild": ("pipeline.store", "rebuild", "Queues and index again, in a side directory."),
    "reconcile": ("pipeline.store", "reconcile", "A store beside another, or beside an archive."),
    "insights": ("pipeline.store", "insights", "Rates, sizes, latency, lag, hot keys: a report."),
    "pack": ("pipeline.pack", "pack", "This environment as an archive for a cluster's workers."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def pipeline() -> None:
    """Jobs on Spark: an embedded session, or a cluster with --master."""
