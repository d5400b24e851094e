"""What replication calls in the broker. All are called on the loop and must not wait.

They are attributes that the broker sets before `start`; each default does nothing. A static replica is what
its configuration and its files say from its construction on: no hook tells it. In controller mode it starts as a
follower, and every change of role comes through `on_promote` and `on_step_down`.
"""

from collections.abc import Callable
from typing import Any


class Hooks:
    def __init__(self) -> None:
        #: `confirm` moved. After `appended` it comes in the next turn of the loop.
        self.on_confirm: Callable[[], None] = _nothing
        #: Follower: bytes arrived from the leader.
        self.on_data: Callable[[], None] = _nothing
        #: Follower: the leader was heard again (True) or was lost (False).
        self.on_leader_change: Callable[[bool], None] = _no_change
        #: Follower: a stream begins. Its leader says everything beside the log anew; what an earlier one said of
        #: bytes that have not come is void, because others may come in their place.
        self.on_stream: Callable[[], None] = _nothing
        #: Leader: a follower joined the in-sync set.
        self.on_member_joined: Callable[[], None] = _nothing
        #: All consumer offsets of this broker as one payload; it should be the same object until one
        #: moves, because it is asked for five times a second. None: there are none to send.
        self.offsets_snapshot: Callable[[], bytes] | None = None
        #: Take over consumer offsets of another replica, each by maximum.
        self.offsets_apply: Callable[[bytes], None] = _no_payload
        #: Other state beside the log, by kind ("TIMER", "LOCKS", "POP": names of the wire's enumeration). A
        #: snapshot that is asked for five times a second returns the same object until something moved, or None:
        #: there is nothing. A leader sends every kind; a follower sends its POP once, before its first
        #: acknowledgement.
        self.meta_snapshot: dict[str, Callable[[], bytes | None]] = {}
        self.meta_apply: dict[str, Callable[[bytes], None]] = {}

        # --- roles --------------------------------------------------------------------------------

        #: We lead the epoch from now on: do everything that a leader does. Everything is flushed and the epoch
        #: is assigned; `role` is LEADER. The first record to append is EPOCH_START.
        self.on_promote: Callable[[int], None] = _no_epoch
        #: We lead no more, for this reason: whoever waits is answered "unknown". Nothing may be appended
        #: after it returned.
        self.on_step_down: Callable[[str], None] = _no_text
        #: `<store>/ha/pending` holds a plan: close the node, run the plan, start again.
        self.on_reopen: Callable[[str], None] = _no_text
        #: The role or the leader that is known changed: registration, routes, who forwards.
        self.on_role_change: Callable[[], None] = _nothing
        #: The disk failed, the replica is marked suspect: end the process.
        self.fatal: Callable[[str], None] = _no_text
        #: Offset up to which records are in their queues, for statistics.
        self.dispatched_end: Callable[[], int] = _zero
        #: Used part of the disk in percent; -1: unknown.
        self.disk_use: Callable[[], int] = _unknown
        #: Wait until the followers have everything, at most so many seconds, while no new writes come: before a
        #: planned step-down. Called with True to stop taking writes, False to take them again.
        self.on_drain: Callable[[bool], None] = _no_change

        # --- control (STORE's functions, set by the broker) ----------------------------------------

        #: (request, is_dry_run) of an operator; each returns a v1.ControlResponse.
        self.replay_tail: Callable[[Any], Any] | None = None
        #: Archived tails, as v1.ArchivedTail, for Status.
        self.archived_tails: Callable[[], list[Any]] = _none
        #: async iterators of v1.BlockDigest and v1.LogBytes for a v1.DigestsRequest and v1.ReadRangeRequest
        self.get_digests: Callable[[Any], Any] | None = None
        self.read_range: Callable[[Any], Any] | None = None
        #: a coroutine of a v1.ReadPlacesResponse for a v1.ReadPlacesRequest
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
