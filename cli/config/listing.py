"""`cometmq config list`: the settings of brokers, nameservers and proxies, searched by words."""

import dataclasses
from typing import Any

import click

from ...operations.errors import CliError, Exit
from ..options import output_option
from ..output import show_document, show_rows


@click.command("list")
@click.option("--search", default="", metavar="TEXT", help="Only settings with all these words.")
@click.option(
    "--of",
    "process",
    type=click.Choice(["broker", "namesrv", "proxy"]),
    help="Only the settings of this process.",
)
@output_option
def list_settings(search: str, process: str | None, output: str) -> None:
    """List the settings with type, default, unit and help; exit code 4 if none matches.

    \b
    cometmq config list --search "flush disk"
    """
    rows = [row for row in _rows(process) if _matches(row, search)]
    if not rows:
        text = f"No setting has the words '{search}'. `cometmq config list` shows all of them."
        raise CliError(text, Exit.NOT_FOUND)
    if output == "json":
        show_document(rows)
        return
    for row in rows:
        row["of"] = ", ".join(row["of"])
        row["default"] = "empty" if row["default"] == "" else row["default"]
        row["unit"] = row["unit"] or "-"
    show_rows(rows, output, empty="")


def _rows(process: str | None) -> list[dict[str, Any]]:
    from .loader import schema
    from .sources import broker_owners, namesrv_owners, proxy_owners

    owners = {"broker": broker_owners, "namesrv": namesrv_owners, "proxy": proxy_owners}
    found: dict[str, dict[str, Any]] = {}
    for name in [process] if process else owners:
        for key, setting in schema(owners[name]()).items():
            row = found.setdefault(
                key,
                {
                    "key": key,
                    "default": _default(setting.default),
                    "unit": setting.unit,
                    "of": [],
                    "variable": setting.variable,
                    "help": setting.help,
                },
            )
            row["of"].append(name)
    return [found[key] for key in sorted(found, key=str.lower)]


def _default(value: Any) -> Any:
    value = getattr(value, "value", value)
    return str(value) if dataclasses.is_dataclass(value) or isinstance(value, tuple) else value


def _matches(row: dict[str, Any], search: str) -> bool:
    text = f"{row['key']} {row['variable']} {row['help']}".lower()
    return all(word in text for word in search.lower().split())
