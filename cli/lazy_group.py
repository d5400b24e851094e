"""A click group that imports only the command that is called.

`cometmq up` starts its children before heavy modules are imported, and `store ls` needs no NumPy.
The table holds the help line of each command, so that help imports nothing.
"""

import importlib
from typing import Any

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem

from .loading import loading

#: Name -> (module of this package, command in it, one line of help).
Table = dict[str, tuple[str, str, str]]


class LazyGroup(click.Group):
    """A group of commands defined by a table."""

    def __init__(
        self, *arguments: Any, table: Table, aliases: Table | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._table = table
        self._known = {**table, **(aliases or {})}  # aliases work, but are not listed

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._known:
            return None
        module, attribute, _ = self._known[cmd_name]
        with loading():
            command = getattr(importlib.import_module(f".{module}", __package__), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:  # it knows no name, because `commands` is empty
            raise NoSuchCommand(error.command_name, possibilities=self._known, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = (name for name in self._table if name.startswith(incomplete))
        items = [CompletionItem(name, help=self._table[name][2]) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[2]) for name, row in self._table.items()])
