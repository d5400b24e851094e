"""Callbacks from replication into the broker, called on the event loop; they must not block.

The broker assigns them before `start`; each default does nothing. The initial role of a static
replica comes from its configuration and files without a callback. In controller mode the replica
starts as a follower, and every change of role calls `on_promote` or `on_step_down`.
"""

from collections.abc import Callable
from typing import Any


class Hooks:
    def __init__(self) -> None:
        #: `confirm` moved. After `appended` it is called in the next turn of the loop.
        self.on_confirm: Callable[[], None] = _nothing
        #: Follower: bytes arrived from the leader.
        self.on_data: Callable[[], None] = _nothing
        #: Follower: the leader answers again (True) or is lost (False).
        self.on_leader_change: Callable[[bool], None] = _no_change
        #: Follower: a stream begins. The leader resends all state beside the log; such state from
        #: an earlier leader about bytes that have not arrived is void, because other bytes may
        #: arrive there.
        self.on_stream: Callable[[], None] = _nothing
        #: Leader: a follower joined the in-sync set.
        self.on_member_joined: Callable[[], None] = _nothing
        #: All consumer offsets of this broker as one payload, the same object until one moves,
        #: because it is called five times a second. None: there are none to send.
        self.offsets_snapshot: Callable[[], bytes] | None = None
        #: Merge the consumer offsets of another replica, each by maximum.
        self.offsets_apply: Callable[[bytes], None] = _no_payload
        #: Other state beside the log, by kind ("TIMER", "LOCKS", "POP": names of the protobuf
        #: enumeration). A snapshot that is called five times a second returns the same object until
        #: it changes, or None for no state. A leader sends every kind; a follower sends its POP
        #: once, before its first acknowledgement.
        self.meta_snapshot: dict[str, Callable[[], bytes | None]] = {}
        self.meta_apply: dict[str, Callable[[bytes], None]] = {}

        # --- roles --------------------------------------------------------------------------------

        #: This replica leads the epoch now. Everything is flushed and the epoch is assigned; `role`
        #: is LEADER. The first record to append is EPOCH_START, once there is disk space for it.
        self.on_promote: Callable[[int], None] = _no_epoch
        #: This replica stopped leading, for this reason: waiting sends get an unknown result.
        #: Nothing may be appended after the callback returned.
        self.on_step_down: Callable[[str], None] = _no_text
        #: `<store>/ha/pending` holds a plan: close the broker, run the plan, start again.
        self.on_reopen: Callable[[str], None] = _no_text
        #: The role or the known leader changed: update registration, routes and forwarding.
        self.on_role_change: Callable[[], None] = _nothing
        #: The disk failed and the replica is marked suspect: end the process.
        self.fatal: Callable[[str], None] = _no_text
        #: Offset up to which records are dispatched to their queues, for statistics.
        self.dispatched_end: Callable[[], int] = _zero
        #: Used part of the disk in percent; -1: unknown.
        self.disk_use: Callable[[], int] = _unknown
        #: A drain before a planned step-down starts (True: refuse writes) or was abandoned (False:
        #: accept writes again).
        self.on_drain: Callable[[bool], None] = _no_change

        # --- control ------------------------------------------------------------------------------

        #: (request, is_dry_run) of an operator; returns a v1.ControlResponse.
        self.replay_tail: Callable[[Any], Any] | None = None
        #: Archived tails as v1.ArchivedTail, for Status.
        self.archived_tails: Callable[[], list[Any]] = _none
        #: Async iterators of v1.BlockDigest and v1.LogBytes for a v1.DigestsRequest and
        #: v1.ReadRangeRequest.
        self.get_digests: Callable[[Any], Any] | None = None
        self.read_range: Callable[[Any], Any] | None = None
        #: A coroutine that returns a v1.ReadPlacesResponse for a v1.ReadPlacesRequest.
        self.read_places: Callable[[Any], Any] | None = None


def _nothing() -> None:
    pass


def _no_change(value: bool) -> None:
    pass


def _no_payload(payload: bytes) -> None:
    pass


def _no_epoch(epoch: int) -> None:
    pass


def _no_text(text: str) -> None:
    pass


def _zero() -> int:
    return 0


def _unknown() -> int:
    return -1


def _none() -> list[Any]:
    return []
