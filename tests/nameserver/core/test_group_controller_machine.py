"""Random histories of a group under two controllers: nothing confirmed is lost, and the group
recovers."""

import pytest

from cometmq.ha.core.controller.events import ActiveChanged, Tick
from cometmq.ha.core.group_state import Policy
from cometmq.tests.nameserver.core.group_world import MS, World, close

POLICIES = (
    Policy(sync=True, min_in_sync=1),
    Policy(sync=True, min_in_sync=2),
    Policy(sync=False, min_in_sync=1),
)


def stir(world: World, power: float = 0.0) -> None:
    """Apply one random event."""
    rng = world.rng
    world.now_ns += rng.choice((1, 10, 40)) * MS
    broker = rng.choice(world.brokers)
    index = rng.randrange(2)
    dice = rng.random()
    if dice < 0.30:
        world.heartbeat(broker, index)
    elif dice < 0.42:
        world.tell(index, Tick(wall_ms=5))
    elif dice < 0.56:
        world.finish_write(lost=0.1)
    elif dice < 0.68:
        leaders = [b for b in world.brokers if b.leads and b.up]
        if leaders:
            world.replicate(rng.choice(leaders), broker)
    elif dice < 0.78:
        world.write(broker)
    elif dice < 0.83:
        world.propose(broker, index)
    elif dice < 0.90 and world.proposals:
        at = rng.randrange(len(world.proposals))
        _, request = world.proposals[at] if rng.random() < 0.3 else world.proposals.pop(at)
        world.tell(rng.randrange(2), request)
    elif dice < 0.93:
        if broker.up:
            world.crash(broker, power=rng.random() < power)
            if rng.random() < 0.5:
                world.exited(broker)
        else:
            world.restart(broker)
    elif dice < 0.95:
        broker.links = set(rng.sample((0, 1), rng.randrange(3)))
    elif dice < 0.97:
        close(world, broker, index)
    elif dice < 0.985:
        world.now_ns += rng.choice((300, 700, 1500)) * MS
    else:
        world.tell(index, ActiveChanged(rng.random() < 0.7))


@pytest.mark.parametrize("policy", POLICIES, ids=["min1", "min2", "async"])
@pytest.mark.parametrize("chunk", range(4))
def test_random_histories_keep_every_invariant(policy: Policy, chunk: int) -> None:
    for seed in range(chunk * 25, chunk * 25 + 25):
        world = World(seed, replicas=3 if seed % 3 else 2, policy=policy)
        power = 0.0 if seed % 4 else 0.3  # power losses end in holds: keep most worlds running
        for _ in range(400):
            stir(world, power)
        world.calm()
        state = world.store
        controller = world.controllers[0]
        if state.hold_reason:
            continue
        assert state.leader is not None, (seed, state)
        leader = world.brokers[state.leader.broker_id]
        assert leader.leads and leader.ref == state.leader, (seed, state)
        assert len(state.in_sync) == len(world.brokers), (seed, state, controller.pending)
        if policy.sync:
            assert set(world.confirmed) <= set(leader.log), seed
