"""Metrics of replication and roles: role, epoch, in-sync set, lag of replicas, replication events.

The position of another replica is as old as its last message to this node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client.metrics_core import Metric

    from ...front.metrics.families import Families
    from ...ha.engine import Replication
    from ...proto import v1
    from ..base.leadership import Leadership


def replica_families(
    members: Sequence[v1.MemberStatus],
    leadership: Leadership,
    replication: Replication,
    families: Families,
) -> list[Metric]:
    """Metrics of this replica and of the members it knows."""
    role = "leader" if leadership.is_leader else "follower"
    refused = leadership.is_leader and leadership.write_refusal() is not None
    events = replication.counters
    return [
        families.gauge(
            "cometmq_role", "1 for the role of this replica.", [((role,), 1)], ("role",)
        ),
        families.one(
            "cometmq_epoch",
            "Epoch of the leader that this replica follows, or its own.",
            replication.epoch,
        ),
        families.one(
            "cometmq_may_write",
            "1 on a leader that holds its lease, or that leads by configuration.",
            replication.may_write,
        ),
        families.one(
            "cometmq_in_sync_replicas",
            "Size of the in-sync set, the leader included.",
            replication.in_sync_count,
        ),
        families.gauge(
            "cometmq_replica_behind_bytes",
            "Bytes of the leader's log that a replica lacks.",
            [((str(member.replica.broker_id),), member.behind) for member in members],
            ("broker_id",),
        ),
        families.one(
            "cometmq_writes_refused",
            "1 while a leader refuses writes: too few replicas in sync, or its lease expired.",
            refused,
        ),
        families.one(
            "cometmq_leader_alive",
            "1 while the leader is reachable; always 1 on the leader.",
            leadership.is_leader or replication.leader_alive,
        ),
        families.counter(
            "cometmq_in_sync_changes",
            "Replicas that joined or left the in-sync set while this replica led.",
            [((change,), events.get(f"member_{change}", 0)) for change in ("joined", "left")],
            ("change",),
        ),
        families.counter(
            "cometmq_ha_events",
            "Replication events since the start, by name.",
            [((name,), number) for name, number in sorted(events.items())],
            ("event",),
        ),
    ]
