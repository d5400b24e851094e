"""Streams at a proxy, which cannot check signatures: none gets the commands of another one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cometmq.auth.signature import authorization
from cometmq.broker.base.cluster_view import ClusterView
from cometmq.broker.clients.registry import ClientRegistry
from cometmq.broker.proxy.telemetry import ProxySession, ProxyTelemetry
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import v2

EXPIRY_MS = 1_000
SETTINGS = v2.TelemetryCommand(
    settings=v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name="orders")]))
)
CHECK = v2.TelemetryCommand(
    recover_orphaned_transaction_command=v2.RecoverOrphanedTransactionCommand(transaction_id="t")
).SerializeToString()


class Sink:
    """The sending side of a client's stream."""

    def __init__(self) -> None:
        self.finished = False
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def finish(self, error: Any = None) -> None:
        self.finished = True


class Desk:
    """A proxy's telemetry without brokers."""

    def __init__(self) -> None:
        clock = Clock()
        self.clients = ClientRegistry(EXPIRY_MS, 100)
        owners: Any = SimpleNamespace(groups=list)
        self.telemetry = ProxyTelemetry(
            clock=clock,
            loop=asyncio.get_running_loop(),
            clients=self.clients,
            cluster=ClusterView("", clock.steady_ns),
            config=DoorConfig(),
            owners=owners,
            links=NodeLinks(""),
        )

    def open(self, ctx: RequestContext) -> tuple[Sink, ProxySession]:
        sink: Any = Sink()
        session = self.telemetry.open(ctx, sink)
        session.receive(SETTINGS)
        return sink, session

    def command_for(self, ctx: RequestContext) -> None:
        """A leader sends a check on the stream that it has accepted with this signature."""
        found = [
            each for each in self.telemetry._forwarded.values() if each.metadata == ctx.metadata
        ]
        assert len(found) == 1
        self.telemetry._process(found[0], CHECK)


def context(user: str = "", secret: str = "secret-key", second: int = 1) -> RequestContext:
    time = f"20261123T0604{second:02}Z"
    metadata: tuple[tuple[str, str], ...] = (("x-mq-client-id", "victim@1"),)
    if user:
        header = authorization(user, secret, time)
        metadata += (("authorization", header), ("x-mq-date-time", time))
    return RequestContext("victim@1", "JAVA", peer="10.1.2.3:4", metadata=metadata)


async def test_a_command_reaches_only_streams_with_the_signature_that_the_leader_accepted() -> None:
    desk = Desk()
    owner = context("owner")
    sink, _ = desk.open(owner)
    others = [
        desk.open(ctx)[0]
        for ctx in (
            context(),
            context("stranger"),
            context("owner", "a-wrong-secret"),
            context("owner", second=2),
        )
    ]
    desk.command_for(owner)
    assert sink.sent == [CHECK]
    assert [other.sent for other in others] == [[], [], [], []]


async def test_a_stranger_ends_no_stream_of_another_user() -> None:
    desk = Desk()
    owner = context("owner")
    sink, _ = desk.open(owner)
    for ctx in (context(), context("stranger")):
        desk.telemetry.terminated(ctx)
    desk.command_for(owner)
    assert sink.sent == [CHECK]
    desk.telemetry.terminated(context("owner", second=9))
    assert not desk.telemetry._forwarded


async def test_streams_stay_with_the_heartbeats_of_their_user() -> None:
    desk = Desk()
    desk.open(context("owner"))
    (client,) = desk.clients
    for user, renewed in (("", False), ("stranger", False), ("owner", True)):
        client.last_seen_ns = 0
        desk.telemetry.seen(context(user, second=30))
        assert bool(client.last_seen_ns) is renewed


async def test_a_stream_that_ends_leaves_nothing_behind() -> None:
    desk = Desk()
    for second in range(5):
        _, session = desk.open(context("owner", second=second))
        session.close("the client has left")
    assert (len(desk.clients), len(desk.telemetry._keys)) == (0, 0)
