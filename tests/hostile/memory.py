"""Memory of a process under attack, from /proc."""

from __future__ import annotations

import re
from pathlib import Path


class Memory:
    """The figures of one process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def reset_peak(self) -> None:
        """Begin a period for `peak_mib`."""
        (self._folder / "clear_refs").write_text("5")

    def peak_mib(self) -> float:
        """Return the largest resident size of the period."""
        return self._status_kib("VmHWM") / 1024

    def own_mib(self) -> float:
        """Return the resident memory that belongs to no file."""
        return self._status_kib("RssAnon") / 1024

    def _status_kib(self, name: str) -> int:
        text = (self._folder / "status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
        assert found is not None
        return int(found[1])
