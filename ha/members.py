"""Replication status for operators: one row per known replica, and advice on refusals.

Used by `cluster describe`, the metrics and the banner; no decision depends on it.
"""

from msgspec import Struct


class MemberStatus(Struct, frozen=True):
    broker_id: int
    replica_uuid: str
    incarnation: int
    role: str  #: "leader" or "follower"
    state: str  #: leader | gone | catchup | joining | in_sync; on a follower: its stream's state
    connected: bool
    in_sync: bool
    log_end: int  #: written end, as known to this replica
    flushed_end: int
    lag_bytes: int  #: behind the leader's log end
    behind_ms: int  #: since it last held everything; 0 if it does now


#: Advice by refusal code; `{where}` is the leader's address.
ADVICE = {
    "DIVERGED": (
        "This replica holds messages that its leader at {where} does not have. Nothing was changed "
        "and nothing will be. If the leader is the right one, stop this replica, move its store "
        "directory aside and start it empty: it copies everything again, and the messages stay in "
        "the directory that was moved. If this replica has the better data, make it the master."
    ),
    "BELOW_LOG_START": (
        "The leader at {where} has already deleted what this replica needs next. Stop this "
        "replica, move its store directory aside and start it empty: it copies what the "
        "leader still has."
    ),
    "TOKEN": (
        "The leader at {where} does not accept this replica's clusterToken. Set the same "
        "clusterToken in every broker.conf of the cluster."
    ),
}
ADVICE_OTHERWISE = "The leader at {where} refused this replica; it retries periodically."
