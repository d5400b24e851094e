"""Counters of a front door and of the access point, for metrics, health checks and tests."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from .metrics.calls import CallTimes


class DoorStatistics(Struct, frozen=True):
    """A snapshot of one door."""

    door: str
    in_flight: int
    #: Open bidirectional streams.
    streams: int
    #: Calls that ended in INTERNAL because of a server fault, by path and exception type.
    internal_errors: Mapping[tuple[str, str], int]
    #: Counters and gauges of the door, by name.
    counters: Mapping[str, int] = field(default_factory=dict)
    #: Durations of its calls; not a copy.
    times: "CallTimes | None" = None


class ForwardStatistics(Struct):
    """Counters of an access point since the start."""

    forwarded: int = 0
    #: Requests served by this node because their owner was unreachable.
    served_instead: int = 0
    held: int = 0
    #: Held requests that were refused just before their deadline.
    held_in_vain: int = 0
    #: Bytes of the requests that are held now.
    holding_bytes: int = 0
