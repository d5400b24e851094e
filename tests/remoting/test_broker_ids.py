"""Ids of replicas in routes."""

from __future__ import annotations

import pytest

from cometmq.remoting.broker_ids import route_ids


@pytest.mark.parametrize(
    ("configured", "leader", "expected"),
    [
        ([0, 1, 2], 0, {0: 0, 1: 1, 2: 2}),
        ([0, 1, 2], 1, {0: 1, 1: 0, 2: 2}),
        ([1, 2], 2, {1: 1, 2: 0}),
        ([0, 3], None, {0: 4, 3: 3}),
        ([], None, {}),
    ],
)
def test_only_the_leader_has_id_0(
    configured: list[int], leader: int | None, expected: dict[int, int]
) -> None:
    assert route_ids(configured, leader) == expected
