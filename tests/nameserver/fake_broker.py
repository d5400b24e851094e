"""Nameservers with controllers in this process, and brokers that call them through raw stubs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import paths, v1
from cometmq.proto.channels import cancel_requests

TOKEN = (("x-cometmq-token", "the-token-of-the-tests"),)
WAIT_S = 20.0


def controller_config(directory: Path, **more: Any) -> NameserverConfig:
    """Return settings with short times and a directory of its own."""
    settings: dict[str, Any] = {
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "cluster_token": "the-token-of-the-tests",
        "namesrv_data_dir": str(directory),
        "controller": True,
        "controller_lease_ms": 600,
        "controller_beat_interval_ms": 100,
    }
    return NameserverConfig(**{**settings, **more})


class Link:
    """One nameserver, as brokers and operators call it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel: Any = grpc.aio.insecure_channel(
            address,
            options=[("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)],
        )

    async def call(self, path: str, request: Any, answer: Any, token: Any = TOKEN) -> Any:
        method = self.channel.unary_unary(path, response_deserializer=answer.FromString)
        return await method(request.SerializeToString(), metadata=token, timeout=WAIT_S)

    async def groups(self, group: str = "") -> v1.GroupsResponse:
        request = v1.GetGroupRequest(group=group)
        answer: v1.GroupsResponse = await self.call(paths.GET_GROUPS, request, v1.GroupsResponse)
        return answer

    async def close(self) -> None:
        await self.channel.close()


@asynccontextmanager
async def controller(directory: Path, **more: Any) -> AsyncIterator[Link]:
    """One nameserver with a single controller."""
    server = NameserverServer(controller_config(directory, **more))
    link = Link(await server.start())
    try:
        yield link
    finally:
        await link.close()
        await server.stop(1.0)


class FakeBroker:
    """A replica that sends heartbeats and follows directives, without a log: the test sets its
    ends."""

    def __init__(
        self,
        broker_id: int,
        links: list[Link],
        *,
        uuid: str = "",
        incarnation: int = 1,
        **heartbeat: Any,
    ) -> None:
        self.identity = v1.ReplicaIdentity(
            cluster="c",
            group="g",
            broker_id=broker_id,
            replica_uuid=uuid or f"uuid-{broker_id}",
            incarnation=incarnation,
        )
        self.links = links
        self.heartbeat: dict[str, Any] = {"log_is_empty": True, **heartbeat}
        self.role = v1.FOLLOWER
        self.state = v1.GroupState()
        self.directives: list[v1.Directive] = []
        self.errors: list[grpc.aio.AioRpcError] = []
        self.obeys = True
        self.on_directive: Any = None
        self._seq = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._now = asyncio.Event()

    def message(self, *, first: bool = False) -> v1.BrokerBeat:
        self._seq += 1
        heartbeat = v1.BrokerBeat(
            replica=self.identity,
            addresses=v1.ReplicaAddresses(client=f"h:{self.identity.broker_id + 1}"),
            seq=self._seq,
            sent_ns=self._seq,
            role=self.role,
            policy=v1.GroupPolicy(sync=True, min_in_sync=1),
            **self.heartbeat,
        )
        if first and self.state.version:
            heartbeat.known.CopyFrom(self.state)
        return heartbeat

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(link)) for link in self.links]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _run(self, link: Link) -> None:
        while True:
            with suppress(grpc.aio.AioRpcError):
                await self._session(link)
            if cancel_requests():
                raise asyncio.CancelledError  # grpc.aio swallows one while a stream is being opened
            await asyncio.sleep(0.05)

    async def _session(self, link: Link) -> None:
        call = link.channel.stream_stream(
            paths.CONTROLLER_SESSION, response_deserializer=v1.Directive.FromString
        )(metadata=TOKEN)
        writer = asyncio.create_task(self._beats(call))
        try:
            async for directive in call:
                self._obey(directive)
        except grpc.aio.AioRpcError as error:
            self.errors.append(error)
            raise
        finally:
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _beats(self, call: Any) -> None:
        first = True
        while True:
            self._now.clear()
            await call.write(self.message(first=first).SerializeToString())
            first = False
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._now.wait()

    def _obey(self, directive: v1.Directive) -> None:
        self.directives.append(directive)
        if directive.state.version > self.state.version:
            self.state = directive.state
        if self.on_directive is not None:
            self.on_directive(directive)
        if not self.obeys:
            return
        if directive.order == v1.ORDER_PROMOTE and directive.state.epoch > self.heartbeat.get(
            "promised_epoch", 0
        ):
            self.role = v1.LEADER
            end = self.heartbeat.get("log_end", 0) + 100
            self.heartbeat.update(
                promised_epoch=directive.state.epoch,
                last_epoch=directive.state.epoch,
                log_end=end,
                flushed_end=end,
                confirm=end,
                log_is_empty=False,
                drained=False,
            )
            self._now.set()
        elif directive.order == v1.ORDER_STEP_DOWN and self.role == v1.LEADER:
            self.role = v1.FOLLOWER
            self.heartbeat.update(drained=True)
            self._now.set()
        elif directive.order == v1.ORDER_FOLLOW:
            self.role = v1.FOLLOWER

    def follow(self, leader: "FakeBroker") -> None:
        """Take over the leader's log."""
        for key in ("log_end", "flushed_end", "confirm", "last_epoch", "log_is_empty"):
            self.heartbeat[key] = leader.heartbeat[key]
        self.heartbeat["promised_epoch"] = leader.heartbeat["last_epoch"]
        self._now.set()

    async def propose(
        self, members: list["FakeBroker"], link: Link, seq: int
    ) -> v1.AlterIsrResponse:
        request = v1.AlterIsrRequest(
            cluster="c",
            group="g",
            epoch=self.state.epoch,
            state_version=self.state.version,
            proposal_seq=seq,
            members=[ref(member) for member in members],
            confirm=self.heartbeat["confirm"],
            leader=ref(self),
        )
        answer: v1.AlterIsrResponse = await link.call(paths.ALTER_ISR, request, v1.AlterIsrResponse)
        return answer

    @property
    def leads(self) -> bool:
        return self.role == v1.LEADER


def ref(broker: FakeBroker) -> v1.ReplicaRef:
    """Its current incarnation."""
    identity = broker.identity
    return v1.ReplicaRef(broker_id=identity.broker_id, incarnation=identity.incarnation)


async def until(condition: Any) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - conditions are about several objects
            await asyncio.sleep(0.01)


async def joined(leader: FakeBroker, follower: FakeBroker, *links: Link) -> None:
    """Propose the follower for the in-sync set until the controller agrees, as a real leader
    does."""
    seq = leader.state.last_proposal_seq
    async with asyncio.timeout(WAIT_S):
        while len(leader.state.in_sync) < 2:
            follower.follow(leader)
            seq += 1
            for link in links:
                answer = await leader.propose([leader, follower], link, seq)
                if answer.state.version > leader.state.version:
                    leader.state = answer.state
            await asyncio.sleep(0.02)
    await until(lambda: len(follower.state.in_sync) == 2)
