"""Position file `<store>/ha/positions`: confirm offset and answered end. Losing it costs no data.

    confirm    everything below is on every member of the in-sync set. Without it a follower that
               restarts while its leader is down cannot tell what may be read, and a cut below it
               would go unnoticed (I7)
    local_ok   no answer OK of this replica was for a byte above it: shows which messages of an
               archived tail were answered (docs/formats/ha.md, R7)

Written without fsync, at most every 100 ms: a stale value is only smaller. `answered` is the
`local_ok` of an asynchronous leader in shared memory (the value and its complement): it moves with
every turn of appends without a system call, so that it is exact after a killed process. After a
power loss the log may be shorter than the file states; every user takes the minimum with its own
log end.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final

from ...store.format.layout import POSITIONS_FILE
from ...store.log.write_gate import suppress_no_space
from ..errors import DamagedStateError
from .slots import SlotFile

POSITIONS_NAME: Final = POSITIONS_FILE
ANSWERED_NAME: Final = "answered"
_ANSWERED: Final = struct.Struct("<QQ")
_ALL_BITS: Final = (1 << 64) - 1


class Positions:
    def __init__(self, directory: Path) -> None:
        self._slots = SlotFile(directory / POSITIONS_NAME, durable=False)
        self.confirm = self.local_ok = 0
        self._answered = _map(directory / ANSWERED_NAME)
        self._load()
        answered, complement = _ANSWERED.unpack_from(self._answered)
        if answered ^ complement == _ALL_BITS:
            self.save(self.confirm, answered)

    def _load(self) -> None:
        try:
            state = self._slots.load()
        except DamagedStateError:
            return  # without fsync a power loss may tear both slots; then both are unknown
        if state:
            self.confirm = int(state["confirm"])
            self.local_ok = int(state.get("local_ok", 0))

    def note_answered(self, end: int) -> None:
        """Note that answers OK are about to be sent for everything below `end`."""
        if not self._answered.closed:
            _ANSWERED.pack_into(self._answered, 0, end, end ^ _ALL_BITS)

    def save(self, confirm: int, local_ok: int = 0) -> None:
        """Save both; nothing is written when neither moved."""
        local_ok = max(local_ok, self.local_ok)
        if confirm != self.confirm or local_ok != self.local_ok:
            # A full disk keeps the smaller value; the next call retries.
            with suppress_no_space():
                self._slots.save({"confirm": confirm, "local_ok": local_ok})
                self.confirm, self.local_ok = confirm, local_ok
                noted = 0 if self._answered.closed else _ANSWERED.unpack_from(self._answered)[0]
                if 0 < noted <= local_ok:
                    _ANSWERED.pack_into(self._answered, 0, 0, 0)  # a cut may lower the saved value

    def close(self) -> None:
        """Close the files. An unsaved `answered` stays in shared memory for the next start."""
        self._slots.close()
        if not self._answered.closed:
            self._answered.close()


def _map(path: Path) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(descriptor).st_size < _ANSWERED.size:
            # no hole in the file: a store to a mapped page must not fault on a full disk
            os.pwrite(descriptor, bytes(_ANSWERED.size), 0)
        return mmap.mmap(descriptor, _ANSWERED.size)
    finally:
        os.close(descriptor)
