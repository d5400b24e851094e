"""The `/metrics` page of a nameserver: routes, registrations, and the groups of its controller."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ..front.metrics.process import kept_family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from ..front.metrics.families import Families
    from ..front.metrics.process import LoopWatch
    from ..front.statistics import DoorStatistics
    from .controller import Controller
    from .rows import Group


class NameserverCounts(Struct):
    """Totals since the start."""

    #: By what happened: "registered" (heartbeats included), "refused", "unregistered", "expired".
    members: Counter[str] = field(default_factory=Counter)
    route_queries: int = 0


def nameserver_families(
    *,
    groups: Iterable[Group],
    absent: Iterable[str],
    counts: NameserverCounts,
    door: DoorStatistics,
    controller: Controller | None,
    watch: LoopWatch,
    kept: Mapping[str, str],
    families: Families,
) -> list[Metric]:
    """Return the metrics of one nameserver; `groups` and `absent` are those of its route table,
    `kept` the settings with replacements that cannot be used."""
    assert door.times is not None
    return [
        *_routes(list(groups), absent, families),
        families.counter(
            "cometmq_nameserver_members",
            "Registrations and heartbeats of replicas, refusals, stops, and expiries.",
            [
                ((event,), counts.members[event])
                for event in ("registered", "refused", "unregistered", "expired")
            ],
            ("event",),
        ),
        families.counter(
            "cometmq_nameserver_route_queries",
            "Route queries of clients.",
            [((), counts.route_queries)],
        ),
        *(_controller(controller, families) if controller is not None else ()),
        door.times.family(families),
        *watch.families(families),
        kept_family(families, kept),
    ]


def _routes(groups: list[Group], absent: Iterable[str], families: Families) -> list[Metric]:
    leads = dict.fromkeys(absent, False)
    leads |= {
        group.name: (leader := group.leader()) is not None and leader.alive for group in groups
    }
    return [
        families.gauge(
            "cometmq_nameserver_replicas",
            "Replicas of a group in the routes, by state.",
            [
                (
                    (group.name, state),
                    sum(member.alive is (state == "alive") for member in group.members.values()),
                )
                for group in groups
                for state in ("alive", "dead")
            ],
            ("group", "state"),
        ),
        families.gauge(
            "cometmq_nameserver_topics",
            "Topics of a group.",
            [((group.name,), len(group.topics())) for group in groups],
            ("group",),
        ),
        families.gauge(
            "cometmq_nameserver_has_leader",
            "1 while a live leader of a group is in the routes; 0 for a group that is not up.",
            [((name,), leads[name]) for name in sorted(leads)],
            ("group",),
        ),
    ]


def _controller(controller: Controller, families: Families) -> list[Metric]:
    states = [group.core.state for group in controller.groups.values()]
    by_group = ("group",)
    return [
        families.one(
            "cometmq_controller_active",
            "1 on the nameserver whose controller decides.",
            controller.active,
        ),
        families.one(
            "cometmq_controller_sessions",
            "Replicas connected to this controller.",
            len(controller.sessions),
        ),
        families.counter(
            "cometmq_controller_refused_sessions",
            "Replicas that this controller refused.",
            [((), controller.refused)],
        ),
        families.gauge(
            "cometmq_controller_epoch",
            "Epoch of a group.",
            [((state.group,), state.epoch) for state in states],
            by_group,
        ),
        families.gauge(
            "cometmq_controller_in_sync",
            "Replicas in the in-sync set of a group.",
            [((state.group,), len(state.in_sync)) for state in states],
            by_group,
        ),
        families.gauge(
            "cometmq_controller_held",
            "1 while an election of a group waits for an operator.",
            [((state.group,), bool(state.hold_reason)) for state in states],
            by_group,
        ),
        families.counter(
            "cometmq_controller_changes",
            "Changes of a group's state that this controller committed, by what changed.",
            [
                ((group, change), number)
                for (group, change), number in sorted(controller.changes.items())
            ],
            ("group", "change"),
        ),
    ]
