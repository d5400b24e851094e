"""`cometmq store`: inspects, checks and repairs a store directory offline. Only `repair` writes.

Every command accepts a directory of RocketMQ's broker or of ours, and needs no running broker.
"""

import click

from ..lazy_group import LazyGroup, Table

#: Name -> (module of this package, command in it, one line of help).
COMMANDS: Table = {
    "ls": ("store.ls", "ls", "List the contents of a store directory."),
    "dump": (
        "store.dump",
        "dump",
        "Print messages, queues, index, timers, checkpoint, JSON files.",
    ),
    "query": ("store.query", "query", "Find messages by key."),
    "verify": (
        "store.verify",
        "verify",
        "Check log, queues, index and other files; exit 5 on problems.",
    ),
    "repair": (
        "store.repair",
        "repair",
        "Rebuild derived files and cut a torn tail; keeps originals.",
    ),
    "diff": (
        "store.diff",
        "diff",
        "Find the first difference of two stores; exit 5 if they differ.",
    ),
    "retention": ("store.retention", "retention", "Explain why each segment is kept or deleted."),
    "export": ("store.export", "export", "Write the messages of a topic to a file."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def store() -> None:
    """Inspect, check and repair a store directory offline (RocketMQ's or ours)."""
