"""One simulated cluster from its first event to the verdict: faults first, then recovery.

Safety: after every event all invariants hold (`oracle.py`). Liveness: after all faults end, an
operator forces an election if the group is held permanently, and within `HEAL_MS` a leader must
answer new writes OK, with every replica in sync and all logs equal.
"""

from dataclasses import dataclass, field

from cometmq.ha.core.controller import (
    events as heard,
)
from cometmq.ha.core.follower_events import State
from cometmq.ha.core.role_machine import Role
from cometmq.tests.sim.replica.node import Node
from cometmq.tests.sim.replica.stream import Stream

from .faults import Faults
from .nameserver import Nameserver
from .network import Network
from .oracle import Oracle, ViolationError
from .parts import Parts
from .scheduler import MS, Scheduler, stream_of
from .settings import HEAL_MS, SAFETY_MS, Settings, jitter, settings_of

WRITE_EVERY_MS = 14


@dataclass(slots=True)
class Verdict:
    seed: int
    violation: str = ""
    events: int = 0
    acked: int = 0
    elections: int = 0
    cuts: int = 0
    holds: int = 0
    handovers: int = 0
    policy_changes: int = 0
    stops: int = 0
    steps_aside: int = 0
    forced: int = 0
    lost: int = 0
    healed_ms: int = 0
    fingerprint: int = 0  #: equal for equal stories
    settings: Settings | None = field(default=None, repr=False)


class World:
    def __init__(
        self,
        settings: Settings,
        parts: Parts | None = None,
        bias: str = "",
        story: list[str] | None = None,
    ) -> None:
        seed = settings.seed
        self.settings = settings
        self.parts = parts or Parts()
        self.story = story
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, stream_of(seed, "network"))
        self.oracle = Oracle(self)
        self.faults = Faults(self, stream_of(seed, "faults"), bias)
        self.rng = stream_of(seed, "clients")
        self.nameservers = [
            Nameserver(self, i, stream_of(seed, f"nameserver {i}"))
            for i in range(settings.nameservers)
        ]
        self.nodes = [Node(self, i, stream_of(seed, f"node {i}")) for i in range(settings.replicas)]
        self.damaged: list[tuple[Node, int]] = []
        self.writes_until = 1 << 62
        self._number = 0
        self._identity = 0
        self._fingerprint = 0
        self.scheduler.after_event = self.oracle.after_event

    # --- calls of the shells ----------------------------------------------------------------------

    def new_number(self) -> int:
        self._number += 1
        return self._number

    def say(self, who: str, text: str, *values: object) -> None:
        if self.story is not None:
            line = text % values if values else text
            self.story.append(f"{self.scheduler.now / 1e9:9.4f} {who:5} {line}")

    def names(self) -> list[str]:
        return [node.name for node in self.nodes] + [n.name for n in self.nameservers]

    def leader(self) -> Node | None:
        """Return the leader of the newest epoch, if it is up."""
        leading = [n for n in self.nodes if n.alive and n.machine.role is Role.LEADER]
        return max(leading, key=lambda node: node.machine.epoch, default=None)

    def connect(self, follower: Node, broker_id: int) -> Stream:
        leader = self.nodes[broker_id]
        stream = Stream(self.new_number(), follower, leader)
        follower.streams.append(stream)
        return stream

    def process_exited(self, node: Node, incarnation: int) -> None:
        """Report the exit to every nameserver: the supervisor is on the same machine, so no cut
        delays it, and only received reports count."""
        for nameserver in self.nameservers:
            edge = (node.name, nameserver.name)
            self.network.datagram(edge, nameserver.exited, node, incarnation)

    # --- damaged blocks ---------------------------------------------------------------------------

    def damage_bit(self, node: Node, offset: int) -> None:
        node.disk.damage_bit(offset)
        self.damaged.append((node, offset))

    def scrub(self, only: Node | None = None) -> None:
        """Fetch damaged blocks from a replica where they are intact."""
        for node, offset in list(self.damaged):
            if only in (None, node):
                node.disk.damage_bit(offset)
                self.damaged.remove((node, offset))

    # --- clients ----------------------------------------------------------------------------------

    def _write(self) -> None:
        """Send to every replica that leads or thinks it does."""
        self.scheduler.after(jitter(self.rng, WRITE_EVERY_MS), self._write)
        if self.scheduler.now >= self.writes_until:
            return
        for node in self.nodes:
            if node.alive and node.leader is not None:
                self._identity += 1
                node.deliver(self._write_to, node, self._identity, self._body_bytes())

    def _body_bytes(self) -> int:
        """Messages of one size give records of two logs the same offsets, others do not."""
        return 8 if self.settings.one_size else self.rng.randrange(6, 60)

    def _write_to(self, node: Node, identity: int, body_bytes: int) -> None:
        if node.leader is not None:
            node.leader.write(identity, body_bytes)

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> Verdict:
        verdict = Verdict(self.settings.seed, settings=self.settings)
        try:
            self._begin()
            self.scheduler.run_until(SAFETY_MS * MS)
            self.say("world", "heals")
            self.faults.heal()
            verdict.healed_ms = self._heal()
        except (AssertionError, LookupError) as error:
            kind = "" if isinstance(error, ViolationError) else f"{type(error).__name__}: "
            verdict.violation = f"{kind}{error}" or repr(error)
            if not isinstance(error, ViolationError) and self.story is not None:
                raise
        oracle = self.oracle
        verdict.events = self.scheduler.count
        verdict.acked, verdict.elections = len(oracle.acked), oracle.elections
        verdict.cuts, verdict.holds = oracle.cut_count, oracle.holds
        verdict.forced, verdict.lost = oracle.forced, oracle.lost
        verdict.handovers, verdict.policy_changes = oracle.handovers, oracle.policy_changes
        verdict.stops, verdict.steps_aside = oracle.stops, oracle.steps_aside
        verdict.fingerprint = self._finger()
        return verdict

    def _begin(self) -> None:
        ppm = self.settings.clock_ppm
        machines: list[Nameserver | Node] = [*self.nameservers, *self.nodes]
        for index, machine in enumerate(machines):
            machine.clock.set_rate(ppm if index % 2 else -ppm)
            delay = jitter(self.rng, 30)
            self.scheduler.after(delay, machine.start)
        self.scheduler.after(300 * MS, self._write)
        self.scheduler.after(500 * MS, self._compare)
        self.faults.plan()

    def _compare(self) -> None:
        self.scheduler.after(700 * MS, self._compare)
        if not self.damaged:
            self.oracle.compare_histories()

    def _heal(self) -> int:
        """Return how long the recovery took."""
        start = self.scheduler.now
        goal = len(self.oracle.acked) + 20
        patience = start + 2500 * MS
        while self.scheduler.now < start + HEAL_MS * MS:
            self.scheduler.run_until(self.scheduler.now + 50 * MS)
            if self.scheduler.now >= patience:
                patience += 1500 * MS
                self._operate()
            if len(self.oracle.acked) >= goal and self._is_well():
                self.writes_until = self.scheduler.now
                self.scheduler.run_until(self.scheduler.now + 400 * MS)
                if self._is_well():
                    leader = self.leader()
                    assert leader is not None
                    self.oracle.compare_logs(leader)
                    self.oracle.compare_histories()
                    return (self.scheduler.now - start) // MS
                self.writes_until = 1 << 62
        raise ViolationError(f"liveness: {self._why_not_well()}")

    def _is_well(self) -> bool:
        leader = self.leader()
        if leader is None or leader.leader is None:
            return False
        core = leader.leader.core
        if core.in_sync_count != len(self.nodes) or core.confirm != leader.log_end:
            return False
        return all(
            node.alive
            and node.log_end == leader.log_end
            and not node.suspect
            and (node is leader or node.follower.core.state is State.IN_SYNC)
            for node in self.nodes
        )

    def _operate(self) -> None:
        """Act as the operator of a held group: promote the best replica with accepted loss, and
        reseed a replica that cannot continue with its own bytes."""
        held = [
            n for n in self.nameservers if n.alive and n.core.active and n.core.state.hold_reason
        ]
        for nameserver in held[:1]:
            alive = [node for node in self.nodes if node.alive]
            best = max(alive, key=lambda n: (n.history.last_epoch, n.log_end, -n.broker_id))
            self.say("world", "forces %s", best.name)
            self.oracle.forced += 1
            request = self.new_number()
            nameserver.feed(heard.ForceElect(request, best.broker_id, True, "simulated"))
        for node in self.nodes:
            if not node.alive or node.leader is not None:
                continue
            stuck = node.follower.core.state in (State.HOLD, State.DIVERGED)
            if (stuck or node.machine.role is Role.HOLD) and self.leader() is not None:
                self._reseed(node)

    def _reseed(self, node: Node) -> None:
        state = node.machine.state
        forced = state is not None and (state.accept_loss or self.oracle.forced)
        if not forced:
            raise ViolationError(
                f"I7: {node.name} is held without a forced election: {node.follower.core.refusal}"
            )
        self.say("world", "reseeds %s", node.name)
        node.deliver(node.reseed, "an operator said so")

    def _why_not_well(self) -> str:
        leader = self.leader()
        rows = []
        for node in self.nodes:
            if not node.alive:
                rows.append(f"{node.name} dead")
                continue
            state = node.follower.core.state.value if node.leader is None else "leads"
            rows.append(
                f"{node.name} {node.machine.role.value}/{state} end={node.log_end}"
                f" suspect={node.suspect} {node.machine.hold_reason}"
            )
        newest = self.oracle.newest
        return f"leader={leader and leader.name} {rows} state={newest}"

    def _finger(self) -> int:
        total = self.scheduler.count
        for node in self.nodes:
            end = getattr(node, "log_end", 0)
            total = total * 1_000_003 + hash(tuple(node.disk.live[:end:37])) + end
        return total & 0xFFFFFFFFFFFFFFFF


def run_seed(
    seed: int,
    parts: Parts | None = None,
    bias: str = "",
    story: list[str] | None = None,
    **fixed: object,
) -> Verdict:
    """The whole story of one seed."""
    return World(settings_of(seed, **fixed), parts, bias, story).run()
