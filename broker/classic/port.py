"""The remoting port of one broker instance: its parts, the table of request codes, the listener."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...nodes.addresses import host_port
from ...remoting.connection import Connection
from ...remoting.server import RemotingServer
from .access import ClassicAccess
from .admin.audited import audited
from .admin.handlers import admin_handlers
from .base.members import Members
from .calls import ClientCalls
from .clients import ClassicClients
from .connected import ClassicConnected
from .followers import Followers
from .following import Following
from .leader_link import LeaderLink
from .locks import QueueLocks
from .offsets import ClassicOffsets
from .pop import ClassicPop
from .pull import ClassicPulls
from .queries import ClassicQueries
from .recalls import ClassicRecalls
from .replies import ClassicReplies
from .rights import PUBLIC, rights
from .send import ClassicSends
from .send_back import SendBacks
from .taken_send import TakenSend
from .transactions import ClassicTransactions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from ...front.config import DoorConfig
    from ...front.shared.handover import Handover
    from ...nodes.node_links import NodeLinks
    from ...remoting.connection import Handler
    from ..access.audit import AuditLog
    from ..access.guard import Guard
    from ..admin.service import Admin
    from ..assembly.parts import Broker

_NS_PER_MS = 1_000_000


class _Part(Protocol):
    def start(self) -> None: ...
    def close(self) -> None: ...


class ClassicPort:
    """Serves classic clients; `open` listens, once."""

    def __init__(
        self,
        broker: Broker,
        door: DoorConfig,
        *,
        admin: Admin,
        audit: AuditLog | None,
        guard: Guard | None,
        links: NodeLinks,
    ) -> None:
        """`guard`: with authentication."""
        config = self._config = broker.runtime.config
        self._port = config.remoting_listen_port
        expiry_ns = config.channel_expired_timeout * _NS_PER_MS
        members = Members[Connection](expiry_ns, config.max_clients)
        producers = Members[Connection](expiry_ns, config.max_clients)
        locks = QueueLocks()
        sends = _sends(broker, locks)
        handlers, self._parts = _handlers(
            broker, sends, locks=locks, members=members, producers=producers
        )
        handlers |= admin_handlers(
            broker, admin, members=members, producers=producers, advertised=self._advertised
        )
        clock, leadership = broker.runtime.clock, broker.leadership
        self._link = LeaderLink(leadership.leader_remoting, links, door, clock)
        following = Following(leadership, broker.replication, self._link)
        handlers = {code: following.deciding(handler) for code, handler in handlers.items()}
        listed = ClassicConnected(
            clock=clock,
            members=members,
            producers=producers,
            broker_name=config.broker_name,
            clients=admin.clients,
            progress=broker.progress,
        )
        self._parts = (*self._parts, listed)
        if guard is not None:
            needs = rights(broker.store, broker.transactions)
            access = ClassicAccess(guard, needs, PUBLIC, following.passes_on)
            handlers = {code: access.checking(handler) for code, handler in handlers.items()}
        handlers = audited(handlers, audit)

        def take(frame: bytes, peer: Connection) -> TakenSend | None:
            return sends.take(frame, peer) if leadership.is_leader else None

        # Signatures are checked on decoded requests.
        self._server = RemotingServer(handlers, door, clock, links, take if guard is None else None)

    async def open(self, stack: AsyncExitStack, handover: Handover | None) -> str:
        """Listen, or serve what the door of gRPC clients hands over.

        Returns the address for clients, HOST:PORT. Raises DoorError.
        """
        config = self._config
        if handover is None:
            self._port = await self._server.start(config.bind_address, self._port)
        else:
            self._server.share(handover)
        for part in self._parts:
            part.start()
            stack.callback(part.close)
        stack.callback(self._link.close)
        stack.push_async_callback(self._server.drain, 0)
        return host_port(config.broker_ip1, self._port)

    def _advertised(self) -> str:
        return self._config.remoting_advertised(self._port)

    async def drain(self, grace_s: float) -> None:
        """Finish requests in progress within `grace_s`, and close."""
        await self._server.drain(grace_s)


def _handlers(
    broker: Broker,
    sends: ClassicSends,
    *,
    locks: QueueLocks,
    members: Members[Connection],
    producers: Members[Connection],
) -> tuple[dict[int, Handler], Sequence[_Part]]:
    """Build the parts; return the table of request codes, and the parts to start."""
    config = broker.runtime.config
    may = broker.clients.may  # with authentication: the guard's
    clients = ClassicClients(
        runtime=broker.runtime,
        metadata=broker.metadata,
        leadership=broker.leadership,
        registry=broker.clients,
        group_topics=broker.group_topics,
        members=members,
        producers=producers,
        locks=locks,
        may=may,
    )
    transactions = ClassicTransactions(
        runtime=broker.runtime,
        sender=broker.sender,
        transactions=broker.transactions,
        producers=producers,
        may=may,
    )
    calls = ClientCalls(broker.store, members, broker.resets, config.broker_name, may)
    table = {
        **clients.handlers(),
        **_consuming(broker, members, config.broker_name),
        **sends.handlers(),
        **_send_backs(broker).handlers(),
        **transactions.handlers(),
        **calls.handlers(),
        **ClassicReplies(broker.runtime, broker.sender, producers, may).handlers(),
        **ClassicRecalls(broker.recalls, config.region_id).handlers(),
        **ClassicQueries(broker.store, broker.metadata, broker.pump).handlers(),
    }
    return table, (clients, transactions, calls)


def _consuming(
    broker: Broker, members: Members[Connection], broker_name: str
) -> dict[int, Handler]:
    offsets = ClassicOffsets(broker.store, broker.metadata, broker.offsets, broker.pump)
    pulls = ClassicPulls(
        store=broker.store,
        metadata=broker.metadata,
        pump=broker.pump,
        pulls=broker.pulls,
        members=members,
        offsets=offsets,
        followers=Followers(broker.runtime.config, broker.replication, broker.cluster),
        leadership=broker.leadership,
        counters=broker.runtime.counters,
    )
    pop = ClassicPop(
        store=broker.store,
        metadata=broker.metadata,
        changes=broker.changes,
        receiving=broker.receiving,
        acks=broker.acks,
        members=members,
        progress=broker.progress,
        broker_name=broker_name,
    )
    return {**offsets.handlers(), **pulls.handlers(), **pop.handlers()}


def _sends(broker: Broker, locks: QueueLocks) -> ClassicSends:
    return ClassicSends(
        runtime=broker.runtime,
        metadata=broker.metadata,
        sender=broker.sender,
        delayed=broker.delayed,
        transactions=broker.transactions,
        group_topics=broker.group_topics,
        locks=locks,
        max_message_size=broker.store.config.max_message_size,
    )


def _send_backs(broker: Broker) -> SendBacks:
    return SendBacks(
        store=broker.store,
        metadata=broker.metadata,
        sender=broker.sender,
        delayed=broker.delayed,
        group_topics=broker.group_topics,
        dead_letters=broker.dead_letters,
        counters=broker.runtime.counters,
    )
