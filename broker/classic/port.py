"""The remoting port of one broker instance: its parts, the table of request codes, the listener."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...proto.addresses import host_port
from ...remoting.connection import Connection
from ...remoting.server import RemotingServer
from .admin.handlers import admin_handlers
from .calls import ClientCalls
from .clients import ClassicClients
from .errors import on_leader
from .locks import QueueLocks
from .members import Members
from .offsets import ClassicOffsets
from .pull import ClassicPulls
from .queries import ClassicQueries
from .recalls import ClassicRecalls
from .replies import ClassicReplies
from .send import ClassicSends
from .send_back import SendBacks
from .transactions import ClassicTransactions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from ...front.config import DoorConfig
    from ...remoting.connection import Handler
    from ..admin.service import Admin
    from ..config import BrokerConfig
    from ..parts import Broker

_NS_PER_MS = 1_000_000


class _Part(Protocol):
    def start(self) -> None: ...
    def close(self) -> None: ...


class ClassicPort:
    """Serves classic clients; `open` listens, once."""

    def __init__(
        self,
        broker: Broker,
        config: BrokerConfig,
        door: DoorConfig,
        *,
        max_message_size: int,
        admin: Admin,
        settings: Mapping[str, tuple[str, str]],
    ) -> None:
        """`settings` maps keys to value and origin."""
        self._config = config
        expiry_ns = config.channel_expired_timeout * _NS_PER_MS
        members = Members[Connection](expiry_ns, config.max_clients)
        producers = Members[Connection](expiry_ns, config.max_clients)
        handlers, self._parts = _handlers(broker, config, max_message_size, members, producers)
        handlers |= admin_handlers(
            broker, admin, members=members, producers=producers, settings=settings
        )
        leadership = broker.leadership
        guarded = {code: on_leader(handler, leadership) for code, handler in handlers.items()}
        self._server = RemotingServer(guarded, door, broker.runtime.clock)

    async def open(self, stack: AsyncExitStack) -> str:
        """Listen; return the address for clients, HOST:PORT. Raises DoorError."""
        config = self._config
        port = await self._server.start(config.bind_address, config.remoting_listen_port)
        for part in self._parts:
            part.start()
            stack.callback(part.close)
        stack.push_async_callback(self._server.drain, 0)
        return host_port(config.broker_ip1, port)

    async def drain(self, grace_s: float) -> None:
        """Finish requests in progress within `grace_s`, and close."""
        await self._server.drain(grace_s)


def _handlers(
    broker: Broker,
    config: BrokerConfig,
    max_message_size: int,
    members: Members[Connection],
    producers: Members[Connection],
) -> tuple[dict[int, Handler], Sequence[_Part]]:
    """Build the parts; return the table of request codes, and the parts to start."""
    runtime, metadata, store = broker.runtime, broker.metadata, broker.store
    locks = QueueLocks()
    clients = ClassicClients(
        runtime=runtime,
        metadata=metadata,
        registry=broker.clients,
        group_topics=broker.group_topics,
        members=members,
        producers=producers,
        locks=locks,
    )
    transactions = ClassicTransactions(
        runtime=runtime,
        sender=broker.sender,
        transactions=broker.transactions,
        producers=producers,
    )
    calls = ClientCalls(store, members, broker.resets, config.broker_name)
    offsets = ClassicOffsets(store, metadata, broker.offsets, broker.pump)
    pulls = ClassicPulls(
        store=store,
        metadata=metadata,
        pump=broker.pump,
        pulls=broker.pulls,
        members=members,
        offsets=offsets,
    )
    sends = ClassicSends(
        runtime=runtime,
        metadata=metadata,
        sender=broker.sender,
        delayed=broker.delayed,
        transactions=broker.transactions,
        group_topics=broker.group_topics,
        locks=locks,
        max_message_size=max_message_size,
    )
    send_backs = SendBacks(
        store=store,
        metadata=metadata,
        sender=broker.sender,
        delayed=broker.delayed,
        group_topics=broker.group_topics,
        dead_letters=broker.dead_letters,
        counters=runtime.counters,
    )
    table = {
        **clients.handlers(),
        **offsets.handlers(),
        **pulls.handlers(),
        **sends.handlers(),
        **send_backs.handlers(),
        **transactions.handlers(),
        **calls.handlers(),
        **ClassicReplies(runtime, broker.sender, producers).handlers(),
        **ClassicRecalls(broker.recalls, config.region_id).handlers(),
        **ClassicQueries(store, broker.pump).handlers(),
    }
    return table, (clients, transactions, calls)
