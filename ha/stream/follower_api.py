"""What a follower says first on a stream, and what it needs of whoever decides on roles.

The hello names everything that the leader decides by (`core/hello.py`): who speaks, how far its log goes, which epochs wrote
it, and what it promised. Before its first acknowledgement a follower hands over what came to be while no leader was: what
it cut in a former life, consumer offsets, pops. (HA note, section 6.6; design, 8.4)
"""

import logging
from typing import Any, Final, Protocol

from ...proto import v1
from ..core.follower import Follower
from ..core.group_state import GroupState
from ..hooks import Hooks
from ..members import ADVICE, ADVICE_OTHERWISE
from ..state.replica import Replica
from . import frames

_logger = logging.getLogger(__name__)

#: Refusals that a change of leader brings and takes away again.
PASSING: Final = frozenset({"NOT_LEADER", "STALE_EPOCH", "NEWER_EPOCH_SEEN"})


class FollowerContext(Protocol):
    """What a follower needs of whoever decides on roles."""

    def promise(self, epoch: int) -> None: ...
    def state_seen(self, state: GroupState) -> None: ...
    def hold(self, reason: str) -> None: ...
    def cut(self, to: int, epoch: int, reason: str, leader: str, *, accept_loss: bool) -> None: ...
    def reseed(self, reason: str) -> None: ...
    def suspect_cleared(self) -> None: ...
    def may_reseed(self) -> bool: ...
    def unreported_cuts(self) -> list[v1.CutDone]: ...


def hello(replica: Replica, core: Follower) -> bytes:
    """The first frame of a stream."""
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
    replica: Replica, core: Follower, hooks: Hooks, cuts: list[v1.CutDone]
) -> list[bytes]:
    """What goes before the first acknowledgement: who counts us in sync has it."""
    piece_bytes = replica.config.ha_transfer_batch_size
    first = [v1.FollowerFrame(cut_done=done) for done in cuts]
    payloads: list[tuple[str, bytes | None]] = []
    if hooks.offsets_snapshot is not None:
        payloads.append(("OFFSETS", hooks.offsets_snapshot()))
    if (pops := hooks.meta_snapshot.get("POP")) is not None:
        payloads.append(("POP", pops()))
    for kind, payload in payloads:
        if payload is not None:
            pieces = frames.meta_pieces(kind, core.epoch, 1, payload, piece_bytes)
            first += [v1.FollowerFrame(meta=piece) for piece in pieces]
    return [frame.SerializeToString() for frame in first]


def tell_refusal(code: str, detail: str, address: str) -> None:
    """Said once for each new reason."""
    if code in PASSING:
        _logger.warning("ha.follower.stopped code=%s detail=%s address=%s", code, detail, address)
        return
    advice = ADVICE.get(code, ADVICE_OTHERWISE).format(where=address)
    _logger.error("ha.follower.stopped code=%s detail=%s. %s", code, detail, advice)
