"""Proof that the former leader is gone, with which the next one need not wait.

Found by the simulation: a leader that only the controller could not reach continued; the replica
elected in its place failed before it led, and *its* end was taken as proof that the new leader may
write immediately.
"""

from cometmq.ha.core.controller.events import (
    CasDone,
    CompareAndSet,
    Direct,
    Heartbeat,
    HeartbeatArrived,
    Limits,
    Order,
    ProcessExited,
    Started,
    Tick,
)
from cometmq.ha.core.controller.group_controller import GroupController
from cometmq.ha.core.group_state import GroupState, Member, Policy, Ref

MS = 1_000_000
LIMITS = Limits(lease_ns=600 * MS, heartbeat_ns=100 * MS)
STATE = GroupState(
    "c",
    "g",
    version=4,
    epoch=7,
    leader=Ref(1, 1),
    in_sync=(Ref(0, 1), Ref(1, 1), Ref(2, 1)),
    members=tuple(Member(i, f"u{i}") for i in range(3)),
    policy=Policy(sync=True),
)


class Controller:
    """Its store takes everything at once."""

    def __init__(self) -> None:
        self.core = GroupController("c", "g", LIMITS)
        self.now_ns = 10_000 * MS
        self.seq = 0
        self.told: dict[int, Direct] = {}
        self.send(Started(STATE))

    def send(self, event: object) -> None:
        queue = list(self.core.on_event(event, self.now_ns))  # type: ignore[arg-type]
        while queue:
            effect = queue.pop(0)
            if isinstance(effect, CompareAndSet):
                done = CasDone(effect.ticket, True, effect.state)
                queue += self.core.on_event(done, self.now_ns)
            elif isinstance(effect, Direct):
                self.told[effect.broker_id] = effect

    def heartbeat(self, broker_id: int, *, incarnation: int = 1, leads: bool = False) -> None:
        self.seq += 1
        epoch = self.core.state.epoch
        self.send(
            HeartbeatArrived(
                broker_id * 10 + incarnation,
                Heartbeat(
                    broker_id,
                    f"u{broker_id}",
                    incarnation,
                    seq=self.seq,
                    sent_ns=self.now_ns,
                    leads=leads,
                    promised_epoch=epoch,
                    last_epoch=epoch if leads else 6,
                    log_end=100 - broker_id,
                    flushed_end=100 - broker_id,
                ),
            )
        )

    def wait(self, milliseconds: int, *beating: int, leader: int = -1) -> None:
        for _ in range(milliseconds // 100):
            self.now_ns += 100 * MS
            self.send(Tick())
            for broker_id in beating:
                self.heartbeat(broker_id, leads=broker_id == leader)


def test_the_end_of_a_leader_that_led_is_proof() -> None:
    controller = Controller()
    controller.wait(1000, 0, 1, 2, leader=1)
    controller.send(ProcessExited(1, "u1", 1))
    assert controller.core.state.leader == Ref(0, 1)
    assert controller.told[0].order is Order.PROMOTE
    assert controller.told[0].old_leader_is_dead


def test_the_end_of_a_leader_that_never_led_proves_nothing_about_its_predecessor() -> None:
    controller = Controller()
    controller.wait(1000, 0, 1, 2, leader=1)
    controller.wait(800, 0, 2)  # broker 1 still leads, but its heartbeats are lost
    assert controller.core.state.leader == Ref(0, 1)
    assert not controller.told[0].old_leader_is_dead
    controller.send(ProcessExited(0, "u0", 1))
    assert controller.core.state.leader == Ref(2, 1)
    assert controller.told[2].order is Order.PROMOTE
    assert not controller.told[2].old_leader_is_dead


def test_a_leader_that_waited_and_led_proves_its_predecessors_gone() -> None:
    controller = Controller()
    controller.wait(1000, 0, 1, 2, leader=1)
    controller.wait(800, 0, 2)
    controller.wait(100, 0, 2, leader=0)
    controller.send(ProcessExited(0, "u0", 1))
    assert controller.core.state.leader == Ref(2, 1)
    assert controller.told[2].old_leader_is_dead
