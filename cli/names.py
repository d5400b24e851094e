"""Completion of names in a shell: topics and groups of the cluster, contexts, processes of `up`.

A shell waits for it at each press of the key: what fails or takes long offers nothing.
"""

from collections.abc import Callable
from pathlib import Path

import click

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _of_cluster(kind: str) -> Complete:
    def complete(ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
        from ..operations.nearest import names
        from .links import connect

        try:
            with connect(ctx.params.get("endpoint") or "") as connection:
                return [name for name in names(connection, kind) if name.startswith(start)]
        except Exception:
            return []

    return complete


topics, groups = _of_cluster("topic"), _of_cluster("group")


def contexts(_ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Offer the names of contexts."""
    from ..operations.contexts import load

    try:
        return [name for name in sorted(load().entries) if name.startswith(start)]
    except Exception:
        return []


def processes(ctx: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Offer the names of the processes of a running `up`."""
    from .cluster.control import ask
    from .cluster.layout import socket_path

    of_parent = ctx.parent.params.get("data") if ctx.parent is not None else None
    data = Path(ctx.params.get("data") or of_parent or "data")
    try:
        answer = ask(socket_path(data), "status", "", 1.0)
        known = [row[key] for key in ("name", "replica") for row in answer["processes"]]
        return [name for name in known if name and name.startswith(start)]
    except Exception:
        return []
