"""The clusters that a console shows, and the path of the pages of each.

The pages of the only cluster are at `/`, those of several at `/in/NAME/`, so that every URL names
its cluster.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from ..operations.connection import Connection
from ..operations.contexts import load, with_files
from ..operations.errors import CliError, Exit
from ..operations.links import Links

#: Clusters of one console: each open one is read every second.
TARGETS_MAX = 16
#: The first part of the path of a cluster among several.
PREFIX = "/in/"


@dataclass(frozen=True, slots=True)
class Target:
    """One cluster."""

    name: str
    connection: Connection


def paths_of(targets: Sequence[Target]) -> list[tuple[str, str]]:
    """Return the name of each cluster and the path in front of its pages; none for a single one."""
    if len(targets) == 1:
        return []
    return [(one.name, PREFIX + quote(one.name, safe=":")) for one in targets]


@contextmanager
def opened(first: Target, further: Sequence[str]) -> Iterator[list[Target]]:
    """Connect to the clusters of further contexts for a `with` block. Raises CliError."""
    if len(further) >= TARGETS_MAX:
        raise CliError(f"A console shows at most {TARGETS_MAX} clusters.", Exit.USAGE)
    with ExitStack() as stack:
        found = [first]
        for name in dict.fromkeys(further):
            if name != first.name:
                found.append(_target(name, stack))
        yield found


def _target(name: str, stack: ExitStack) -> Target:
    context = with_files(load().get(name))
    if not context.endpoints:
        cure = f"start it: cometmq up --data {context.data}" if context.data else "add --endpoint"
        raise CliError(f"The context '{name}' has no endpoints; {cure}.", Exit.USAGE)
    links = Links(lambda: (name, context))
    connection = stack.enter_context(Connection(context.endpoints, links))
    return Target(name, connection)


def name_of(endpoint: str, links: Links) -> str:
    """Return the name of the cluster of the command: its context, or else its first address."""
    context = links.context()
    if context is not None and links.context_of(endpoint) is not None:
        return context[0]
    return endpoint.split(";", maxsplit=1)[0].strip()
