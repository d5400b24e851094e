"""`<store>/ha/positions`: how far the confirm offset had come. A hint: its loss costs no data.

Without it a follower that restarts while its leader is down could not tell what is confirmed and would
show nothing, and so would a leader whose minInSyncReplicas is not met. It is written without fsync, at
most once a second: what it names was confirmed before, so a stale value is merely a smaller one. After
a power loss the log may be shorter than it says; every user takes the minimum with its own end.
"""

from pathlib import Path

from ..store.write_gate import suppress_no_space
from .errors import DamagedStateError
from .slots import SlotFile

POSITIONS_NAME = "positions"


class Positions:
    def __init__(self, directory: Path) -> None:
        self._slots = SlotFile(directory / POSITIONS_NAME, durable=False)
        self.confirm = self._load()

    def _load(self) -> int:
        try:
            state = self._slots.load()
        except DamagedStateError:
            return 0  # without fsync a power loss may tear both slots; nothing is known then
        return int(state["confirm"]) if state else 0

    def save(self, confirm: int) -> None:
        """Remember `confirm`; nothing is written when it did not move."""
        if confirm != self.confirm:
            # A full disk keeps the smaller value; the next call tries again.
            with suppress_no_space():
                self._slots.save({"confirm": confirm})
                self.confirm = confirm

    def close(self) -> None:
        self._slots.close()
