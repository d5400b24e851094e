"""`cometmq drill`: failure drills on a cluster of its own, each with a verdict."""

from pathlib import Path
from typing import Any

import click

from ..operations.errors import CliError, Exit

_WAYS = ("numbers", "all", "random", "kills", "pauses", "compose", "merge")
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("numbers", nargs=-1, type=int)
@click.option("--list", "lists", is_flag=True, help="List the drills.")
@click.option("--all", is_flag=True, help="Run every drill in every mode.")
@click.option("--mode", help="sync, async or 'sync 2' [default: all modes of a drill].")
@click.option("--scale", default=0.0, help="Length of long drills; 1 is the full length.")
@click.option("--random", type=click.IntRange(1), help="Number of random drills to run.")
@click.option("--seed", type=int, help="Seed of the first random drill, or of drill 38.")
@click.option(
    "--faults",
    help="Faults, separated by commas: kill,pause,cut; with --compose"
    " kill,stop,pause,disconnect,restart,down,full.",
)
@click.option("--seconds", default=10.0, show_default=True, help="Time of random faults.")
@click.option("--after", default=1_000, show_default=True, help="Sends after the last fault.")
@click.option("--kills", type=click.IntRange(1), help="Kill the leader so often; show the times.")
@click.option("--pauses", type=click.IntRange(1), help="Suspend the leader so often.")
@click.option("--lease", type=int, help="controllerLeaseMs, with --pauses.")
@click.option("--beat", type=int, help="controllerBeatIntervalMs, with --pauses.")
@click.option("--default-timers", is_flag=True, help="Use the default timers, with --kills.")
@click.option("--no-exit-report", is_flag=True, help="Let leases expire, with --kills.")
@click.option("--compose", is_flag=True, help="Run on containers, in a clone of the project.")
@click.option("--services", help="Only these services, separated by commas, with --compose.")
@click.option("--no-build", is_flag=True, help="Use the existing image, with --compose.")
@click.option("--out", type=_FILE, help="Write the verdicts as JSON.")
@click.option("--merge", type=_FILE, multiple=True, help="Run nothing; read files of --out.")
@click.option("--junit", type=_FILE, help="Write the verdicts as JUnit XML.")
@click.option("--report", type=_FILE, help="Write the verdicts as a page.")
@click.option("--note", default="", help="A paragraph for the page.")
@click.option("--picture", type=_FOLDER, help="Folder for the timelines.")
@click.option("--keep", type=_FOLDER, help="Folder for the files of failed drills.")
def drill(*, lists: bool, **chosen: Any) -> int:
    """Run failure drills: NUMBERS of the list, random ones, or drills on containers.

    A drill starts nameservers and brokers on this machine, loads them, kills, pauses, disconnects
    or fills them, and compares what was acknowledged with the logs of all replicas. It uses
    addresses of 127/8 and a temporary directory, and touches no other cluster. The verdict of each
    drill has the messages that were acknowledged and lost; the exit code is 1 if a check failed.

    \b
    cometmq drill --list
    cometmq drill 3 27 41 42
    cometmq drill --random 10 --seed 7
    """
    from ..drills import run
    from ..drills.options import Options
    from ..drills.table import DRILLS

    if lists:
        for row in DRILLS:
            modes = ", ".join(row.modes)
            click.echo(f"{row.number:>3}  {modes:<12}  {row.title} -> {row.expected}")
        return Exit.DONE
    if chosen["seed"] is not None and not any(chosen[way] for way in _WAYS):
        chosen["random"] = 1
    if sum(bool(chosen[way]) for way in _WAYS) != 1:
        raise CliError(
            "Choose one: NUMBERS of drills (see --list), --all, --random, --kills, --pauses,"
            " --compose or --merge.",
            Exit.USAGE,
        )
    if unknown := set(chosen["numbers"]) - {row.number for row in DRILLS}:
        raise CliError(f"There is no drill {min(unknown)}: see --list.", Exit.USAGE)
    return run.main(Options(**chosen))
