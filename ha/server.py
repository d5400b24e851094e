"""Replication port: admission of streams, and the answer to a hello.

Every replica listens, so that a port conflict shows at start, and a follower pointed at another
follower gets a sentence instead of a refused connection. The port is never shared with another
process (docs/formats/ha.md, section 6.11).
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ..proto import paths, v1
from ..proto.addresses import host_port
from ..store.format.disk import descriptor_share
from .config import MAX_FOLLOWERS
from .core import hello
from .core.leader_resume import LeaderResume
from .core.role_machine import FollowersReturned, HigherEpochSeen, Role
from .errors import HaPortInUseError
from .role.role_driver import RoleDriver
from .state.replica import Replica
from .stream import frames
from .stream.channel import channel_options, read_to_end
from .stream.token import is_admitted

if TYPE_CHECKING:
    from .control import Control
    from .stream.dual_port import DualPort

logger = logging.getLogger(__name__)

#: Time for the hello of a new stream, before its slot is released.
_HELLO_TIMEOUT_S = 5.0
#: A hello waits for a promotion in progress, in this many polls.
_PROMOTION_POLLS = 200
_PROMOTION_POLL_S = 0.01
#: Limit of concurrent streams: every follower, each with an old stream that is still closing, and
#: unauthenticated peers.
_STREAMS_MAX = 64
#: Limit of connections: of every follower its stream, its reads of records and its scrub, each with
#: an old one that is still closing, and operators.
_CONNECTIONS_MAX = 128


class HaServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, replica: Replica, roles: RoleDriver, control: "Control") -> None:
        self._replica = replica
        self._roles = roles
        self._control = control
        config = replica.config
        # A follower reconnects at least once within `haReconnectMaxMs`.
        window_ms = 2 * config.ha_reconnect_max_ms + config.controller_lease_ms
        self._resume = LeaderResume(window_ms * 1_000_000)
        self._server: Any = None
        self._dual_port: DualPort | None = None

    async def start(self, bind_address: str) -> int:
        """Listen; returns the port. Raises HaPortInUseError."""
        config = self._replica.config
        server = grpc.aio.server(
            options=[
                *channel_options(config.ha_window_size),
                (
                    "grpc.max_allowed_incoming_connections",
                    min(_CONNECTIONS_MAX, descriptor_share()),
                ),
                ("grpc.server_handshake_timeout_ms", int(_HELLO_TIMEOUT_S * 1_000)),
            ],
            maximum_concurrent_rpcs=_STREAMS_MAX,
        )
        server.add_generic_rpc_handlers((self,))
        address = host_port(bind_address, config.ha_listen_port)
        links = self._replica.links
        try:
            if links.files is not None and links.tls.tls_mode == "permissive":
                from .stream.dual_port import DualPort

                self._dual_port = DualPort(server, links)
                port = await self._dual_port.open(bind_address, config.ha_listen_port)
            elif links.files is not None:
                credentials = links.server_credentials(require_client=True)
                port = server.add_secure_port(address, credentials)
            else:
                port = server.add_insecure_port(address)
        except (RuntimeError, OSError) as error:
            raise HaPortInUseError(
                f"The replication port {address} cannot be bound; another "
                "process may use it. Stop that process, or set another haListenPort."
            ) from error
        await server.start()
        self._server = server
        return int(port)

    async def stop(self, grace_s: float) -> None:
        if self._dual_port is not None:
            self._dual_port.stop_listening()
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None
        if self._dual_port is not None:
            await self._dual_port.close()
            self._dual_port = None

    def service(self, call: Any) -> Any:
        if call.method == paths.HA_REPLICATE:
            # Frames are raw bytes: this module answers a frame that cannot be parsed, not gRPC.
            return grpc.stream_stream_rpc_method_handler(self._replicate)
        return self._control.handler(call.method)

    async def _replicate(self, _requests: Any, context: Any) -> None:
        replica = self._replica
        await admit(context, replica)
        greeting = await _read_hello(context)
        try:
            facts = frames.follower_facts(greeting)
        except ValueError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._on_hello(facts)
        await self._wait_for_promotion()
        verdict = hello.decide(facts, self._facts())
        leader = self._roles.leader
        if isinstance(verdict, hello.Reject) or leader is None:
            assert isinstance(verdict, hello.Reject)
            await self._refuse(context, greeting, verdict)
            if verdict.code is hello.RejectCode.NEWER_EPOCH_SEEN:
                self._roles.feed(HigherEpochSeen(max(facts.promised_epoch, facts.last_epoch)))
        elif isinstance(verdict, hello.CutTo):
            logger.warning(
                "ha.follower.must_cut broker_id=%d cut=%d end=%d",
                greeting.broker_id,
                verdict.cut,
                greeting.log_end,
            )
            await context.write(leader.reply(verdict))
            # the follower closes the stream to cut
            await read_to_end(context.read, _HELLO_TIMEOUT_S)
        elif not leader.has_free_slot(greeting.broker_id):
            await _abort(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this leader already has {MAX_FOLLOWERS} followers",
            )
        else:
            await leader.serve(context, greeting, verdict)

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

    async def _refuse(self, context: Any, greeting: v1.Hello, verdict: hello.Reject) -> None:
        replica = self._replica
        logger.warning(
            "ha.follower.refused broker_id=%d peer=%s code=%s detail=%s",
            greeting.broker_id,
            context.peer(),
            verdict.code.value,
            verdict.sentence,
        )
        replica.counts[f"refused_{verdict.code.value.lower()}"] += 1
        await context.write(
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


async def admit(context: Any, replica: Replica) -> None:
    """Admit a caller, or abort the call; the rule for everything on this port."""
    metadata, verified = context.invocation_metadata(), context.auth_context()
    if not is_admitted(replica.links, metadata, context.peer(), verified):
        replica.counts["strangers"] += 1
        await _abort(
            context,
            grpc.StatusCode.PERMISSION_DENIED,
            "clusterToken is missing or wrong; without a token only this machine may connect",
        )


async def _read_hello(context: Any) -> v1.Hello:
    try:
        async with asyncio.timeout(_HELLO_TIMEOUT_S):
            raw = await context.read()
    except TimeoutError:
        await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "no hello")
    try:
        frame = v1.FollowerFrame() if raw is grpc.aio.EOF else v1.FollowerFrame.FromString(raw)
    except DecodeError:
        frame = v1.FollowerFrame()
    if frame.WhichOneof("frame") != "hello":
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the first frame is not a hello")
    return frame.hello


async def _abort(context: Any, code: grpc.StatusCode, sentence: str) -> NoReturn:
    await context.abort(code, sentence)
    raise AssertionError("abort returned")
