"""One group controller with its store, for tests that send events and check decisions."""

from typing import Any

from cometmq.ha.core.controller.events import (
    CasDone,
    CompareAndSet,
    Effect,
    Event,
    Heartbeat,
    HeartbeatArrived,
    Limits,
    ReadState,
    Started,
    StateRead,
    Tick,
)
from cometmq.ha.core.controller.group_controller import GroupController
from cometmq.ha.core.group_state import Addresses, GroupState, Member, Policy, Ref

MS = 1_000_000
LIMITS = Limits(lease_ns=1_000 * MS, heartbeat_ns=100 * MS)
A, B, C = Ref(0, 1), Ref(1, 1), Ref(2, 1)


def state(**more: Any) -> GroupState:
    """A stable group of three with broker 0 as leader."""
    fields: dict[str, Any] = {
        "version": 10,
        "epoch": 5,
        "leader": A,
        "in_sync": (A, B, C),
        "members": tuple(Member(i, f"u{i}", Addresses(f"h{i}")) for i in range(3)),
        "policy": Policy(sync=True, min_in_sync=1),
        **more,
    }
    return GroupState("c", "g", **fields)


class Desk:
    """A controller and its store; compare-and-set completes immediately unless `slow`."""

    def __init__(self, stored: GroupState | None = None, *, active: bool = True) -> None:
        self.store = stored or GroupState("c", "g")
        self.now_ns = 10**12
        self.seq = 0
        self.slow = False
        self.effects: list[Effect] = []
        self.core = GroupController("c", "g", LIMITS)
        self.tell(Started(self.store, active=active))

    def tell(self, event: Event) -> None:
        for effect in self.core.on_event(event, self.now_ns):
            self.effects.append(effect)
            if isinstance(effect, ReadState):
                self.tell(StateRead(self.store))
            if isinstance(effect, CompareAndSet) and not self.slow:
                self.answer(effect)

    def answer(self, write: CompareAndSet) -> None:
        write.state.validate()
        taken = write.expected_version == self.store.version
        if taken:
            if not self.store.is_new:
                write.state.assert_follows(self.store)
            self.store = write.state
        self.tell(CasDone(write.ticket, taken, self.store))

    def heartbeat(self, broker_id: int, incarnation: int = 1, **more: Any) -> None:
        self.seq += 1
        fields: dict[str, Any] = {"last_epoch": 5, "log_end": 100, "flushed_end": 100, **more}
        uuid = fields.pop("uuid", f"u{broker_id}")
        heartbeat = Heartbeat(
            broker_id,
            uuid,
            incarnation,
            seq=self.seq,
            sent_ns=self.now_ns,
            addresses=fields.pop("addresses", Addresses(f"h{broker_id}")),
            **fields,
        )
        self.tell(HeartbeatArrived(1 + broker_id + 10 * incarnation, heartbeat))

    def all_send_heartbeats(self) -> None:
        self.all_send_heartbeats_but(-1)

    def all_send_heartbeats_but(self, silent: int) -> None:
        for broker_id in range(3):
            if broker_id != silent:
                more = {"leads": True} if broker_id == 0 else {"heard_epoch": 5, "heard_age_ns": 0}
                self.heartbeat(broker_id, **more)

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.now_ns += 50 * MS
            self.tell(Tick(wall_ms=77))

    def last(self, kind: type) -> Any:
        return next(e for e in reversed(self.effects) if isinstance(e, kind))
