"""Control doors of replicas and nameservers that keep what they are told: real gRPC servers with a
small state each.

The CLI's decider is tested against them without brokers; `tests/drills` does it with real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent import futures
from typing import Any, Self

import grpc

from cometmq.proto import paths, v1, v2

GROUP = "g"


class Door(grpc.GenericRpcHandler):  # type: ignore[misc]
    """One server; `handlers` maps paths to (request class, function)."""

    def __init__(self) -> None:
        self.handlers: dict[str, tuple[Any, Any]] = {}
        self.streams: dict[str, tuple[Any, Any]] = {}
        self.tokens: set[str] = set()  #: of the calls
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),)
        )
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening."""
        self._server.stop(None).wait()

    def service(self, call: Any) -> Any:
        def serialize(answer: Any) -> bytes:
            return bytes(answer.SerializeToString())

        self.tokens |= {v for k, v in call.invocation_metadata if k == "x-cometmq-token"}
        if call.method in self.streams:
            request, do = self.streams[call.method]
            return grpc.unary_stream_rpc_method_handler(
                lambda message, _: do(message), request.FromString, serialize
            )
        if call.method not in self.handlers:
            return None
        request, do = self.handlers[call.method]
        return grpc.unary_unary_rpc_method_handler(
            lambda message, _: do(message), request.FromString, serialize
        )


class ReplicaDoor(Door):
    """A replica that promises, leads and follows as it is told, and notes every call."""

    def __init__(
        self,
        broker_id: int,
        *,
        role: str = "follower",
        end: int = 1000,
        epoch: int = 1,
        state: v1.GroupState | None = None,
        suspect: bool = False,
        digests: Iterable[v1.BlockDigest] = (),
        tails: Sequence[v1.ArchivedTail] = (),
    ) -> None:
        super().__init__()
        self.broker_id, self.role, self.end, self.epoch = broker_id, role, end, epoch
        self.state = state or v1.GroupState()
        self.suspect, self.promised, self.tails = suspect, epoch, list(tails)
        self.start = 0
        self.refusal = ""
        self.calls: list[str] = []
        self.promoted: v1.PromoteRequest | None = None
        self.handlers = {
            paths.REPLICA_STATUS: (v1.StatusRequest, lambda _: self.status()),
            paths.FENCE: (v1.FenceRequest, self._fence),
            paths.STEP_DOWN: (v1.StepDownRequest, self._step_down),
            paths.PROMOTE: (v1.PromoteRequest, self._promote),
            paths.FOLLOW: (v1.FollowRequest, self._follow),
            paths.REPLAY_TAIL: (v1.ReplayTailRequest, self._replay),
            paths.RESEED: (v1.ReseedRequest, self._reseed),
        }
        self.streams = {paths.GET_DIGESTS: (v1.DigestsRequest, lambda _: iter(digests))}

    def status(self) -> v1.ReplicaStatus:
        """As it is now."""
        found = v1.ReplicaStatus(code=v2.OK, message="OK", role=self.role, tails=self.tails)
        beat = found.beat
        beat.replica.cluster, beat.replica.group = "c", GROUP
        beat.replica.broker_id, beat.replica.replica_uuid = self.broker_id, f"u{self.broker_id}"
        beat.replica.incarnation = 1
        beat.last_epoch, beat.promised_epoch = self.epoch, self.promised
        beat.log_end = beat.flushed_end = beat.confirm = self.end
        beat.suspect = self.suspect
        beat.write_refusal = self.refusal
        found.state.CopyFrom(self.state)
        found.epochs.add(epoch=self.epoch, start=self.start)
        return found

    def _fence(self, request: v1.FenceRequest) -> v1.ReplicaStatus:
        self.calls.append(f"fence {request.epoch}")
        self.promised = request.epoch
        self.role = "fenced" if self.role == "leader" else self.role
        return self.status()

    def _step_down(self, request: v1.StepDownRequest) -> v1.ControlResponse:
        self.calls.append("step down")
        self.role = "follower"
        return v1.ControlResponse(code=v2.OK, steps=["followers have everything"])

    def _promote(self, request: v1.PromoteRequest) -> v1.ControlResponse:
        self.calls.append("promote")
        self.promoted, self.role, self.epoch = request, "leader", int(request.state.epoch)
        self.state, self.start = request.state, self.end
        self.end += 100  # its EPOCH_START record
        return v1.ControlResponse(code=v2.OK, steps=["promoted"])

    def _follow(self, request: v1.FollowRequest) -> v1.ControlResponse:
        self.calls.append(f"follow {request.state.leader.broker_id}")
        self.role, self.state = "follower", request.state
        return v1.ControlResponse(code=v2.OK)

    def _replay(self, request: v1.ReplayTailRequest) -> v1.ControlResponse:
        known = list(request.sent_elsewhere)
        self.calls.append(f"replay {request.dry_run}" + f" but {' '.join(known)}" * bool(known))
        count = sum(tail.messages for tail in self.tails if tail.file_id not in known)
        steps = ["not sent twice" if known else "sent again"]
        return v1.ControlResponse(code=v2.OK, steps=steps, messages=count)

    def _reseed(self, request: v1.ReseedRequest) -> v1.ControlResponse:
        self.calls.append(f"reseed {request.dry_run}")
        return v1.ControlResponse(code=v2.OK, steps=["the data moves aside"])


class NameserverDoor(Door):
    """A nameserver that knows replicas, and a controller when it has a state."""

    def __init__(
        self,
        replicas: Sequence[ReplicaDoor],
        state: v1.GroupState | None = None,
        *,
        active: bool = True,
    ) -> None:
        super().__init__()
        self.replicas, self.state, self.active = replicas, state, active
        self.silent_ms: dict[int, int] = {}
        self.peers: list[str] = []
        #: Broker ids of the in-sync set that a static leader registered; None: none did.
        self.registered: list[int] | None = [one.broker_id for one in replicas]
        self.nameservers = 1
        self.set_leader = ""  #: uuid of the leader that registered the set
        self.asked: list[Any] = []
        self.handlers = {paths.GET_CLUSTER: (v1.GetClusterRequest, lambda _: self._cluster())}
        if state is not None:
            self.handlers |= {
                paths.GET_GROUPS: (v1.GetGroupRequest, lambda _: self._groups()),
                paths.SWITCHOVER: (v1.SwitchoverRequest, self._decide),
                paths.SET_POLICY: (v1.SetPolicyRequest, self._decide),
                paths.FORCE_ELECT: (v1.ForceElectRequest, self._decide),
                paths.PROCESS_EXITED: (v1.ProcessExitedRequest, self._exited),
            }

    def _cluster(self) -> v1.GetClusterResponse:
        found = v1.GetClusterResponse(version=1)
        route = found.groups.add(group=GROUP)
        for one in self.replicas:
            member = route.members.add(alive=True, log_end=one.end, confirm=one.end)
            member.replica.group, member.replica.broker_id = GROUP, one.broker_id
            member.epoch = one.epoch
            member.addresses.ha = one.address
            member.role = v1.LEADER if one.role == "leader" else v1.FOLLOWER
        if self.registered is not None:
            epoch = max((one.epoch for one in self.replicas), default=0)
            uuids = [f"u{number}" for number in self.registered]
            route.in_sync.epoch, route.in_sync.nameservers = epoch, self.nameservers
            route.in_sync.replica_uuids.extend(uuids)
            route.in_sync.leader_uuid = self.set_leader
        return found

    def _groups(self) -> v1.GroupsResponse:
        assert self.state is not None
        found = v1.GroupsResponse(code=v2.OK, peers=self.peers)
        report = found.groups.add(phase="stable", active=self.active, controller=self.address)
        report.state.CopyFrom(self.state)
        for one in self.replicas:
            silent_ms = self.silent_ms.get(one.broker_id, 0)
            replica = report.replicas.add(
                connected=True, in_sync=True, silent_ms=silent_ms, overdue=silent_ms > 2000
            )
            replica.replica.broker_id, replica.replica.group = one.broker_id, GROUP
            replica.addresses.ha = one.address
        return found

    def _decide(self, request: Any) -> v1.GroupsResponse:
        self.asked.append(request)
        answer = self._groups()
        answer.steps.append("decided")
        return answer

    def _exited(self, request: Any) -> v1.ProcessExitedResponse:
        self.asked.append(request)
        return v1.ProcessExitedResponse(known=True)
