"""A listener of replication whose reactions a test sets as it goes."""

from collections.abc import Callable
from typing import Any


def _ignore(*_: Any) -> None:
    pass


class Told:
    """See `ReplicationEvents`."""

    def __init__(self) -> None:
        self.confirm_moved: Callable[[], None] = _ignore
        self.data_arrived: Callable[[], None] = _ignore
        self.leader_changed: Callable[[bool], None] = _ignore
        self.stream_began: Callable[[], None] = _ignore
        self.members_changed: Callable[[], None] = _ignore
        self.promoted: Callable[[int], None] = _ignore
        self.stepped_down: Callable[[str], None] = _ignore
        self.reopen: Callable[[str], None] = _ignore
        self.role_changed: Callable[[], None] = _ignore
        self.disk_failed: Callable[[str], None] = _ignore
        self.draining: Callable[[bool], None] = _ignore
        self.disk_use: Callable[[], int] = lambda: -1
        #: State beside the log by kind: what to send, and what takes it.
        self.states: dict[str, Callable[[], bytes | None]] = {}
        self.takers: dict[str, Callable[[bytes], None]] = {}

    def state_beside(self, kind: str) -> bytes | None:
        return self.states[kind]() if kind in self.states else None

    def state_arrived(self, kind: str, payload: bytes) -> None:
        if kind in self.takers:
            self.takers[kind](payload)
