"""Settings of one seed's cluster, and the times shared by all simulated clusters."""

import random
from dataclasses import dataclass

from .scheduler import MS, stream_of

LEASE_MS = 600
BEAT_MS = 100
TICK_MS = 50
HA_BEAT_NS = 100 * MS
DEAD_AFTER_NS = 300 * MS
LAG_LIMIT_NS = 300 * MS
PROPOSAL_RETRY_NS = 150 * MS
SEND_TIMEOUT_NS = 1000 * MS
CHUNK_BYTES = 256
WINDOW_BYTES = 1024
SEGMENT_BYTES = 1 << 14
SAFETY_MS = 7000  #: faults happen
HEAL_MS = 15000  #: limit of the time until the cluster has recovered


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    is_sync: bool
    sync_flush: bool
    replicas: int
    min_in_sync: int
    nameservers: int  #: 1: a file; 3: the register
    clock_ppm: int  #: clocks run fast or slow by at most this
    #: steady clocks may jump, which no lease survives: only synchronous groups are safe then
    clock_steps: bool
    power_losses: bool
    one_size: bool  #: all records are equally long
    rejects: bool  #: firewalls may forge refused connections

    @property
    def counts_leases(self) -> bool:
        """Whether clocks keep the design's assumptions, so that no two replicas may write (I10)."""
        # In synchronous groups a refusal counts as proof, and safety does not depend on leases.
        return not self.clock_steps and not (self.rejects and self.is_sync)


def settings_of(seed: int, **fixed: object) -> Settings:
    rng = stream_of(seed, "settings")
    is_sync = rng.random() < 0.7
    replicas = rng.choice((2, 3, 3))
    chosen: dict[str, object] = {
        "seed": seed,
        "is_sync": is_sync,
        "sync_flush": rng.random() < 0.5,
        "replicas": replicas,
        "min_in_sync": rng.choice((1, 2)) if is_sync else 1,
        "nameservers": rng.choice((1, 1, 3)),
        "clock_ppm": rng.choice((0, 4000)),
        "clock_steps": is_sync and rng.random() < 0.15,
        "power_losses": rng.random() < 0.6,
        "one_size": rng.random() < 0.5,
        "rejects": rng.random() < 0.2,
    }
    chosen.update(fixed)
    return Settings(**chosen)  # type: ignore[arg-type]


def jitter(rng: random.Random, milliseconds: float) -> int:
    """Return a random time around it, in ns."""
    return int(milliseconds * (0.5 + rng.random()) * MS)
