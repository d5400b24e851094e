"""The names that an operator may have meant: those of the cluster that resemble an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .errors import CliError

if TYPE_CHECKING:
    from .connection import Connection

#: An error waits no longer for the names.
_TIMEOUT_S = 2.0
_SUGGESTIONS_MAX = 3
#: The kinds of names, by the code of the answer that does not find one.
_KINDS = {"(TOPIC_NOT_FOUND)": "topic", "(CONSUMER_GROUP_NOT_FOUND)": "group"}


def names(connection: Connection, kind: str) -> list[str]:
    """Return the topics or groups, or of very many the first page. Raises CliError."""
    from ..proto import paths, v1  # help texts need no protobuf

    call: Any = connection.call
    if kind == "topic":
        topics = call(paths.LIST_TOPICS, v1.ListTopicsRequest(), v1.ListTopicsResponse, _TIMEOUT_S)
        return [config.name for config in topics.topics]
    groups = call(paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse, _TIMEOUT_S)
    return [config.name for config in groups.groups]


def meant(wanted: str, known: Iterable[str]) -> str:
    """Return `Did you mean orders?` with a space before it; "" if no known name is near."""
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(wanted.lower(), lower, _SUGGESTIONS_MAX)
    return f" Did you mean {' or '.join(lower[name] for name in found)}?" if found else ""


def with_names(error: CliError, request: Any, connection: Connection) -> CliError:
    """Return the error of a call, and for an unknown topic or group the names that are near."""
    kind = next((kind for code, kind in _KINDS.items() if code in str(error)), "")
    wanted = _wanted(request, kind) if kind else ""
    if not wanted:
        return error
    try:
        near = meant(wanted, names(connection, kind))
    except CliError:  # a user without the right to list gets the error alone
        return error
    end = near or f" `cometmq {kind} list` shows those that exist."
    return CliError(f"{str(error).removesuffix('.')}.{end}", error.code)


def _wanted(request: Any, kind: str) -> str:
    """Return the name of a request's topic or group; "" if it has none."""
    value = getattr(request, kind, "") or getattr(request, "name", "")
    return str(getattr(value, "name", value))
