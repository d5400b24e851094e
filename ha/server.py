"""The replication port: who may come in, and the answer to a hello.

Every replica listens, so that a port conflict shows at start and a follower that was pointed at another
follower gets a sentence instead of a refused connection. The port is never shared with another process
(HA note, section 6.11).
"""

import asyncio
import logging
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ..proto import paths, v1
from . import frames
from .channel import channel_options
from .config import MAX_FOLLOWERS
from .core import hello
from .errors import HaPortInUseError
from .leader import LeaderSide
from .replica import Replica
from .token import is_admitted

_log = logging.getLogger(__name__)

#: A caller that opens a stream says hello within this time, or makes room for others.
_HELLO_TIMEOUT_S = 5.0
#: Streams at once: every follower, each with an old stream that is still being torn down, and strangers.
_STREAMS_MAX = 64


class HaServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, replica: Replica, leader: LeaderSide | None) -> None:
        self._replica = replica
        self._leader = leader
        self._server: Any = None

    async def start(self, bind_address: str) -> int:
        """Listen; returns the port. Raises HaPortInUseError."""
        config = self._replica.config
        server = grpc.aio.server(
            options=channel_options(config.ha_window_size),
            maximum_concurrent_rpcs=_STREAMS_MAX,
        )
        server.add_generic_rpc_handlers((self,))
        host = f"[{bind_address}]" if ":" in bind_address else bind_address
        try:
            port = server.add_insecure_port(f"{host}:{config.ha_listen_port}")
        except RuntimeError as error:
            raise HaPortInUseError(
                f"The replication port {host}:{config.ha_listen_port} cannot be bound; another "
                "process may use it. Stop that process, or set another haListenPort."
            ) from error
        await server.start()
        self._server = server
        return int(port)

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    def service(self, call: Any) -> Any:
        if call.method != paths.HA_REPLICATE:
            return None
        # Frames come and go as bytes: a frame that cannot be parsed is ours to answer, not gRPC's.
        return grpc.stream_stream_rpc_method_handler(self._replicate)

    async def _replicate(self, _requests: Any, context: Any) -> None:
        replica = self._replica
        metadata = context.invocation_metadata()
        if not is_admitted(replica.config.cluster_token, metadata, context.peer()):
            await _abort(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                "clusterToken is missing or wrong; without one only this machine may connect",
            )
        greeting = await _read_hello(context)
        verdict = hello.decide(frames.follower_facts(greeting), self._facts())
        leader = self._leader
        if isinstance(verdict, hello.Reject) or leader is None:
            assert isinstance(verdict, hello.Reject)
            await self._refuse(context, greeting, verdict)
        elif not leader.has_room(greeting.broker_id):
            await _abort(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this leader already has {MAX_FOLLOWERS} followers",
            )
        else:
            await leader.serve(context, greeting, verdict)

    async def _refuse(self, context: Any, greeting: v1.Hello, verdict: hello.Reject) -> None:
        replica = self._replica
        _log.warning(
            "ha.follower.refused broker_id=%d peer=%s code=%s detail=%s",
            greeting.broker_id,
            context.peer(),
            verdict.code.value,
            verdict.sentence,
        )
        await context.write(
            frames.reject(
                replica.epoch, replica.identity.broker_id, replica.meta.replica_uuid, verdict
            )
        )

    def _facts(self) -> hello.LeaderFacts:
        replica = self._replica
        return hello.LeaderFacts(
            is_leader=self._leader is not None,
            cluster=replica.identity.cluster,
            group=replica.identity.group,
            broker_id=replica.identity.broker_id,
            epoch=replica.epoch,
            segment_size=replica.segment_size,
            log_start=replica.log.log_start,
            log_end=replica.log.log_end,
            holders={} if self._leader is None else self._leader.holders(),
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
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the first frame is no hello")
    return frame.hello


async def _abort(context: Any, code: grpc.StatusCode, sentence: str) -> NoReturn:
    await context.abort(code, sentence)
    raise AssertionError("abort returned")
