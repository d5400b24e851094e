"""Client registry: clients by id, bounded, removed only after the expiry time."""

from __future__ import annotations

from cometmq.broker.clients.registry import SENT_TOPICS_MAX, ClientRegistry
from cometmq.front.context import RequestContext

MS = 1_000_000


def of(client_id: str) -> RequestContext:
    return RequestContext(client_id, "PYTHON", "5.1.2", peer="127.0.0.1:5")


def test_a_client_expires_after_the_expiry_time_without_requests() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    clients.seen(of("a"), 0)
    clients.seen(of("b"), 50 * MS)
    assert clients.alive("a", 100 * MS)
    assert not clients.alive("a", 101 * MS)
    assert clients.expire(120 * MS) == ["a"]
    assert [client.client_id for client in clients] == ["b"]
    assert not clients.alive("never", 0)


def test_a_returning_client_keeps_its_settings() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    first = clients.seen(of("a"), 0)
    first.group = "g"
    assert clients.seen(of("a"), 5 * MS) is first
    first.request_timeout_ms = 7
    assert clients.request_timeout_ms("a") == 7
    assert clients.request_timeout_ms("b") == 0
    assert clients.forget("a") is first
    assert clients.forget("a") is None


def test_the_least_recently_active_client_is_removed_beyond_the_limit() -> None:
    clients = ClientRegistry(expiry_ms=1_000_000, limit=32)
    for number in range(32):
        clients.seen(of(str(number)), number * MS)
    clients.seen(of("0"), 100 * MS)
    clients.seen(of("new"), 101 * MS)
    assert len(clients) == 31
    assert clients.get("0") is not None
    assert clients.get("1") is None
    assert clients.get("2") is None


class Stream:
    """An open telemetry stream."""

    def __init__(self) -> None:
        self.finished = False

    def send(self, message: object) -> None:
        """Send nothing: there is no client."""

    def finish(self) -> None:
        pass


def reachable(clients: ClientRegistry, client_id: str, *topics: str) -> Stream:
    """Register a producer with a stream; return the stream."""
    client = clients.seen(of(client_id), 0)
    stream = Stream()
    client.streams.append(stream)
    clients.publishes(client, dict.fromkeys(topics, ""))
    return stream


def ids(clients: ClientRegistry, topic: str, now_ns: int = 0) -> list[str]:
    return [client.client_id for client in clients.producers(topic, now_ns)]


def test_producers_rotate() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    for client_id in "abc":
        reachable(clients, client_id, "t")
    assert [ids(clients, "t") for _ in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert ids(clients, "other") == []


def test_only_active_producers_with_a_stream_are_returned() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    stream = reachable(clients, "a", "t")
    reachable(clients, "b", "t")
    clients.seen(of("silent"), 0)
    clients.publishes(clients.seen(of("no stream"), 0), {"t": ""})
    assert ids(clients, "t") == ["a", "b"]
    stream.finished = True
    assert ids(clients, "t") == ["b"]
    clients.seen(of("a"), 150 * MS)
    assert ids(clients, "t", 150 * MS) == [], "b is silent, a cannot be reached"
    clients.expire(150 * MS)
    reachable(clients, "b", "x")
    assert ids(clients, "t") == []
    assert ids(clients, "x") == ["b"]


def test_transaction_topics_stay_after_a_settings_change() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    reachable(clients, "a", "s")
    client = clients.seen(of("a"), 0)
    clients.sends(client, "t")
    clients.sends(client, "t")
    clients.publishes(client, {"u": ""})
    assert [ids(clients, topic) for topic in "stu"] == [[], ["a"], ["a"]]
    clients.forget("a")
    assert [ids(clients, topic) for topic in "stu"] == [[], [], []]


def test_transaction_topics_are_bounded() -> None:
    clients = ClientRegistry(expiry_ms=100, limit=10)
    reachable(clients, "a", "0")
    client = clients.seen(of("a"), 0)
    for number in range(SENT_TOPICS_MAX + 2):
        clients.sends(client, str(number))
    assert len(client.sent) == SENT_TOPICS_MAX
    assert ids(clients, "0") == ["a"], "its settings name it"
    assert ids(clients, "1") == []
    assert ids(clients, "2") == ["a"]
