"""A nameserver with a minimal controller service over the real wire: the test decides."""

import asyncio
from typing import Any

import grpc

from cometmq.ha.core.group_state import GroupState, Member, Policy
from cometmq.ha.state.state_codec import addresses_from, ref_from, state_message
from cometmq.proto import paths, v1

LEASE_MS = 1500


class FakeController(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """One group. Elects broker 0 at its first heartbeat; afterwards `elect` decides."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy(sync=True)
        self.state = GroupState("cluster", "group")
        self.heartbeats: dict[int, v1.BrokerBeat] = {}
        self.alters: list[v1.AlterIsrRequest] = []
        self.cuts: list[v1.ReportCutRequest] = []
        self.known: list[int] = []
        self.active = True
        self.leases = True
        self.port = 0
        self._server: Any = None
        self._pushes: set[asyncio.Event] = set()

    async def start(self) -> "FakeController":
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def service(self, call: Any) -> Any:
        if call.method == paths.CONTROLLER_SESSION:
            return grpc.stream_stream_rpc_method_handler(self._session)
        if call.method == paths.ALTER_ISR:
            return grpc.unary_unary_rpc_method_handler(self._alter)
        if call.method == paths.REPORT_CUT:
            return grpc.unary_unary_rpc_method_handler(self._report)
        return None

    # --- decisions of the test --------------------------------------------------------------------

    def decide(self, **changes: Any) -> None:
        state = self.state
        for heartbeat in self.heartbeats.values():
            replica = heartbeat.replica
            addresses = addresses_from(heartbeat.addresses)
            member = Member(replica.broker_id, replica.replica_uuid, addresses, heartbeat.suspect)
            state = state.with_member(member)
        self.state = state.with_(policy=self.policy, **changes)
        for push in self._pushes:
            push.set()

    def ref(self, broker_id: int) -> Any:
        replica = self.heartbeats[broker_id].replica
        return ref_from(v1.ReplicaRef(broker_id=broker_id, incarnation=replica.incarnation))

    def elect(self, broker_id: int) -> None:
        ref = self.ref(broker_id)
        self.decide(epoch=self.state.epoch + 1, leader=ref, in_sync=(ref,), last_proposal_seq=0)

    # --- the service ------------------------------------------------------------------------------

    async def _session(self, _requests: Any, context: Any) -> None:
        push = asyncio.Event()
        self._pushes.add(push)
        first = v1.BrokerBeat.FromString(await context.read())
        self._hear(first)
        broker_id = first.replica.broker_id
        pusher = asyncio.get_running_loop().create_task(self._push(context, push, broker_id))
        try:
            await context.write(self._directive(broker_id, first.seq))
            while (raw := await context.read()) is not grpc.aio.EOF:
                heartbeat = v1.BrokerBeat.FromString(raw)
                self._hear(heartbeat)
                await context.write(self._directive(broker_id, heartbeat.seq))
        finally:
            self._pushes.discard(push)
            pusher.cancel()

    async def _push(self, context: Any, push: asyncio.Event, broker_id: int) -> None:
        while True:
            await push.wait()
            push.clear()
            await context.write(self._directive(broker_id, 0))

    def _hear(self, heartbeat: v1.BrokerBeat) -> None:
        broker_id = heartbeat.replica.broker_id
        if heartbeat.HasField("known"):
            self.known.append(heartbeat.known.version)
        self.heartbeats[broker_id] = heartbeat
        if self.state.is_new and broker_id == 0:
            self.elect(0)

    def _directive(self, broker_id: int, seq: int) -> bytes:
        state, order = self.state, v1.ORDER_NONE
        is_leader = state.leader is not None and state.leader == self.ref(broker_id)
        if is_leader and self.heartbeats[broker_id].role != v1.LEADER:
            order = v1.ORDER_PROMOTE
        elif state.leader is not None and state.leader.broker_id != broker_id:
            order = v1.ORDER_FOLLOW
        directive = v1.Directive(
            state=state_message(state),
            order=order,
            active=self.active,
            old_leader_is_dead=True,
        )
        if is_leader and self.leases:
            directive.lease_for_seq, directive.lease_ms = seq, LEASE_MS
        return directive.SerializeToString()

    async def _alter(self, raw: bytes, context: Any) -> bytes:
        request = v1.AlterIsrRequest.FromString(raw)
        self.alters.append(request)
        accepted = self.active and request.state_version == self.state.version
        if accepted:
            members = tuple(ref_from(ref) for ref in request.members)
            self.decide(in_sync=members, last_proposal_seq=request.proposal_seq)
        return v1.AlterIsrResponse(
            accepted=accepted, state=state_message(self.state), active=self.active
        ).SerializeToString()

    async def _report(self, raw: bytes, context: Any) -> bytes:
        self.cuts.append(v1.ReportCutRequest.FromString(raw))
        return v1.ReportCutResponse().SerializeToString()
