"""The remoting port of a proxy: classic clients use its address as nameserver and as broker.

Requests for routes go to a nameserver, and the answer names the proxy's address for every broker.
Every other request is passed on, unchanged, to the leader of the group that it belongs to
(`targets.py`), or to another live replica while that one cannot be reached: a follower serves it,
passes it on, or waits for the next leader. Heartbeats go to all replicas, so that a follower knows
its members when it leads. A request to a broker that has gone is answered with
SERVICE_NOT_AVAILABLE: clients fetch the route and try again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct

from ....remoting.admin_codes import Admin
from ....remoting.bare_json import BareJsonError
from ....remoting.codes import Reply, Request
from ....remoting.connection import Connection, RemotingError
from ....remoting.passing import pass_on, unavailable
from ....remoting.refusals import refusing
from ....remoting.server import CONNECTIONS_SHARE, RemotingServer, remoting_connections
from .nameservers import Nameservers
from .routes import rewritten
from .targets import EVERYWHERE, group_of, named_broker
from .upstreams import Upstreams, shared_by_upstreams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AsyncExitStack

    from ....front.clock import Clock
    from ....front.config import DoorConfig
    from ....front.shared.handover import Handover
    from ....nodes.node_links import NodeLinks
    from ....remoting.command import Command
    from ....remoting.connection import Handler
    from ...base.cluster_view import GroupView, MemberView
    from ..base.config import ProxyConfig
    from ..base.owners import Owners
    from ..base.watch import ClusterWatch

#: How long a request waits for a replica, within the 3 s that clients give a send.
_OWNER_S = 2.0
_LOOK_S = 0.05
#: Of the connections of this port: a client has one to each replica of its groups.
_CLIENTS_SHARE = 4

_OF_NAMESERVERS = frozenset(
    (
        Request.GET_ROUTEINFO_BY_TOPIC,
        Request.GET_BROKER_CLUSTER_INFO,
        Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Request.GET_TOPICS_BY_CLUSTER,
        Request.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Admin.GET_KV_CONFIG,
        Admin.GET_KVLIST_BY_NAMESPACE,
        Admin.DELETE_TOPIC_IN_NAMESRV,
        Admin.GET_NAMESRV_CONFIG,
        Admin.GET_UNIT_TOPIC_LIST,
        Admin.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Admin.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    )
)
#: A nameserver with a cluster token takes them from its own machine: the proxy's is not a client's.
_CHANGES = (
    Admin.PUT_KV_CONFIG,
    Admin.DELETE_KV_CONFIG,
    Admin.WIPE_WRITE_PERM_OF_BROKER,
    Admin.ADD_WRITE_PERM_OF_BROKER,
)
_OF_BROKERS = (
    frozenset((*Request, *Admin))
    - _OF_NAMESERVERS
    - frozenset(_CHANGES)
    - {
        Request.CHECK_TRANSACTION_STATE,
        Request.NOTIFY_CONSUMER_IDS_CHANGED,
        Request.RESET_CONSUMER_CLIENT_OFFSET,
        Request.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)


class ClassicCounts(Struct):
    """Counters since the start."""

    #: Requests passed on to a broker or a nameserver.
    forwarded: int = 0
    #: Requests that no replica of their group has taken.
    unreachable: int = 0


class ClassicPort:
    """Serves classic clients; `open` listens, once."""

    def __init__(
        self,
        *,
        owners: Owners,
        watch: ClusterWatch,
        config: ProxyConfig,
        door: DoorConfig,
        clock: Clock,
        links: NodeLinks,
    ) -> None:
        self._owners = owners
        self._watch = watch
        self._config = config
        self._links = links
        self._nameservers = Nameservers(config.remoting_namesrv_addresses(), links, door, clock)
        share = CONNECTIONS_SHARE * _CLIENTS_SHARE
        self._server = RemotingServer(self._handlers(), door, clock, links, share=share)
        connections = remoting_connections(door) - remoting_connections(door, share)
        self._shared = shared_by_upstreams(door, clock, max(1, connections))
        self._clients: dict[Connection, Upstreams] = {}
        #: The groups that serve classic clients, and their replicas in the order in which they are
        #: tried.
        self._groups: list[GroupView] = []
        self._replicas: dict[str, Sequence[MemberView]] = {}
        self.counts = ClassicCounts()

    @property
    def connections(self) -> int:
        """Number of connections of clients."""
        return self._server.connections

    @property
    def upstreams(self) -> int:
        """Number of connections to brokers."""
        return len(self._shared.connections)

    async def open(self, stack: AsyncExitStack, handover: Handover | None) -> int:
        """Listen, or serve what the door of gRPC clients hands over; return the port.

        Raises DoorError.
        """
        config = self._config
        port = config.remoting_listen_port
        if handover is None:
            port = await self._server.start(config.bind_address, port)
        else:
            self._server.share(handover)
        stack.callback(self._nameservers.close)
        stack.push_async_callback(self._server.drain, 0)
        self.cluster_changed()
        return port

    async def drain(self, grace_s: float) -> None:
        """Finish requests in progress within `grace_s`, and close."""
        await self._server.drain(grace_s)

    def cluster_changed(self) -> None:
        """Use the new leaders; end connections to brokers that have gone."""
        self._groups = [group for group in self._owners.groups() if _replicas(group)]
        self._replicas = {group.name: _replicas(group) for group in self._groups}
        members = (member for each in self._replicas.values() for member in each)
        living = {member.remoting for member in members if member.alive}
        for upstreams in self._clients.values():
            upstreams.keep(living)

    def _handlers(self) -> dict[int, Handler]:
        reason = "a proxy passes no changes on to nameservers: send it to each of them"
        return {
            **dict.fromkeys(_OF_NAMESERVERS, self._asking),
            **dict.fromkeys(_OF_BROKERS, self._passing),
            **refusing({reason: _CHANGES}),
        }

    def _asking(self, command: Command, peer: Connection) -> asyncio.Task[Command | None]:
        return asyncio.get_running_loop().create_task(self._ask(command, peer))

    def _passing(self, command: Command, peer: Connection) -> asyncio.Task[Command | None]:
        return asyncio.get_running_loop().create_task(self._pass(command, peer))

    # -- routes -----------------------------------------------------------------------------------

    async def _ask(self, command: Command, peer: Connection) -> Command | None:
        """Return the answer of a nameserver. Raises RemotingError."""
        self.counts.forwarded += 1
        answer = await self._nameservers.ask(command)
        if answer is None:
            return None
        address = self._config.remoting_advertised() or peer.local
        try:
            names = rewritten(command.code, answer, address)
        except (BareJsonError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemotingError(
                Reply.SYSTEM_ERROR, f"the nameserver's answer cannot be read: {error}"
            ) from None
        if command.code == Request.GET_ROUTEINFO_BY_TOPIC:
            self._upstreams(peer).routed.update(names)
        return answer

    # -- brokers ----------------------------------------------------------------------------------

    async def _pass(self, command: Command, peer: Connection) -> Command | None:
        """Return the answer of the request's broker. Raises RemotingError."""
        upstreams = self._upstreams(peer)
        self.counts.forwarded += 1
        if command.code in EVERYWHERE:
            routed = [name for name in self._replicas if name in upstreams.routed]
            return await self._pass_to_all(command, upstreams, routed or self._replicas)
        if command.code == Request.END_TRANSACTION and not named_broker(command):
            # Only the broker with the half message has this position with this unique id.
            return await self._pass_to_all(command, upstreams, self._replicas)
        try:
            async with asyncio.timeout(_OWNER_S):
                connection = await self._owner(command, upstreams)
        except TimeoutError:
            self.counts.unreachable += 1
            name = named_broker(command) or "this cluster"
            raise unavailable(f"no replica of {name[:255]} can be reached") from None
        return await pass_on(connection, command, "the broker")

    async def _owner(self, command: Command, upstreams: Upstreams) -> Connection:
        """Return the connection to the leader of a request's group, or to another replica; wait
        for one. Raises RemotingError."""
        while True:
            group = group_of(command, self._groups, self._owners.absent)
            for member in self._replicas[group.name] if group is not None else ():
                try:
                    return await upstreams.at(member.remoting)
                except OSError:
                    continue
            self._watch.poll_soon()
            await asyncio.sleep(_LOOK_S)

    async def _pass_to_all(
        self, command: Command, upstreams: Upstreams, names: Iterable[str]
    ) -> Command | None:
        """Pass a request on to the live replicas of groups; return one answer: an error of a
        leader, if there is one. Raises RemotingError."""
        loop = asyncio.get_running_loop()
        tasks = {
            loop.create_task(self._pass_to(member.remoting, command, upstreams)): member.is_leader
            for name in names
            for member in self._replicas[name]
            if member.alive
        }
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_OWNER_S)
        finally:
            for task in tasks:
                task.cancel()
        if command.is_oneway:
            return None
        answers = [
            (bool(answer.code and is_leader), is_leader, answer)
            for task, is_leader in tasks.items()
            if (answer := _answer(task)) is not None
        ]
        if not answers:
            self.counts.unreachable += 1
            raise unavailable("no broker can be reached")
        return max(answers, key=lambda each: each[:2])[2]

    async def _pass_to(
        self, address: str, command: Command, upstreams: Upstreams
    ) -> Command | None:
        try:
            connection = await upstreams.at(address)
        except OSError:
            self._watch.poll_soon()
            return None
        return await pass_on(connection, command, "the broker")

    def _upstreams(self, client: Connection) -> Upstreams:
        upstreams = self._clients.get(client)
        if upstreams is None:
            upstreams = self._clients[client] = Upstreams(client, self._shared, self._links)
            client.on_close(self._left)
        return upstreams

    def _left(self, client: Connection) -> None:
        self._clients.pop(client).close()


def _replicas(group: GroupView) -> Sequence[MemberView]:
    """Return the replicas that serve classic clients, in the order in which they are tried."""
    leader = group.leader()
    replicas = [member for member in group.members if member.remoting]
    return sorted(replicas, key=lambda member: (not member.alive, member is not leader))


def _answer(task: asyncio.Task[Command | None]) -> Command | None:
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()
