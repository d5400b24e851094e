"""`cometmq store`: look into a store directory, check it, repair it. Offline; nothing but `repair` writes.

Every command takes a directory of Apache's broker or of ours and needs no broker. The group knows
its commands by name and imports the one that is asked for, as the table of the `cometmq` command
does: `store ls` needs no NumPy.
"""

import click

from ..lazy_group import LazyGroup, Table

#: Name -> (module of this package, command in it, one line of help).
COMMANDS: Table = {
    "ls": ("store.ls", "ls", "Show what is in a store directory."),
    "dump": (
        "store.dump",
        "dump",
        "Print messages, queues, index, timers, checkpoint, JSON files.",
    ),
    "query": ("store.query", "query", "Find messages by key."),
    "verify": (
        "store.verify",
        "verify",
        "Check every byte against every other; exit 5 on problems.",
    ),
    "repair": (
        "store.repair",
        "repair",
        "Rebuild derived files, cut a torn tail; keeps originals.",
    ),
    "diff": ("store.diff", "diff", "Find where two stores part; exit 5 if they differ."),
    "retention": ("store.retention", "retention", "Explain why every segment stays or goes."),
    "export": ("store.export", "export", "Write the messages of a topic to a file."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def store() -> None:
    """Look into a store directory, check it, repair it: offline, Apache's as ours."""
