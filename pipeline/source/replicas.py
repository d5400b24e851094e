"""Detects directories of `path` that contain the same log: replicas or copies.

Replicas have the same bytes at the same physical offsets, so reading both would return every
message twice. Logs of two brokers differ within the first record, because records contain their
physical offset, store time, broker address and ids. Therefore the first bytes that both logs have
are compared. Logs without a common range cannot duplicate messages.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Final

from ..errors import OptionError
from ..segments import Segment, segments

#: Bytes compared at the start of the common range: several records, one read per log.
_COMPARED_BYTES: Final = 64 << 10


def refuse_replicas(paths: Sequence[str]) -> None:
    """Raise OptionError for two stores of one log. Raises OSError."""
    logs = [(path, segments(path)) for path in paths]
    for (one, log), (other, other_log) in itertools.combinations(logs, 2):
        if same_log(log, other_log):
            raise OptionError(
                f"{one} and {other} contain the same log (replicas): every message would be read "
                "twice. Name one of them, or set allowReplicas=true."
            )


def same_log(one: Sequence[Segment], other: Sequence[Segment]) -> bool:
    """Whether both logs are equal at the start of their common range."""
    if not one or not other:
        return False
    start = max(one[0].base, other[0].base)
    first, second = _bytes_at(one, start), _bytes_at(other, start)
    # Unwritten bytes are zeros: compare what both replicas have.
    length = min(len(first.rstrip(b"\0")), len(second.rstrip(b"\0")))
    return length > 0 and first[:length] == second[:length]


def _bytes_at(log: Sequence[Segment], position: int) -> bytes:
    for segment in log:
        if segment.base <= position < segment.end:
            try:
                with open(segment.path, "rb", buffering=0) as file:
                    return os.pread(file.fileno(), _COMPARED_BYTES, position - segment.base)
            except FileNotFoundError:
                return b""  # deleted by retention meanwhile
    return b""
