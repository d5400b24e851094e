"""`cometmq store`: look into a store directory, check it, repair it. Offline; nothing but `repair` writes.

Every command takes a directory of Apache's broker or of ours and needs no broker. The group knows
its commands by name and imports the one that is asked for, as the table of the `cometmq` command
does: `store ls` needs no NumPy.
"""

import importlib

import click

#: Name -> (module of this package, command in it, one line of help).
COMMANDS: dict[str, tuple[str, str, str]] = {
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


class StoreGroup(click.Group):
    """The commands of the store, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f".{module}", __package__), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            rows = [(name, row[2]) for name, row in COMMANDS.items()]
            rows += [(name, self.commands[name].get_short_help_str()) for name in self.commands]
            formatter.write_dl(rows)


@click.group(cls=StoreGroup)
def store() -> None:
    """Look into a store directory, check it, repair it: offline, Apache's as ours."""
