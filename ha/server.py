"""Replication port: admission of streams, and the answer to a hello.

Every replica listens, so that a port conflict shows at start, and a follower pointed at another
follower gets a sentence instead of a refused connection. The port has a front door of its own, for
nodes only. It is never shared with another process (docs/formats/ha.md, section 6.11).
"""

import asyncio
import logging
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..front.admission import check_node
from ..front.clock import Clock
from ..front.config import DoorConfig
from ..front.context import RequestContext
from ..front.door import choose_door
from ..front.errors import AddressError, PortInUseError
from ..front.service import Kind, Method, Outbound, refuse_wire_error
from ..nodes.addresses import host_port
from ..proto import paths, v1
from ..proto.errors import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, RpcFailure
from .config import MAX_FOLLOWERS, MAX_FRAME_BYTES
from .core import hello
from .core.leader_resume import LeaderResume
from .core.role_machine import FollowersReturned, HigherEpochSeen, Role
from .errors import HaPortInUseError
from .role.role_driver import RoleDriver
from .state.replica import Replica
from .stream import frames
from .stream.incoming import HELLO_TIMEOUT_S, IncomingStream

if TYPE_CHECKING:
    from .control import Control

logger = logging.getLogger(__name__)

#: A hello waits for a promotion in progress, in this many polls.
_PROMOTION_POLLS = 200
_PROMOTION_POLL_S = 0.01
#: Limit of concurrent calls: every follower's stream, with an old one that is still closing, its
#: reads of records and its scrub, and operators.
_CALLS_MAX = 128
#: Limit of connections: of every follower its stream, its reads of records and its scrub, each with
#: an old one that is still closing, and operators.
_CONNECTIONS_MAX = 128
#: Time for the request of a call, so that unfinished ones do not use up the port's calls.
_REQUEST_MS = 10_000
#: Bytes of unfinished requests: frames of followers hold at most a piece of offsets.
_UNFINISHED_BYTES = 32 << 20


def port_config(door: DoorConfig) -> DoorConfig:
    """Return the settings of the replication port's door: those of `door` with its own limits."""
    return replace(
        door,
        front_max_receive_message_size=MAX_FRAME_BYTES,
        front_max_connections=min(door.front_max_connections, _CONNECTIONS_MAX),
        front_max_concurrent_streams=_CALLS_MAX,
        front_max_concurrent_calls=_CALLS_MAX,
        front_handshake_timeout=min(door.front_handshake_timeout, int(HELLO_TIMEOUT_S * 1_000)),
        front_request_timeout=min(door.front_request_timeout, _REQUEST_MS),
        front_unfinished_connection_bytes=_UNFINISHED_BYTES,
        front_unfinished_bytes=2 * _UNFINISHED_BYTES,
        # The certificate of clients; nodes have their own.
        front_tls_certificate="",
        front_tls_key="",
        front_tls_client_ca="",
    )


class HaServer:
    def __init__(
        self, replica: Replica, roles: RoleDriver, control: "Control", door: DoorConfig
    ) -> None:
        """Raises DoorMissingError if `door` requires a door that is not installed."""
        self._replica = replica
        self._roles = roles
        config = replica.config
        # A follower reconnects at least once within `haReconnectMaxMs`.
        window_ms = 2 * config.ha_reconnect_max_ms + config.controller_lease_ms
        self._resume = LeaderResume(window_ms * 1_000_000)
        # Frames are raw bytes: this module answers a frame that cannot be parsed, not the door.
        replicate = Method(
            paths.HA_REPLICATE, Kind.BIDI, bytes, self._open, refuse_wire_error, admit=self._admit
        )
        methods = (replicate, *control.methods(self._admit))
        make = choose_door(port_config(door), replica.links, nodes=True)
        self._door = make({method.path: method for method in methods}, Clock())
        self._serving: set[asyncio.Task[Any]] = set()

    async def start(self, bind_address: str) -> int:
        """Listen; returns the port. Raises HaPortInUseError."""
        port = self._replica.config.ha_listen_port
        try:
            return await self._door.start(_host(bind_address), port)
        except (PortInUseError, AddressError) as error:
            raise HaPortInUseError(
                f"The replication port {host_port(bind_address, port)} cannot be bound; another "
                "process may use it. Stop that process, or set another haListenPort."
            ) from error

    async def stop(self, grace_s: float) -> None:
        """Let the streams send their goodbyes within the grace time, and close."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=grace_s)
        await self._door.drain(grace_s)

    def _admit(self, ctx: RequestContext) -> None:
        """Raise RpcFailure unless the caller is a node; the rule for everything on this port."""
        try:
            check_node(self._replica.links, ctx)
        except RpcFailure:
            self._replica.counts["strangers"] += 1
            raise

    def _open(self, ctx: RequestContext, outbound: Outbound) -> IncomingStream:
        return IncomingStream(self._serve, ctx.peer, outbound)

    def _serve(self, stream: IncomingStream, greeting: v1.Hello) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._answer(stream, greeting))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task

    async def _answer(self, stream: IncomingStream, greeting: v1.Hello) -> None:
        """Answer a hello, and run the stream of an accepted follower. Raises RpcFailure."""
        try:
            facts = frames.follower_facts(greeting)
        except ValueError as error:
            raise RpcFailure(INVALID_ARGUMENT, str(error)) from None
        self._on_hello(facts)
        await self._wait_for_promotion()
        verdict = hello.decide(facts, self._facts())
        leader = self._roles.leader
        if isinstance(verdict, hello.Reject) or leader is None:
            assert isinstance(verdict, hello.Reject)
            await self._refuse(stream, greeting, verdict)
            if verdict.code is hello.RejectCode.NEWER_EPOCH_SEEN:
                self._roles.feed(HigherEpochSeen(max(facts.promised_epoch, facts.last_epoch)))
        elif isinstance(verdict, hello.CutTo):
            logger.warning(
                "ha.follower.must_cut broker_id=%d cut=%d end=%d",
                greeting.broker_id,
                verdict.cut,
                greeting.log_end,
            )
            await stream.write(leader.reply(verdict))
            await asyncio.sleep(HELLO_TIMEOUT_S)  # the follower closes the stream to cut
        elif not leader.has_free_slot(greeting.broker_id):
            text = f"this leader already has {MAX_FOLLOWERS} followers"
            raise RpcFailure(RESOURCE_EXHAUSTED, text)
        else:
            await leader.serve(stream, greeting, verdict)

    def _on_hello(self, facts: hello.FollowerFacts) -> None:
        """Resume a leader that stopped without permission when all followers have returned."""
        roles, identity = self._roles, self._replica.identity
        if (facts.cluster, facts.group) != (identity.cluster, identity.group):
            return
        now_ns = self._replica.steady_ns()
        if self._resume.hello_received(facts, roles.machine, roles.proposals, now_ns):
            roles.feed(FollowersReturned())

    async def _wait_for_promotion(self) -> None:
        """Followers learn of an election as early as the elected replica, which may still be
        promoting."""
        for _ in range(_PROMOTION_POLLS):
            if self._roles.role is not Role.PROMOTING:
                return
            await asyncio.sleep(_PROMOTION_POLL_S)

    async def _refuse(
        self, stream: IncomingStream, greeting: v1.Hello, verdict: hello.Reject
    ) -> None:
        replica = self._replica
        logger.warning(
            "ha.follower.refused broker_id=%d peer=%s code=%s detail=%s",
            greeting.broker_id,
            stream.peer,
            verdict.code.value,
            verdict.sentence,
        )
        replica.counts[f"refused_{verdict.code.value.lower()}"] += 1
        await stream.write(
            frames.reject(
                replica.epoch,
                replica.identity.broker_id,
                replica.meta.replica_uuid,
                verdict,
                frames.state_bytes(replica.state),
            )
        )

    def _facts(self) -> hello.LeaderFacts:
        replica, roles = self._replica, self._roles
        leader, state = roles.leader, replica.state
        known = () if state is None or roles.is_static else state.members
        return hello.LeaderFacts(
            is_leader=leader is not None,
            cluster=replica.identity.cluster,
            group=replica.identity.group,
            broker_id=replica.identity.broker_id,
            epoch=replica.epoch,
            segment_size=replica.segment_size,
            log_start=replica.log.log_start,
            log_end=replica.log.log_end,
            holders={} if leader is None else leader.holders(),
            promised_epoch=replica.promised_epoch,
            epochs=replica.history,
            is_sync=roles.policy.sync,
            accept_loss=state is not None and state.accept_loss,
            uuids={member.broker_id: member.replica_uuid for member in known},
        )


def _host(bind_address: str) -> str:
    """Return the wildcard of IPv6, which takes callers of both protocols, for that of IPv4."""
    if bind_address != "0.0.0.0" or not socket.has_dualstack_ipv6():
        return bind_address
    try:
        socket.create_server(("::", 0), family=socket.AF_INET6).close()
    except OSError:  # IPv6 is switched off
        return bind_address
    return "::"
