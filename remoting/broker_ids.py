"""Ids of a group's replicas in routes: 0 is the leader, the followers have ids from 1 on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

LEADER_ID = 0


def route_ids(configured: Iterable[int], leader: int | None) -> dict[int, int]:
    """Map the configured ids of a group's replicas to those in routes.

    `leader` is a configured id, or None. The replica that is configured as 0 and follows takes the
    id that the leader leaves; every other follower keeps its own.
    """
    ids = sorted(configured)
    free = leader or max(ids, default=0) + 1
    return {each: LEADER_ID if each == leader else each or free for each in ids}
