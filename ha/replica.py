"""This replica, as both sides of replication see it: fixed while the process lives."""

from collections.abc import Callable
from dataclasses import dataclass

from .config import HaConfig
from .log import ReplicatedLog
from .replica_meta import Identity, ReplicaMeta

#: Roles are fixed in this form: there has been one leader, from the log's first byte on. A missing
#: `epochs` file means exactly that.
FIRST_EPOCH = 1


@dataclass(frozen=True, slots=True)
class Replica:
    config: HaConfig
    identity: Identity
    meta: ReplicaMeta
    log: ReplicatedLog
    steady_ns: Callable[[], int]
    segment_size: int
    epoch: int = FIRST_EPOCH
