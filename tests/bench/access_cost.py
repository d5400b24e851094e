"""CPU time that authentication, authorization and quotas add to a send.

`python -m cometmq.tests.bench.access_cost` prints rows: each is the median of pairs, because rounds
with the check and rounds without it alternate in one run. The request is one that a door has
parsed. The native door passes the same metadata for equal headers; the grpcio door makes a tuple
for each call. The target is that of authentication and authorization together. `--live PAIRS`
measures whole brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions
from cometmq.auth.quota import Quota
from cometmq.auth.signature import authorization
from cometmq.broker.access.guard import Guard
from cometmq.broker.access.identities import Identities
from cometmq.broker.access.key_source import KeySource
from cometmq.broker.access.quotas import Quotas
from cometmq.broker.metadata.tables import Metadata
from cometmq.front.clock import Clock
from cometmq.front.context import RequestContext
from cometmq.operations.credentials import read_file
from cometmq.proto import paths, v2
from cometmq.tests.bench.rows import Row, show
from cometmq.tests.bench.server import ASYNC, CPU, SHAPES, TOPIC, loadgen
from cometmq.tests.harness.cluster import temporary

TARGET_US = 3.0
_KEY = "token"
_SECRET = "service-secret-key"
_WINDOW_S = 2.0
_TIME = "20261123T060428Z"
_SIGNED_MS = 1_795_413_868_000

Check = Callable[[v2.SendMessageRequest, RequestContext], None]


def world() -> tuple[Guard, Quotas, Metadata]:
    """Return a guard and quotas with one user that may send to one topic."""
    keys = KeySource("", _KEY, Path("unused"))
    metadata = Metadata(True, 10, 10, Clock().steady_ns)
    policy = Policy(ResourcePattern.parse("Topic:orders"), parse_actions("Pub"), True)
    metadata.put_user(User("service", keys.key.seal("service", "secret-key"), policies=(policy,)))
    identities = Identities(
        metadata=metadata,
        keys=keys,
        wall_ms=lambda: _SIGNED_MS,
        clock_skew_ms=300_000,
        refused=Counter(),
    )
    guard = Guard(
        identities=identities,
        metadata=metadata,
        cluster="DefaultCluster",
        authorize=True,
        refused=Counter(),
    )
    quotas = Quotas(
        metadata=metadata,
        steady_ns=time.monotonic_ns,
        refused=Counter(),
        loop=asyncio.new_event_loop(),
        queues={},
        authorize=True,
    )
    quotas.identify(guard.user_of)
    return guard, quotas, metadata


def added_us(check: Check, contexts: list[RequestContext], rounds: int) -> float:
    """Return the median difference of a round with the check and one without, for each call."""
    message = v2.Message(topic=v2.Resource(name="orders"), body=b"x" * 128)
    request = v2.SendMessageRequest(messages=[message])

    def nothing(_request: v2.SendMessageRequest, _ctx: RequestContext) -> None: ...

    def took_ns(call: Check) -> int:
        begin = time.process_time_ns()
        for ctx in contexts:
            call(request, ctx)
        return time.process_time_ns() - begin

    pairs = [took_ns(check) - took_ns(nothing) for _ in range(rounds)]
    return statistics.median(pairs) / len(contexts) / 1_000


def measure(calls: int, rounds: int) -> list[Row]:
    """Return the rows."""
    guard, quotas, metadata = world()
    signed = ("authorization", authorization("service", "secret-key", _TIME))

    def context(metadata: tuple[tuple[str, str], ...]) -> RequestContext:
        return RequestContext("c", peer="10.1.2.3:5", metadata=metadata, request_bytes=200)

    def headers() -> tuple[tuple[str, str], ...]:
        return (("x-mq-client-id", "c"), signed, ("x-mq-date-time", _TIME))

    shared = headers()
    native = [context(shared) for _ in range(calls)]
    grpcio = [context(headers()) for _ in range(calls)]

    def guarded(request: v2.SendMessageRequest, ctx: RequestContext) -> None:
        guard.check(paths.SEND_MESSAGE, request, ctx)

    def charged(request: v2.SendMessageRequest, ctx: RequestContext) -> None:
        if metadata.quotas:
            quotas.charge(request.messages[0].topic.name, len(request.messages), ctx)

    rows = []
    for door, contexts in (("native", native), ("grpcio", grpcio)):
        value = added_us(guarded, contexts, rounds)
        name = f"authentication and authorization, {door} door"
        rows.append(Row(name, value, "us", target=f"{TARGET_US:g} us", met=value <= TARGET_US))
    rows.append(Row("quotas off", added_us(charged, native, rounds), "us"))
    metadata.put_quota(Quota("User:service", messages=1 << 40, bytes=1 << 50))
    metadata.put_quota(Quota("Topic:orders", messages=1 << 40, bytes=1 << 50))
    value = added_us(charged, native, rounds)
    rows.append(Row("quotas of the user and of the topic, native door", value, "us"))
    return rows


def live(pairs: int) -> list[Row]:
    """Return what users and rights add to a send of a whole broker: two brokers run, and each pair
    of windows sends to the one and to the other."""
    with temporary("--single", *ASYNC) as open_one, temporary("--single", "--auth", *ASYNC) as one:
        keys = read_file(one.data / "admin-credentials")
        one.run("user", "create", "service", "--secret", _SECRET, "--endpoint", one.endpoints)
        resource = ("--resource", f"Topic:{TOPIC}", "--actions", "Pub")
        one.run("acl", "create", "--user", "service", *resource, "--endpoint", one.endpoints)
        assert keys.access_key != "service"
        for each in (open_one, one):
            each.create_topic(TOPIC)
        signed = ("-access-key", "service", "-secret-key", _SECRET)
        rows = []
        for name in ("unary", "batch"):
            shape = SHAPES[name]
            costs = []
            for number in range(pairs + 1):
                both = [(open_one, ()), (one, signed)]
                found = {}
                for cluster, words in both if number % 2 else reversed(both):
                    pid = cluster.node("master").pid
                    report = loadgen(cluster.endpoints, pid, *shape, *words, seconds=_WINDOW_S)
                    found[cluster is one] = report[CPU]
                costs.append((found[False], found[True]))
            added = statistics.median(with_it - without for without, with_it in costs[1:])
            usual = statistics.median(without for without, _ in costs[1:])
            met = added <= TARGET_US
            target = f"{TARGET_US:g} us"
            rows.append(Row(f"{name} without users", usual, "us"))
            rows.append(Row(f"{name}: added by users", added, "us", target=target, met=met))
        return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--live", type=int, default=0, metavar="PAIRS", help="whole brokers, driven by loadgen"
    )
    options = parser.parse_args()
    rows = live(options.live) if options.live else measure(options.calls, options.rounds)
    show(rows)


if __name__ == "__main__":
    main()
