"""Table of the failure drills: actions, initial setup, and expected result.

Source: docs/formats/ha.md, section 6.12. A mode is `sync`, `async`, or `sync 2` (two in-sync
replicas are required). The default length is short; `--scale 1` is the full length of 20, 23, 34,
35, 38 and 40. Every drill ends with heal, drain, compare (`stage.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .actions import crashes, messages, partitions, static_mode, storage
from .settings import Setup
from .stage import Stage

SYNC, ASYNC, BOTH = ("sync",), ("async",), ("sync", "async")
SYNC_2 = "sync 2"


@dataclass(frozen=True, slots=True)
class Drill:
    """One row."""

    number: int
    title: str
    modes: tuple[str, ...]
    expected: str
    run: Callable[[Stage], None]
    setup: Setup = field(default_factory=Setup)
    #: Only in the slow lane; names what covers the drill in the default lane.
    covered_by: str = ""
    group: str = ""  # drills of one group run in one test file

    def setup_of(self, mode: str) -> Setup:
        """Return the initial setup for a mode."""
        setup = self.setup.with_mode(mode)
        return replace(setup, min_in_sync=2) if mode == SYNC_2 else setup


def _conf(**conf: str) -> Setup:
    return Setup(conf=conf)


_THREE = Setup(brokers=3)
_STATIC = Setup(controller=False)
_SCRUB = _conf(haScrubIntervalMs="1000")
_RETENTION = _conf(
    fileReservedTime="1",
    deleteWhen=";".join(f"{hour:02}" for hour in range(24)),
    cleanResourceInterval="200",
    deleteCommitLogFilesInterval="10",
)
_HALVES = _conf(
    transactionTimeOut="1000",
    transactionCheckInterval="1000",
    transactionCheckMax="100",
    transactionOpBatchInterval="200",
)
# At full length the log alone fills the disk: no shadow copy of flushed data.
_FRESH = Setup(first_brokers=1, segment=4 << 20, shadows=False)
# A follower that receives nothing stays in the in-sync set for longer than TAIL_S.
_TAIL = _conf(haInSyncLagMs="60000")
_SLOW_LEASE = Setup(conf={"controllerLeaseMs": "4000"}, namesrv_conf={"controllerLeaseMs": "4000"})

DRILLS: tuple[Drill, ...] = (
    Drill(1, "kill -9 follower, restart", SYNC,
          "in-sync set shrinks, writes continue, no truncation",
          crashes.follower_dies, covered_by="drill 2"),
    Drill(2, "the same with minInSyncReplicas=2", (SYNC_2,),
          "writes refused until the follower is back",
          crashes.follower_dies_min_two),
    Drill(3, "kill -9 leader, no restart", SYNC, "new leader within lease + 1 s, nothing lost",
          crashes.leader_dies, Setup(report_exits=False)),
    Drill(4, "kill -9 leader, restart at once", SYNC,
          "new epoch, nothing lost, no duplicate offset",
          crashes.leader_restarts, covered_by="drills/test_kill9.py"),
    Drill(5, "kill -9 leader with an unreplicated tail", ASYNC,
          "tail truncated, archived, counted, replayed", crashes.lost_tail, _TAIL),
    Drill(6, "SIGSTOP leader for 3 leases, SIGCONT", BOTH,
          "another leader; no late OK of the old one",
          crashes.leader_pauses, Setup(report_exits=False)),
    Drill(7, "disconnect controller and leader only", BOTH, "no failover, writes continue",
          partitions.controller_cut_off),
    Drill(8, "disconnect leader from followers", ("sync", SYNC_2),
          "continues alone, or refuses with minInSyncReplicas=2; no truncation",
          partitions.followers_cut_off),
    Drill(9, "isolate leader from all but clients", BOTH,
          "new leader; OKs of the old one stop within a lease",
          partitions.isolated_leader),
    Drill(10, "packets leader to follower dropped, reverse open", BOTH,
          "as drill 8", partitions.one_way, covered_by="drill 8"),
    Drill(11, "power loss of leader, ASYNC_FLUSH", SYNC,
          "other replica promoted; suspect catches up",
          crashes.power_loss_of_leader),
    Drill(12, "power loss of the only in-sync replica", ("sync", SYNC_2),
          "HOLD and force-elect; with minInSyncReplicas=2 the eligible replica, no loss",
          crashes.power_loss_of_last),
    Drill(13, "kill -9 a suspect replica", SYNC, "still suspect", crashes.suspect_dies,
          covered_by="tests/sim"),
    Drill(14, "power loss of all, SYNC_FLUSH", SYNC, "nothing lost", crashes.power_loss_of_all,
          Setup(sync_flush=True)),
    Drill(15, "power loss of all, ASYNC_FLUSH", SYNC, "loss within the flush interval, logs equal",
          crashes.power_loss_of_all, covered_by="drill 14"),
    Drill(16, "elect B, then C, no message in between", BOTH,
          "B's diverged tail is truncated; logs equal",
          crashes.two_elections, _THREE, covered_by="tests/sim"),
    Drill(17, "kill -9 right after a truncation", ASYNC, "the tail does not reappear",
          crashes.cut_then_dies, _TAIL),
    Drill(18, "late and reset in-sync proposals, leader killed", SYNC, "nothing lost",
          partitions.slow_proposals, covered_by="tests/sim"),
    Drill(19, "old incarnation proposed after power loss", SYNC, "rejected; nothing lost",
          partitions.old_incarnation, covered_by="tests/sim"),
    Drill(20, "no controller for 10 min, kill follower", BOTH,
          "service continues, in-sync set unchanged",
          partitions.controller_dies, _SLOW_LEASE, covered_by="drill 21"),
    Drill(21, "kill controller and leader", BOTH, "election after the grace period",
          partitions.controller_and_leader_die),
    Drill(22, "groups.state deleted", BOTH, "rebuilt from the replicas; epoch continues",
          partitions.state_lost),
    Drill(23, "new follower of a 20 GiB log, killed halfway", SYNC,
          "resumes; joins when up to date",
          storage.fresh_follower, _FRESH),
    Drill(24, "retention passes a stopped follower", SYNC, "reseeds, old directory kept",
          storage.retention_passes, _RETENTION),
    Drill(25, "partial replica is the only survivor", SYNC, "not elected",
          storage.partial_survivor, Setup(brokers=2, first_brokers=1)),
    Drill(26, "one bit flipped in a finished segment", SYNC, "found, repaired, never truncated",
          storage.flipped_bit, _SCRUB),
    Drill(27, "disk full on follower, then leader", SYNC, "follower leaves; leader steps down",
          storage.full_disk, covered_by="tests/ha/test_disk_full_handover.py"),
    Drill(28, "flush error on leader", SYNC, "process exits suspect; failover", crashes.flush_error,
          Setup(sync_flush=True)),
    Drill(29, "two processes with one directory, port, id", SYNC, "the second one is refused",
          crashes.same_twice),
    Drill(30, "create topic + send, kill leader at the OK", SYNC, "topic and message exist",
          messages.topic_then_kill),
    Drill(31, "consume with commits, kill leader", BOTH, "few duplicates, nothing skipped",
          messages.offsets_survive),
    Drill(32, "delayed messages, failover at due time", SYNC, "all delivered",
          messages.delayed_survive),
    Drill(33, "half messages, failover before commit", SYNC, "checked back by the new leader",
          messages.halves_survive, _HALVES),
    Drill(34, "rolling restart with switchovers", SYNC, "no failed send, no truncation",
          partitions.rolling_restart, covered_by="drills/test_clean_stop.py"),
    Drill(35, "planned switchovers under load", BOTH,
          "gap within 1 s, no truncation, no duplicates",
          partitions.switched_under_load, covered_by="drills/test_clean_stop.py"),
    Drill(36, "nameserver dies during failover, late unregister", SYNC, "routes show the leader",
          partitions.nameserver_restarts, Setup(nameservers=3)),
    Drill(37, "leader down, no candidate", (SYNC_2,),
          "consumers read what exists, producers get an error",
          messages.readers_without_leader),
    Drill(38, "swizzle: networks stop and resume, kills", SYNC, "all checkers clean",
          partitions.swizzle, Setup(brokers=3, nameservers=3),
          covered_by="drills/test_random.py"),
    Drill(39, "wall clock +-1 h on each node", SYNC, "no effect on roles", partitions.clocks),
    Drill(40, "SIGSTOP of everything", BOTH, "exactly one leader afterwards", partitions.suspended,
          covered_by="drill 6"),
    Drill(41, "disks of all replicas full", SYNC, "one leads, read-only; sends go on with space",
          storage.full_group, covered_by="tests/broker/core/test_full_disk_broker.py"),
    Drill(42, "static group: ten kills, ten times `ha failover`", SYNC, "nothing lost",
          static_mode.ten_failovers, _STATIC, covered_by="tests/ha/role/test_static_promotions.py"),
    Drill(43, "static group: ten kills under `promote --watch`", SYNC, "nothing lost",
          static_mode.ten_watched, _STATIC, covered_by="tests/ha/role/test_static_promotions.py"),
)  # fmt: skip


def drill(number: int) -> Drill:
    """Return the row with this number. Raises KeyError."""
    for one in DRILLS:
        if one.number == number:
            return one
    raise KeyError(number)


def cases() -> list[tuple[int, str]]:
    """Return every drill in each of its modes."""
    return [(one.number, mode) for one in DRILLS for mode in one.modes]
