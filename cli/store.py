"""`cometmq store`: look into a store directory, check it, repair it. Offline; nothing but `repair` writes.

Every command takes a directory of Apache's broker or of ours and needs no broker. The group knows
its commands by name and imports the one that is asked for, as the table of the `cometmq` command
does: `store ls` needs no NumPy.
"""

import click

from .lazy_group import LazyGroup, Table

#: Name -> (module of this package, command in it, one line of help).
COMMANDS: Table = {
    "ls": ("store_ls", "ls", "Show what is in a store directory."),
    "dump": (
        "store_dump",
        "dump",
        "Print messages, queues, index, timers, checkpoint, JSON files.",
    ),
    "query": ("store_query", "query", "Find messages by key."),
    "verify": (
        "store_verify",
        "verify",
        "Check every byte against every other; exit 5 on problems.",
    ),
    "repair": (
        "store_repair",
        "repair",
        "Rebuild derived files, cut a torn tail; keeps originals.",
    ),
    "diff": ("store_diff", "diff", "Find where two stores part; exit 5 if they differ."),
    "retention": ("store_retention", "retention", "Explain why every segment stays or goes."),
    "export": ("store_export", "export", "Write the messages of a topic to a file."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def store() -> None:
    """Look into a store directory, check it, repair it: offline, Apache's as ours."""
