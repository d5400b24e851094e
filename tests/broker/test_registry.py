"""The client registry: known by id, lenient, bounded, forgotten after the expiry time only."""

from __future__ import annotations

from cometmq.broker.registry import ClientRegistry
from cometmq.front.context import RequestContext

MS = 1_000_000


def of(client_id: str) -> RequestContext:
    return RequestContext(client_id, "PYTHON", "5.1.2", peer="127.0.0.1:5")


def test_a_client_lives_until_it_is_silent_for_the_expiry_time() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    clients.seen(of("a"), 0)
    clients.seen(of("b"), 50 * MS)
    assert clients.alive("a", 100 * MS)
    assert not clients.alive("a", 101 * MS)
    assert clients.expire(120 * MS) == ["a"]
    assert [client.client_id for client in clients] == ["b"]
    assert not clients.alive("never", 0)


def test_a_known_client_keeps_its_settings_when_it_speaks_again() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    first = clients.seen(of("a"), 0)
    first.group = "g"
    assert clients.seen(of("a"), 5 * MS) is first
    assert clients.settings("a") is None
    assert clients.forget("a") is first
    assert clients.forget("a") is None


def test_fresh_ids_push_out_the_ones_heard_of_longest_ago() -> None:
    clients = ClientRegistry(expiry_ms=1_000_000, limit=32)
    for number in range(32):
        clients.seen(of(str(number)), number * MS)
    clients.seen(of("0"), 100 * MS)
    clients.seen(of("new"), 101 * MS)
    assert len(clients) == 31
    assert clients.get("0") is not None
    assert clients.get("1") is None
    assert clients.get("2") is None
