"""Receivers: the queues from which clients have received."""

from __future__ import annotations

from cometmq.broker.pop.clients import Receivers


def test_removing_a_client_returns_its_queues() -> None:
    receivers = Receivers(10)
    for topic in ("t", "u", "t"):
        receivers.add("c", topic, "g")
    receivers.add("d", "t", "g")
    assert "c" in receivers
    assert receivers.take({"c", "unknown"}) == {("t", "g"), ("u", "g")}
    assert "c" not in receivers and "d" in receivers
    receivers.clear()
    assert "d" not in receivers


def test_the_oldest_client_is_removed_beyond_the_limit() -> None:
    receivers = Receivers(2)
    for client in ("a", "b", "c"):
        receivers.add(client, "t", "g")
    assert [client in receivers for client in ("a", "b", "c")] == [False, True, True]
