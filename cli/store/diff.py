"""`cometmq store diff`: the first differences of two stores."""

from pathlib import Path

import click

from ...operations.errors import Exit
from ..options import output_option
from ..output import print_table, show_document
from .options import open_layout


@click.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "-c",
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The stores' broker.conf, for file sizes.",
)
@output_option
def diff(*, first: Path, second: Path, config: Path | None, output: str) -> int:
    """Find the first difference of the logs of stores A and B, and of each of their queues.

    Segments deleted by retention are not a difference. Exit code 5 if the stores differ.

    \b
    cometmq store diff data/master/store data/slave/store
    """
    from ...store.doctor.diff import diff as compare

    layouts = [open_layout(folder, config, None, None) for folder in (first, second)]
    found = [one.document() for one in compare(*layouts)]
    if output == "json":
        show_document(found)
    elif found:
        print_table(found)
    else:
        click.echo("No difference.")
    return Exit.PROBLEMS if found else Exit.DONE
