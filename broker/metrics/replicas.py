"""Metrics of replication and of roles: who leads, in which epoch, who is in sync, what replication has met.

Reads what this node knows; a replica's position is as old as the last thing that was heard of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..admin.status import members_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..node import Node
    from .families import Families


def replica_families(node: Node, families: Families) -> list[Metric]:
    """Of one node."""
    members = members_of(node)
    role = "leader" if node.leadership.is_leader else "follower"
    refused = node.leadership.is_leader and node.leadership.write_refusal() is not None
    return [
        families.gauge(
            "cometmq_role", "1 for the role of this replica.", [((role,), 1)], ("role",)
        ),
        families.one(
            "cometmq_epoch", "Of the leader that is followed, or led.", node.replication.epoch
        ),
        families.one(
            "cometmq_may_write",
            "1 on a leader whose lease stands, or that leads because it is configured so.",
            node.replication.may_write,
        ),
        families.one(
            "cometmq_in_sync_replicas",
            "Replicas that an OK waits for, the leader included.",
            node.replication.in_sync_count,
        ),
        families.gauge(
            "cometmq_replica_behind_bytes",
            "Bytes of the leader's log that a replica does not have.",
            [((str(member.replica.broker_id),), member.behind) for member in members],
            ("broker_id",),
        ),
        families.one(
            "cometmq_writes_refused",
            "1 while a leader takes no writes: too few replicas are in sync, or its lease is over.",
            refused,
        ),
        families.one(
            "cometmq_leader_alive",
            "1 while the leader is heard (itself, on the leader).",
            node.leadership.is_leader or node.replication.leader_alive,
        ),
        families.counter(
            "cometmq_ha_events",
            "What replication has met since the start, by name.",
            [((name,), number) for name, number in sorted(node.replication.counters.items())],
            ("event",),
        ),
    ]
