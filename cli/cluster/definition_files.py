"""`cometmq cluster export` and `apply`: the definitions of a cluster in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...operations import private_file
from ...operations.broker_groups import BrokerGroups
from ...operations.errors import CliError, Exit
from ..confirm import go_on, plan_options
from ..options import endpoint_option, output_option
from ..yaml import yaml_lines
from .applying import Wanted, changes
from .broker_groups import broker_groups, broker_option, running_command
from .definitions import Definition, definitions_of, document_of
from .reconcile import KINDS, Difference, differences

#: A file of definitions: a hundred thousand objects need less.
_BYTES_MAX = 64 << 20
_JSON_SUFFIX = ".json"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@broker_option
@endpoint_option
def export(file: Path, endpoint: str) -> None:
    """Write topics, groups, users with policies, and quotas to FILE; - is the standard output.

    A FILE that ends with .json is JSON, any other YAML. Secret keys cannot be read: users have none
    in FILE. If the broker groups differ, FILE has the settings that `cometmq cluster reconcile`
    would set.

    \b
    cometmq cluster export definitions.yaml
    """
    with broker_groups(endpoint) as groups:
        document = exported(groups)
    if file.suffix == _JSON_SUFFIX:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    else:
        text = "\n".join(yaml_lines(document)) + "\n"
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    private_file.replace(file, text)
    numbers = ", ".join(f"{kind.title}: {len(document[kind.title])}" for kind in KINDS)
    click.echo(f"Wrote {file}. {numbers.capitalize()}.")


def exported(groups: BrokerGroups) -> dict[str, Any]:
    """Return the document of the groups; tell on stderr if they differ. Raises CliError."""
    objects: dict[str, list[Any]] = {}
    for kind in KINDS:
        having: dict[str, list[Any]] = {}
        for one in sorted(kind.read(groups), key=lambda outcome: outcome.broker):
            if one.error is not None:
                raise CliError(f"The {kind.title} of {one.broker or 'the group'}: {one.error}")
            for each in one.answer or ():
                having.setdefault(kind.key(each), []).append(each)
        objects[kind.title] = [kind.wanted(having[name]) for name in sorted(having)]
    if len(groups.names) > 1 and differences(groups)[0]:
        click.echo("cometmq: The groups differ: run `cometmq cluster reconcile`.", err=True)
    return document_of(objects)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "--prune",
    is_flag=True,
    help="Delete objects that a section of FILE lacks, except users of type super.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --prune: delete topics and groups even if they hold messages.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --prune: delete groups even if they have connected clients.",
)
@plan_options
@broker_option
@endpoint_option
@output_option
def apply(
    *,
    file: Path,
    prune: bool,
    accept_loss: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    endpoint: str,
    output: str,
) -> None:
    """Create and change topics, groups, users, policies and quotas as FILE defines them.

    Prints the plan and asks. Sections and fields that FILE lacks stay as they are; nothing is
    deleted without --prune, except policies and attributes of objects in FILE. A user that is
    created needs a `secret` in FILE. Objects of FILE with an error are named and left out, but with
    --prune nothing changes. A repetition finishes what failed.

    \b
    cometmq cluster apply definitions.yaml --dry-run
    """
    if accept_loss and not prune:
        raise CliError("--accept-loss needs --prune.", Exit.USAGE)
    if force and not prune:
        raise CliError("--force needs --prune.", Exit.USAGE)
    definitions, errors = read_definitions(file)
    if errors and prune:
        said = "".join(f"\n{each}" for each in errors)
        raise CliError(f"{file} has errors, and --prune needs all of it:{said}", Exit.USAGE)
    for what in errors:
        click.echo(f"cometmq: {file}: {what}.", err=True)
    wanted = Wanted(definitions, prune, accept_loss, force)
    with broker_groups(endpoint) as groups:
        found, unread = changes(groups, wanted)
        for name, error in unread:
            click.echo(f"cometmq: {name}: {error}" if name else f"cometmq: {error}", err=True)
        rows = [each.row() for each in found]
        failed = [name for name, _ in unread]
        refusals = [each.refusal(groups) for each in found] if dry_run else []
        if not rows and not failed and not errors and output == "table":
            click.echo("The cluster has all definitions.")
            return
        plan: dict[str, object] = {} if rows else {"changes": []}
        if (rows or not errors) and go_on(
            plan, "Make these changes?", output, rows=rows, dry_run=dry_run, yes=yes
        ):
            failed += mend_all(groups, found, output)
    for each, why in zip(found, refusals, strict=False):
        if why:
            start = f"{each.broker}  " if each.broker else ""
            click.echo(f"{start}Would fail: {each.kind} {each.name}: {why}", err=True)
    if any(refusals):
        raise CliError(f"{sum(map(bool, refusals))} of {len(found)} changes would be refused.")
    if failed:
        names = list(dict.fromkeys(failed))
        raise CliError(
            "Not all definitions are applied.\nTo finish, run: "
            + running_command([name for name in names if name])
        )
    if errors:
        raise CliError(f"{file} has {len(errors)} errors. Correct it and repeat the command.")


def mend_all(groups: BrokerGroups, found: Sequence[Difference], output: str) -> list[str]:
    """Make changes one after another, print each; return the groups of those that failed."""
    failed = []
    for each in found:
        sentence = each.sentence()
        try:
            each.mend(groups)
        except CliError as error:
            failed.append(each.broker)
            sentence = f"Failed: {each.kind} {each.name}: {error}"
        if output == "table" or sentence.startswith("Failed"):
            start = f"{each.broker}  " if each.broker else ""
            click.echo(f"{start}{sentence}", err=output == "json")
    return failed


def read_definitions(file: Path) -> tuple[dict[str, list[Definition]], list[str]]:
    """Return the definitions of a file, and the errors of single objects. Raises CliError."""
    try:
        with click.open_file(str(file), "rb") as stream:
            data = stream.read(_BYTES_MAX + 1)
        if len(data) > _BYTES_MAX:
            raise ValueError(f"more than {_BYTES_MAX >> 20} MiB")
        return definitions_of(_parsed(data, is_json=file.suffix == _JSON_SUFFIX))
    except OSError as error:
        raise CliError(f"Cannot read {file}: {error.strerror}.", Exit.USAGE) from None
    except (ValueError, RecursionError) as error:
        text = "too many levels" if isinstance(error, RecursionError) else str(error)
        raise CliError(f"{file}: {text}.", Exit.USAGE) from None


def _parsed(data: bytes, *, is_json: bool) -> Any:
    if is_json:
        return json.loads(data)
    import yaml

    try:
        return yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {str(error).replace(chr(10), ' ')}") from None
