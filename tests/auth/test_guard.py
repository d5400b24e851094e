"""The guard: verdicts follow users at once, a signature is computed once, sentences are exact."""

import gc
import tracemalloc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.auth.attempts import Attempts
from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions, parse_source
from cometmq.auth.secrets import SecretKey
from cometmq.auth.signature import authorization
from cometmq.broker.access.guard import Guard
from cometmq.broker.access.identities import Identities
from cometmq.broker.access.key_source import KeySource
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.metadata.tables import Metadata
from cometmq.front.clock import Clock
from cometmq.front.context import RequestContext
from cometmq.proto import paths, v1, v2
from cometmq.proto.errors import WireError

TIME = "20261123T060428Z"
TIME_MS = 1_795_413_868_000
SECRET = "secret-key"
KEYS = KeySource("", "token", Path("unused"))


class World:
    """A guard with users."""

    def __init__(self, *, authorize: bool = True, **chosen: Any) -> None:
        self.now_ms = TIME_MS
        self.refused: Counter[str] = Counter()
        self.metadata = Metadata(True, 10, 10, Clock().steady_ns)
        self.identities = Identities(
            metadata=self.metadata,
            keys=KEYS,
            wall_ms=lambda: self.now_ms,
            **{"clock_skew_ms": 0, **chosen},
            refused=self.refused,
        )
        self.guard = Guard(
            identities=self.identities,
            metadata=self.metadata,
            cluster="DefaultCluster",
            authorize=authorize,
            refused=self.refused,
        )

    def user(self, name: str, *policies: tuple[str, str, bool], **fields: Any) -> None:
        sources = tuple(map(parse_source, fields.pop("sources", ())))
        made = tuple(
            Policy(ResourcePattern.parse(resource), parse_actions(actions), allow, sources)
            for resource, actions, allow in policies
        )
        sealed = KEYS.key.seal(name, SECRET)
        self.metadata.put_user(User(name, sealed, policies=made, **fields))

    def send(self, ctx: RequestContext, topic: str = "orders") -> str:
        """The sentence of a refused send; empty if it is allowed."""
        message = v2.Message(topic=v2.Resource(name=topic))
        return self.call(ctx, paths.SEND_MESSAGE, v2.SendMessageRequest(messages=[message]))

    def call(self, ctx: RequestContext, path: str, request: Any) -> str:
        try:
            self.guard.check(path, request, ctx)
        except WireError as error:
            assert error.code == v2.UNAUTHORIZED
            return error.message
        return ""


def signed(user: str, secret: str = SECRET, *, time: str = TIME, **fields: Any) -> RequestContext:
    header = authorization(user, secret, time)
    metadata = (("x-mq-client-id", "c"), ("authorization", header), ("x-mq-date-time", time))
    return RequestContext("c", peer=fields.pop("peer", "10.1.2.3:5"), metadata=metadata, **fields)


def test_each_failure_has_the_references_sentence() -> None:
    world = World()
    world.user("orders", ("Topic:orders", "Pub", True), ("Topic:denied", "All", False))
    world.user("off", enabled=False)
    assert world.send(signed("orders")) == ""
    # Not known from a wrong signature: strangers do not learn the names of users.
    assert world.send(signed("missing")) == "check signature failed."
    assert world.send(signed("off", "wrong-secret")) == "check signature failed."
    assert world.send(signed("off")) == "User:off is disabled."
    assert world.send(signed("orders", "wrong-secret")) == "check signature failed."
    assert world.send(RequestContext("c")) == "username cannot be null."
    header = ("authorization", authorization("orders", SECRET, TIME))
    assert world.send(RequestContext("c", metadata=(header,))) == "datetime is null."
    assert world.send(signed("orders"), "other") == (
        "User:orders has no permission to access Topic:other from 10.1.2.3, no matched policies."
        " Needed: Pub."
    )
    assert world.send(signed("orders"), "denied") == (
        "User:orders has no permission to access Topic:denied from 10.1.2.3, the decision is deny."
        " Needed: Pub."
    )
    assert world.refused == {"signature": 6, "permission": 2}


def test_a_signature_seen_before_is_not_computed_again() -> None:
    world = World()
    world.user("orders", ("Topic:*", "Pub", True))
    for topic in ("a", "b", "a"):
        assert world.send(signed("orders"), topic) == ""
    assert world.identities.computed == 1
    world.send(signed("orders", time="20261123T060429Z"))
    assert world.identities.computed == 2
    # A wrong signature is computed each time: only successes are stored.
    for _ in range(2):
        assert world.send(signed("orders", "wrong-secret"))
    assert world.identities.computed == 4


def test_long_names_and_headers_take_no_memory() -> None:
    world = World()
    world.user("orders", ("Topic:orders", "Pub", True))
    gc.collect()
    tracemalloc.start()
    for number in range(50):
        refusal = world.send(signed("orders"), "x" * (1 << 20) + str(number))
        assert "no permission" in refusal
        assert len(refusal) < 1_000
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 10 << 20
    header = authorization("orders", SECRET, TIME) + ", x=" + "y" * 512
    for computed in (2, 3):
        metadata = (("authorization", header), ("x-mq-date-time", TIME))
        assert world.send(RequestContext("c", peer="10.1.2.3:5", metadata=metadata)) == ""
        assert world.identities.computed == computed


def test_a_row_has_only_calls_that_were_checked_lately() -> None:
    world = World(clock_skew_ms=60_000)
    world.user("orders", ("Topic:orders", "Pub", True))
    world.user("all", ("Topic:*", "Pub", True))
    first, second, stranger = signed("orders"), signed("all"), signed("all", "wrong-secret")

    def row(*contexts: RequestContext) -> list[str]:
        found = world.guard.checked_before([(ctx, 1) for ctx in contexts])
        return [known.user.name for known, _ in found]

    assert row(first) == [], "its signature is not known"
    for ctx in (first, second, stranger):
        world.send(ctx)
    refused = dict(world.refused)
    assert row(first, second, stranger, first) == ["orders", "all"]
    both = world.guard.checked_before([(first, 1), (second, 2)])
    assert world.guard.may_send(both, "orders")
    assert not world.guard.may_send(both, "other")
    assert world.guard.may_send(both[1:], "other")
    world.now_ms += 60_001
    assert row(first) == [], "the clock has moved on"
    world.now_ms = TIME_MS
    world.user("orders")
    assert row(first) == [], "the user has changed"
    assert world.refused == refused, "the calls are checked, and counted, one by one"
    assert "no matched policies" in world.send(first)
    assert row(first) == ["orders"]
    assert not world.guard.may_send(world.guard.checked_before([(first, 1)]), "orders")


def test_without_authorization_a_row_may_send_to_any_topic() -> None:
    world = World(authorize=False)
    world.user("orders")
    ctx = signed("orders")
    assert world.send(ctx) == ""
    assert world.guard.may_send(world.guard.checked_before([(ctx, 1)]), "any")


def test_a_change_of_a_user_counts_from_the_next_call() -> None:
    world = World()
    world.user("orders", ("Topic:*", "Pub", True))
    world.user("other")
    assert world.send(signed("orders")) == ""
    world.user("orders", ("Topic:*", "Pub", True), enabled=False)
    assert world.send(signed("orders")) == "User:orders is disabled."
    world.user("orders")
    assert world.send(signed("orders")).endswith("no matched policies. Needed: Pub.")
    world.metadata.remove_user("orders")
    assert world.send(signed("orders")) == "check signature failed."


def test_a_replica_without_users_says_that_it_is_not_ready() -> None:
    """It starts, or follows from an empty directory: the caller may be a user of the cluster."""
    world = World()
    request = v2.SendMessageRequest(messages=[v2.Message(topic=v2.Resource(name="orders"))])
    for _ in range(100):  # they do not count as wrong signatures
        with pytest.raises(WireError, match="knows no users yet") as refused:
            world.guard.check(paths.SEND_MESSAGE, request, signed("orders"))
        assert refused.value.code == v2.HA_NOT_AVAILABLE
    world.user("orders", ("Topic:*", "Pub", True))
    assert world.send(signed("orders")) == ""


def test_source_addresses_decide_for_each_call() -> None:
    world = World()
    world.user("orders", ("Topic:*", "Pub", True), sources=["10.0.0.0/8"])
    for _ in range(2):
        assert world.send(signed("orders")) == ""
        assert "192.168.0.1" in world.send(signed("orders", peer="192.168.0.1:7"))
        assert world.send(signed("orders", peer="[::ffff:10.0.0.1]:7")) == ""


def test_without_authorization_users_may_do_all_but_administer_users() -> None:
    world = World(authorize=False)
    world.user("orders")
    world.user("admin", is_super=True)
    assert world.send(signed("orders"), "any") == ""
    change = v1.PutUserRequest(name="orders", is_super=True)
    sentence = world.call(signed("orders"), paths.PUT_USER, change)
    assert sentence.endswith("only users of type Super have it.")
    assert world.call(signed("admin"), paths.PUT_USER, change) == ""


def test_only_this_machine_creates_the_first_user_and_only_a_super_user() -> None:
    world = World()
    first = v1.PutUserRequest(name="admin", is_super=True)
    near, far = RequestContext(peer="127.0.0.1:5"), RequestContext(peer="10.0.0.1:5")
    assert world.call(near, paths.PUT_USER, first) == ""
    assert world.call(far, paths.PUT_USER, first) == "username cannot be null."
    normal = v1.PutUserRequest(name="admin")
    assert world.call(near, paths.PUT_USER, normal) == "username cannot be null."
    world.user("admin", is_super=True)
    assert world.call(near, paths.PUT_USER, first) == "username cannot be null."


def test_an_old_signature_is_refused_with_a_limit_but_not_in_an_open_stream() -> None:
    world = World(clock_skew_ms=60_000)
    world.user("orders", ("Topic:*", "Pub", True))
    assert world.send(signed("orders")) == ""
    world.now_ms += 60_001
    assert "differs from the server's clock" in world.send(signed("orders"))
    assert "differs" in world.send(signed("orders", time="no time"))
    assert "differs" in world.send(signed("orders", forwarded=True)), "a proxy checks no clock"
    reopened = v2.TelemetryCommand()
    assert world.call(signed("orders", forwarded=True), paths.TELEMETRY, reopened) == ""
    world.guard.check_message(paths.TELEMETRY, v2.TelemetryCommand(), signed("orders"))


def test_a_local_time_is_of_the_present_in_one_of_the_time_zones() -> None:
    world = World(clock_skew_ms=60_000)
    world.user("orders", ("Topic:*", "Pub", True))
    same = signed("orders")
    for hours in (0, 8, -5, 5.5, 5.75, 14):  # the clocks of Beijing, Lima, Delhi, ...
        world.now_ms = TIME_MS - int(hours * 3_600_000)
        assert world.send(signed("orders")) == ""
    assert world.send(same) == ""
    world.now_ms = TIME_MS + 27 * 3_600_000
    assert "differs" in world.send(signed("orders")), "no zone is so far behind"
    assert "differs" in world.send(same), "also where it was accepted before"
    exact = signed("orders", time="2026-11-23T06:04:28.123+00:00")
    world.now_ms = TIME_MS + 3_600_000
    assert "differs" in world.send(exact), "it names its zone"


def test_two_secret_keys_are_valid_while_they_overlap_and_no_longer() -> None:
    world = World()
    sealed = [KEYS.key.seal("u", secret) for secret in ("present-key", "former-key")]
    everything = Policy(ResourcePattern.parse("Topic:*"), parse_actions("Pub"), True)
    until_ms = world.now_ms + 60_000
    world.metadata.put_user(
        User("u", sealed[0], policies=(everything,), former=sealed[1], former_until_ms=until_ms)
    )
    former = signed("u", "former-key")

    def classic(secret: str) -> bool:
        try:
            world.guard.check_signed(
                "u", lambda key: key == secret.encode(), lambda: (), RequestContext()
            )
        except WireError:
            return False
        return True

    assert world.send(former) == world.send(signed("u", "present-key")) == ""
    assert classic("former-key") and classic("present-key")
    assert world.send(signed("u", "another-key")) == "check signature failed."
    world.now_ms = until_ms
    assert world.send(former) == "check signature failed.", "also one that was checked before"
    assert not classic("former-key")
    assert world.send(signed("u", "present-key")) == "" and classic("present-key")


def test_strangers_do_not_learn_which_users_exist() -> None:
    world = World()
    world.user("known")
    world.user("disabled", enabled=False)
    world.metadata.put_user(User("sealed-elsewhere", SecretKey(b"other").seal("x", SECRET)))
    names = ("known", "disabled", "sealed-elsewhere", "unknown")
    assert {world.send(signed(name, "a wrong secret")) for name in names} == {
        "check signature failed."
    }


def test_with_utc_required_a_local_time_is_refused() -> None:
    world = World(clock_skew_ms=60_000, local_times=False)
    world.user("orders", ("Topic:*", "Pub", True))
    assert world.send(signed("orders")) == ""
    world.now_ms += 3_600_000
    assert "time zone to UTC" in world.send(signed("orders"))


def test_the_default_limits_the_age_of_signatures_to_five_minutes() -> None:
    assert BrokerConfig().authentication_clock_skew == 300_000


def test_a_need_of_alternatives_is_met_by_one() -> None:
    world = World()
    world.user("reader", ("Topic:orders", "Sub", True), ("Topic:orders", "Pub", False))
    route = v2.QueryRouteRequest(topic=v2.Resource(name="orders"))
    assert world.call(signed("reader"), paths.QUERY_ROUTE, route) == ""
    assert world.send(signed("reader")).endswith("the decision is deny. Needed: Pub.")


def test_a_stream_is_checked_at_each_message() -> None:
    world = World()
    world.user("orders", ("Topic:orders", "Pub", True))
    received: list[Any] = []
    inner = SimpleNamespace(receive=received.append, close=lambda reason: None)
    from cometmq.front.service import methods_of

    (method,) = methods_of(
        "apache.rocketmq.v2.MessagingService", {"Telemetry": lambda ctx, outbound: inner}
    )
    session = world.guard.watching(method).handler(signed("orders"), None)

    def settings(topic: str) -> v2.TelemetryCommand:
        publishing = v2.Publishing(topics=[v2.Resource(name=topic)])
        return v2.TelemetryCommand(settings=v2.Settings(publishing=publishing))

    session.receive(settings("orders"))
    assert len(received) == 1
    with pytest.raises(WireError, match="no permission to access Topic:other"):
        session.receive(settings("other"))
    assert len(received) == 1


def test_wrong_signatures_close_an_address_to_a_user_for_a_minute() -> None:
    now = [1]
    world = World(failures_max=3, steady_ns=lambda: now[0])
    world.user("orders", ("Topic:*", "Pub", True))
    world.user("other", ("Topic:*", "Pub", True))
    for _ in range(3):
        assert world.send(signed("orders", "wrong-secret")) == "check signature failed."
    # The right one is not looked at either, and no wrong one makes the minute longer.
    for at_s, secret in ((1, SECRET), (59, "wrong-secret"), (60, SECRET)):
        now[0] = at_s * 1_000_000_000
        assert world.send(signed("orders", secret)).startswith("too many wrong signatures")
    assert world.send(signed("orders", peer="10.9.9.9:5")) == ""
    assert world.send(signed("other")) == ""
    now[0] = 60_000_000_002
    assert world.send(signed("orders", time="20261123T060430Z")) == ""
    assert world.refused == {"signature": 3, "attempts": 3}


def test_an_unknown_name_closes_as_a_known_one_does() -> None:
    world = World(failures_max=2)
    world.user("orders", ("Topic:*", "Pub", True))
    answers = [[world.send(signed(name, "wrong")) for _ in range(4)] for name in ("orders", "no")]
    assert answers[0] == answers[1]
    world.user("new", ("Topic:*", "Pub", True))  # users have changed: failures are forgotten
    assert world.send(signed("orders")) == ""


def test_classic_clients_are_counted_by_connection() -> None:
    world = World(failures_max=2)
    world.user("orders", ("Topic:*", "Pub", True))

    def classic(port: int, secret: bytes) -> str:
        ctx = RequestContext("c", peer=f"10.0.0.1:{port}")
        try:
            world.guard.check_signed("orders", lambda known: known == secret, lambda: (), ctx)
        except WireError as error:
            return error.message
        return ""

    for _ in range(2):
        classic(1, b"wrong-secret")
    assert classic(1, SECRET.encode()).startswith("too many wrong signatures")
    assert classic(2, SECRET.encode()) == ""  # another client of the same proxy


def test_failures_take_little_memory_and_networks_count_as_one_address() -> None:
    attempts = Attempts(2)
    for number in range(20_000):
        attempts.failed(f"10.0.{number >> 8}.{number & 255}", "x" * 100_000, 1)
    assert len(attempts) == 10_000
    for number in range(2):
        attempts.failed(f"2001:db8::{number}", "orders", 1)
    assert attempts.are_spent("2001:db8::9", "orders", 1)
    assert not attempts.are_spent("2001:db8:0:1::9", "orders", 1)
    attempts.take_back("2001:db8::3", "orders")
    assert not attempts.are_spent("2001:db8::9", "orders", 1)
    attempts.take_back("10.0.0.1", "unknown")
