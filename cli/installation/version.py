"""`cometmq version`: the versions of CometMQ and of what it runs on."""

import importlib.metadata
import platform

import click

from ... import __version__
from ..options import output_option
from ..output import show_fields

#: Packages whose version matters in a report of a fault; absent ones are not installed.
_PACKAGES = ("cometmq-native", "grpcio", "protobuf", "uvloop", "pyspark")


@click.command()
@output_option
def version(output: str) -> None:
    """Print the versions of CometMQ, Python and the packages that it uses.

    \b
    cometmq version
    cometmq version -o json
    """
    found = {"cometmq": __version__, "python": platform.python_version()}
    found |= {name: version_of(name) for name in _PACKAGES if version_of(name)}
    show_fields(found, output)


def version_of(distribution: str) -> str:
    """Return the version of an installed package; "" if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
