"""First frames of a follower, and the protocol of the role driver for its follower side.

The hello has everything that the leader's decision needs (`core/hello.py`): identity, log range,
epoch history and promise. Before its first acknowledgement a follower sends what happened while
there was no leader: cuts of earlier incarnations, consumer offsets, pops (docs/formats/ha.md,
section 6.6).
"""

import logging
from typing import Any, Final, Protocol

from ...proto import v1
from ..core.follower import Follower
from ..core.group_state import GroupState
from ..events import OFFSETS, POP, ReplicationEvents
from ..members import ADVICE, ADVICE_OTHERWISE
from ..state.replica import Replica
from . import frames

logger = logging.getLogger(__name__)

#: Temporary refusals during a change of leader.
PASSING: Final = frozenset({"NOT_LEADER", "STALE_EPOCH", "NEWER_EPOCH_SEEN"})


class FollowerContext(Protocol):
    """The part of the role driver that the follower side calls."""

    def promise(self, epoch: int) -> None: ...
    def state_seen(self, state: GroupState) -> None: ...
    def state_arrived(self, kind: str, payload: bytes) -> None: ...
    def hold(self, reason: str) -> None: ...
    def cut(self, to: int, epoch: int, reason: str, leader: str, *, accept_loss: bool) -> None: ...
    def reseed(self, reason: str) -> None: ...
    def suspect_cleared(self) -> None: ...
    def may_reseed(self) -> bool: ...
    def leader_refused(self) -> None: ...
    def unreported_cuts(self) -> list[v1.CutDone]: ...


def hello(replica: Replica, core: Follower) -> bytes:
    """Return the first frame of a stream."""
    frame = v1.Hello(
        cluster_id=replica.identity.cluster,
        group=replica.identity.group,
        broker_id=replica.identity.broker_id,
        replica_uuid=replica.meta.replica_uuid,
        incarnation=replica.meta.incarnation,
        promised_epoch=replica.promised_epoch,
        epochs=frames.epoch_points(replica.history),
        log_start=replica.log.log_start,
        log_end=core.log_end,
        flushed_end=core.flushed_end,
        confirm=core.confirm,
        suspect=replica.meta.suspect,
        segment_size=replica.segment_size,
        want_from=_want_from(replica, core),
        max_chunk=replica.config.ha_transfer_batch_size,
    )
    return v1.FollowerFrame(hello=frame).SerializeToString()


def _want_from(replica: Replica, core: Follower) -> Any:
    if core.log_end:
        return v1.CONTINUE
    return v1.LAST_SEGMENT if replica.config.sync_from_last_file else v1.OLDEST


def first_frames(
    replica: Replica, core: Follower, events: ReplicationEvents, cuts: list[v1.CutDone]
) -> list[bytes]:
    """Return the frames before the first acknowledgement: a leader that counts this follower has
    them."""
    piece_bytes = replica.config.ha_transfer_batch_size
    first = [v1.FollowerFrame(cut_done=done) for done in cuts]
    for kind in (OFFSETS, POP):
        payload = events.state_beside(kind)
        if payload is not None:
            pieces = frames.meta_pieces(kind, core.epoch, 1, payload, piece_bytes)
            first += [v1.FollowerFrame(meta=piece) for piece in pieces]
    return [frame.SerializeToString() for frame in first]


def log_follower_refusal(code: str, detail: str, address: str) -> None:
    """Log a refusal; called once for each new reason."""
    if code in PASSING:
        logger.warning("ha.follower.stopped code=%s detail=%s address=%s", code, detail, address)
        return
    advice = ADVICE.get(code, ADVICE_OTHERWISE).format(where=address)
    logger.error("ha.follower.stopped code=%s detail=%s. %s", code, detail, advice)
