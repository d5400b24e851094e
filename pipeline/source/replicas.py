"""Two directories of `path` that hold one log: a leader's and a follower's, or a copy.

Replicas have the same bytes at the same offsets, so every message came twice, once for each directory.
Records carry their own place and time, their broker's address and unique ids: logs of two brokers differ
within the first record. So what both have first is compared, whatever the folders are called; logs
without a common range give no message twice. (pipeline note, section 4.4; HA note, section 6)
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Final

from ..errors import OptionError
from ..segments import Segment, segments

#: Of the first bytes that both logs have; several records, and one read each.
_COMPARED_BYTES: Final = 64 << 10


def refuse_replicas(paths: Sequence[str]) -> None:
    """Raises OptionError for two stores of one log, OSError."""
    logs = [(path, segments(path)) for path in paths]
    for (one, log), (other, other_log) in itertools.combinations(logs, 2):
        if same_log(log, other_log):
            raise OptionError(
                f"{one} and {other} hold the same log, as a leader and its follower do: every message would "
                "come twice. Name one of them, or set allowReplicas=true."
            )


def same_log(one: Sequence[Segment], other: Sequence[Segment]) -> bool:
    """Whether both begin equal where both have something."""
    if not one or not other:
        return False
    start = max(one[0].base, other[0].base)
    first, second = _bytes_at(one, start), _bytes_at(other, start)
    # What is not written yet is zeros; the replica that has less decides.
    length = min(len(first.rstrip(b"\0")), len(second.rstrip(b"\0")))
    return length > 0 and first[:length] == second[:length]


def _bytes_at(log: Sequence[Segment], place: int) -> bytes:
    for segment in log:
        if segment.base <= place < segment.end:
            try:
                with open(segment.path, "rb", buffering=0) as file:
                    return os.pread(file.fileno(), _COMPARED_BYTES, place - segment.base)
            except FileNotFoundError:
                return b""  # retention took it a moment ago
    return b""
