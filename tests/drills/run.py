"""`scripts/drill --hosts` and `--kill9`, which need a clone; other drills: `cometmq drill`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cometmq.tests.drills import kill9
from cometmq.tests.drills.hosts import run as hosts


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="scripts/drill", description=__doc__)
    parser.add_argument("--kill9", action="store_true", help="kill -9 of the master under load")
    parser.add_argument(
        "--hosts", action="store_true", help="run drills on three hosts in network namespaces"
    )
    parser.add_argument("--mode", help="with --kill9: sync or async")
    parser.add_argument("--rounds", type=int, default=20, help="number of faults")
    parser.add_argument("--acks", type=int, default=1000, help="with --kill9: sends per round")
    parser.add_argument("--flush", choices=("sync", "async"), default="async", help="with --kill9")
    parser.add_argument("--only", help="with --hosts: rows, separated by commas")
    parser.add_argument(
        "--clients", default="go,java", help="with --hosts: official clients beside Python's"
    )
    parser.add_argument("--program", action="append", help=argparse.SUPPRESS)
    parser.add_argument(
        "--goals", action="store_true", help="with --hosts: a missed goal is a failure"
    )
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    parser.add_argument("--keep", type=Path, help="folder for the files of failed drills")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the selected drills; return 1 if a check failed."""
    options = parse()
    return kill9.main(options) if options.kill9 else hosts.main(options)


if __name__ == "__main__":
    sys.exit(main())
