"""What one seed decides about its cluster, and the times that all simulated clusters go by (the note's test profile)."""

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
HEAL_MS = 15000  #: at most so long until everything is well again


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    is_sync: bool
    sync_flush: bool
    replicas: int
    min_in_sync: int
    nameservers: int  #: 1: a file; 3: the register
    clock_ppm: int  #: clocks run fast or slow by at most this
    clock_steps: bool  #: steady clocks may jump, which no lease survives: only synchronous groups are safe then
    power_losses: bool
    one_size: bool  #: all records are equally long

    @property
    def counts_leases(self) -> bool:
        """Clocks keep what the design assumes of them, so nobody may write beside another (I10)."""
        return not self.clock_steps


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
    }
    chosen.update(fixed)
    return Settings(**chosen)  # type: ignore[arg-type]


def jitter(rng: random.Random, milliseconds: float) -> int:
    """About so long, in ns."""
    return int(milliseconds * (0.5 + rng.random()) * MS)
