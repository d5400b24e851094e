"""What replication tells the broker and asks it for, on the event loop; no call may block.

The initial role of a static replica comes from its configuration and files without a call. In
controller mode the replica starts as a follower, and every change of role calls `promoted` or
`stepped_down`.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from ..proto import v1

#: Kinds of state beside the log, by their names in the protobuf enumeration: consumer offsets, the
#: state of a static group, locks of queues, and pops, which a follower sends once, before its first
#: acknowledgement.
OFFSETS, STATE, LOCKS, POP = "OFFSETS", "STATE", "LOCKS", "POP"


class ReplicationEvents(Protocol):
    """The broker, as replication sees it."""

    def confirm_moved(self) -> None:
        """`confirm` moved. After `appended` it is called in the next turn of the loop."""

    def data_arrived(self) -> None:
        """Follower: bytes arrived from the leader."""

    def leader_changed(self, alive: bool) -> None:
        """Follower: the leader answers again, or is lost."""

    def stream_began(self) -> None:
        """Follower: a stream begins. The leader resends all state beside the log; such state from
        an earlier leader about bytes that have not arrived is void, because other bytes may arrive
        there."""

    def members_changed(self) -> None:
        """Leader: a follower joined the in-sync set, or left it."""

    def promoted(self, epoch: int) -> None:
        """This replica leads the epoch now. Everything is flushed and the epoch is assigned; `role`
        is LEADER. The first record to append is EPOCH_START, once there is disk space for it."""

    def stepped_down(self, reason: str) -> None:
        """This replica stopped leading: waiting sends get an unknown result. Nothing may be
        appended after the call."""

    def reopen(self, reason: str) -> None:
        """`<store>/ha/pending` holds a plan: close the broker, run the plan, start again."""

    def role_changed(self) -> None:
        """The role or the known leader changed: update registration, routes and forwarding."""

    def disk_failed(self, reason: str) -> None:
        """The disk failed and the replica is marked suspect: end the process."""

    def draining(self, begins: bool) -> None:
        """A drain before a planned step-down starts (refuse writes) or was abandoned (accept writes
        again)."""

    def state_beside(self, kind: str) -> bytes | None:
        """Return state of this kind to send; None: there is none.

        Called five times a second for most kinds: the same object until the state changes.
        """

    def state_arrived(self, kind: str, payload: bytes) -> None:
        """Merge the state of another replica; consumer offsets each by maximum. A kind of a later
        version of the protocol is empty: the log alone is complete."""

    def disk_use(self) -> int:
        """Return the used part of the disk in percent; -1: unknown."""


class ReplicaServices(Protocol):
    """What a replica serves to operators and other replicas once its broker is open."""

    def archived_tails(self) -> list[v1.ArchivedTail]:
        """Return the archived tails, for Status."""

    async def replay_tail(self, request: v1.ReplayTailRequest) -> v1.ControlResponse:
        """Send the messages of archived tails again."""

    def get_digests(self, request: v1.DigestsRequest) -> AsyncIterator[v1.BlockDigest]:
        """Yield checksums of blocks."""

    def read_range(self, request: v1.ReadRangeRequest) -> AsyncIterator[v1.LogBytes]:
        """Yield bytes of the log."""

    async def read_places(self, request: v1.ReadPlacesRequest) -> v1.ReadPlacesResponse:
        """Return bytes of the log at several places."""
