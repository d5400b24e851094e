"""Options shared by several commands."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ENDPOINT = "127.0.0.1:8081"


def endpoint_option(command: F) -> F:
    """Add `--endpoint HOST:PORT`: any node of the cluster; several are alternatives."""
    return click.option(
        "--endpoint",
        envvar="COMETMQ_ENDPOINT",
        default=DEFAULT_ENDPOINT,
        show_default=True,
        metavar="HOST:PORT",
        help="Any node of the cluster; separate alternatives with ';'.",
    )(command)


def output_option(command: F) -> F:
    """Add `-o table|json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format.",
    )(command)
