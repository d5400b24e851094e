"""Options that several commands share, so that they look and behave the same everywhere."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ENDPOINT = "127.0.0.1:8081"


def endpoint_option(command: F) -> F:
    """`--endpoint HOST:PORT`, any node of the cluster; several are alternatives."""
    return click.option(
        "--endpoint",
        envvar="COMETMQ_ENDPOINT",
        default=DEFAULT_ENDPOINT,
        show_default=True,
        metavar="HOST:PORT",
        help="Any node of the cluster; several, separated by ';', are alternatives.",
    )(command)


def output_option(command: F) -> F:
    """`-o table|json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Form of the output.",
    )(command)
