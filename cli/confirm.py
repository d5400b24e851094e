"""Confirmation of destructive commands: print the plan, ask on a terminal, then act.

`--dry-run` only prints; `--yes` and `-o json` skip the question. In JSON the plan is the document.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from .output import print_table, show_document, show_fields

F = TypeVar("F", bound=Callable[..., Any])


def plan_options(command: F) -> F:
    """Add `--dry-run` and `--yes`."""
    command = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(
        command
    )
    return click.option(
        "--dry-run", is_flag=True, help="Print the plan without changing anything."
    )(command)


def go_on(
    plan: Mapping[str, Any],
    question: str,
    output: str,
    *,
    dry_run: bool,
    yes: bool,
    rows: Sequence[Mapping[str, Any]] = (),
) -> bool:
    """Show the plan (and its `rows` as a table); return True to carry it out."""
    if output == "json":
        show_document({**plan, **({"changes": list(rows)} if rows else {}), "dry_run": dry_run})
        return not dry_run
    if plan:
        plan = {name: value if value != [] else "none" for name, value in plan.items()}
        show_fields(plan, output)
    if rows:
        print_table(rows)
    if dry_run:
        return False
    if sys.stdin.isatty() and not yes:
        click.confirm(question, abort=True)
    return True
