"""`cometmq config show` and `config set`: settings of a running node, or of a file."""

from collections.abc import Collection, Iterable
from pathlib import Path

import click

from ...operations.errors import CliError, Exit
from ...operations.nearest import meant
from ..confirm import go_on, plan_options
from ..links import connect
from ..options import endpoint_option, output_option
from ..output import show_rows
from .listing import list_settings


@click.group()
def config() -> None:
    """Show settings and their origins."""


config.add_command(list_settings)


@config.command()
@click.argument("keys", nargs=-1)
@click.option("--origin", is_flag=True, help="Show the origin of each value.")
@click.option(
    "--changed", is_flag=True, help="Only settings that are not the default, with their origins."
)
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Read a broker.conf or namesrv.conf instead of a running node.",
)
@click.option("--namesrv", is_flag=True, help="With -c: the file configures a nameserver.")
@click.option("--strict", is_flag=True, help="With -c: treat unknown keys as errors.")
@endpoint_option
@output_option
def show(
    *,
    keys: tuple[str, ...],
    origin: bool,
    changed: bool,
    file: Path | None,
    namesrv: bool,
    strict: bool,
    endpoint: str,
    output: str,
) -> None:
    """Show all settings of a node, or only KEYS.

    \b
    cometmq config show --origin
    cometmq config show --changed
    """
    entries = _of_file(file, namesrv, strict) if file else _of_node(endpoint)
    known = {entry["key"] for entry in entries}
    rows = [
        {name: text for name, text in entry.items() if origin or changed or name != "origin"}
        for entry in sorted(entries, key=lambda entry: entry["key"])
        if (not keys or entry["key"] in keys) and (not changed or entry["origin"] != "default")
    ]
    if rows or known.issuperset(keys):
        show_rows(rows, output, empty="All settings have their defaults.")
    _check_known(keys, known)


@config.command("set")
@click.argument("assignments", nargs=-1, required=True, metavar="KEY=VALUE...")
@plan_options
@endpoint_option
@output_option
def change(
    *, assignments: tuple[str, ...], dry_run: bool, yes: bool, endpoint: str, output: str
) -> None:
    """Change settings of a running broker, until its process ends.

    Only the rules of retention and of full disks, the limits of topics and groups and the waiting
    time of sends change at run time. Others are refused: change broker.conf and restart the broker.
    Nothing changes if one of them is refused.

    \b
    cometmq config set fileReservedTime=48 deleteWhen=03 --dry-run
    """
    values = {}
    for each in assignments:
        key, equal, value = each.partition("=")
        if not equal or not key:
            raise CliError(f"'{each}' is not KEY=VALUE.", Exit.USAGE)
        if key in values:
            raise CliError(f"{key} is given twice: a setting has one value.", Exit.USAGE)
        values[key] = value
    from ...proto import paths, v1

    def send(*, dry: bool) -> list[str]:
        request = v1.ChangeConfigRequest(values=values, dry_run=dry)
        answer = connection.call(paths.CHANGE_CONFIG, request, v1.ChangeConfigResponse)
        return list(answer.keys)

    with connect(endpoint) as connection:
        before = {entry["key"]: entry["value"] for entry in _of_node(endpoint)}
        _check_known(values, before)
        rows = [
            {"key": key, "from": before.get(key, ""), "to": values[key]} for key in send(dry=True)
        ]
        if not rows:
            click.echo("The settings have these values already.", err=output == "json")
            return
        question = "Change these settings?"
        if go_on({}, question, output, rows=rows, dry_run=dry_run, yes=yes):
            send(dry=False)


def _check_known(keys: Iterable[str], known: Collection[str]) -> None:
    """Raise CliError that names every unknown setting."""
    said = [f"Unknown setting '{key}'.{meant(key, known)}" for key in keys if key not in known]
    if said:
        if not any("Did you mean" in each for each in said):
            said.append("`cometmq config list` shows all settings.")
        raise CliError("\n".join(said), Exit.NOT_FOUND)


def _of_node(endpoint: str) -> list[dict[str, str]]:
    from ...proto import paths, v1

    with connect(endpoint) as connection:
        answer = connection.call(paths.GET_CONFIG, v1.GetConfigRequest(), v1.GetConfigResponse)
    return [{"key": e.key, "value": e.value, "origin": e.origin} for e in answer.entries]


def _of_file(file: Path, namesrv: bool, strict: bool) -> list[dict[str, str]]:
    from .loader import load
    from .sources import broker_owners, namesrv_owners

    loaded = load(namesrv_owners() if namesrv else broker_owners(), file=file, strict=strict)
    for sentence in (*loaded.warnings, *loaded.notices):
        click.echo(f"cometmq: {sentence}", err=True)
    return [
        {"key": value.setting.key, "value": value.shown, "origin": value.origin}
        for value in loaded.values.values()
    ]
