"""Factories of the leader and follower side, from the replica's settings and positions."""

from ..core import follower, in_sync
from ..core.epochs import EpochHistory
from ..core.group_state import Policy
from ..core.pending_isr import Proposals
from ..events import ReplicationEvents
from ..state.replica import Replica
from ..stream.follower import FollowerSide
from ..stream.follower_api import FollowerContext
from ..stream.leader import LeaderContext, LeaderSide


def make_leader(
    replica: Replica,
    events: ReplicationEvents,
    owner: LeaderContext,
    policy: Policy,
    *,
    epoch: int,
    confirm: int,
    decides_alone: bool,
    registers: bool = False,
    proposals: Proposals | None = None,
) -> LeaderSide:
    """Return the side of a leader of `epoch`, whose history is saved; `confirm` is confirmed
    already.

    `proposals`: undecided proposals since it last led; they still count if that was this epoch
    (R2). `registers`: a leader that decides alone registers its in-sync set with nameservers.
    """
    config, log = replica.config, replica.log
    limits = in_sync.Limits(
        is_sync=policy.sync,
        counts_flushed=policy.sync_flush,
        min_in_sync=policy.min_in_sync,
        lag_limit_ns=config.ha_in_sync_lag_ms * 1_000_000,
        join_lag_bytes=config.ha_transfer_batch_size,
        dead_after_ns=config.dead_after_ns,
        decides_alone=decides_alone,
        registers=registers and decides_alone and policy.sync,
    )
    in_sync_set = in_sync.InSyncSet(
        limits,
        log.log_end,
        log.flushed_offset,
        confirm,
        me=replica.ref,
        epoch=epoch,
        epoch_start=replica.history.entries[-1].start,
        proposals=proposals if proposals is not None and proposals.epoch == epoch else None,
    )
    return LeaderSide(replica, in_sync_set, events, owner)


def make_follower(
    replica: Replica, events: ReplicationEvents, owner: FollowerContext, confirm: int
) -> FollowerSide:
    """Return the side of a follower without a leader."""
    config, log = replica.config, replica.log
    limits = follower.Limits(
        dead_after_ns=config.dead_after_ns,
        ack_quiet_ns=config.ha_beat_interval_ms * 1_000_000 // 2,
        reconnect_min_ms=config.ha_reconnect_min_ms,
        reconnect_max_ms=config.ha_reconnect_max_ms,
        refused_reconnect_ms=config.ha_refused_retry_ms,
    )
    core = follower.Follower(
        limits,
        log.log_end,
        log.received_end,
        log.flushed_offset,
        confirm,
        history=EpochHistory(replica.history.entries),
        promised=replica.promised_epoch,
        suspect=replica.meta.suspect,
        is_sync=True,  # the leader decides when a cut may go below the confirm offset
    )
    return FollowerSide(replica, core, events, owner)
