"""What replication calls in the broker. All are called on the loop and must not wait.

They are attributes that the broker sets before `start`; each default does nothing.
"""

from collections.abc import Callable


class Hooks:
    def __init__(self) -> None:
        #: `confirm` moved. After `appended` it comes in the next turn of the loop.
        self.on_confirm: Callable[[], None] = _nothing
        #: Follower: bytes arrived from the leader.
        self.on_data: Callable[[], None] = _nothing
        #: Follower: the leader was heard again (True) or was lost (False).
        self.on_leader_change: Callable[[bool], None] = _no_change
        #: Leader: a follower joined the in-sync set.
        self.on_member_joined: Callable[[], None] = _nothing
        #: All consumer offsets of this broker as one payload; it should be the same object until one
        #: moves, because it is asked for five times a second. None: there are none to send.
        self.offsets_snapshot: Callable[[], bytes] | None = None
        #: Take over consumer offsets of another replica, each by maximum.
        self.offsets_apply: Callable[[bytes], None] = _no_offsets


def _nothing() -> None:
    pass


def _no_change(alive: bool) -> None:
    pass


def _no_offsets(payload: bytes) -> None:
    pass
