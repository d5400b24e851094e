"""Answers while a broker group that the cluster had is not up: they do not say "does not exist"."""

from collections.abc import Sequence

from . import v2
from .errors import WireError

#: An error names this many groups.
_NAMES_MAX = 5


def absent_topic(topic: str, groups: Sequence[str]) -> WireError:
    """Return the answer to a request for a topic that none of the groups that are up has."""
    names = ", ".join(groups[:_NAMES_MAX])
    more = f" and {len(groups) - _NAMES_MAX} more" if len(groups) > _NAMES_MAX else ""
    return WireError(
        v2.PROXY_TIMEOUT,
        f"topic {topic} is in no broker group that is up, and may be in one that is not: "
        f"{names}{more}. Start it, or, if it is gone for good, run `cometmq cluster forget GROUP`",
    )


def absent_group(name: str) -> WireError:
    """Return the answer to a request for a broker group that is not up."""
    return WireError(
        v2.PROXY_TIMEOUT,
        f"broker group {name} is not up. Start it, or, if it is gone for good, run "
        f"`cometmq cluster forget {name}`",
    )
