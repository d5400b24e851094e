"""Start position of `message tail`: an edge of each queue, a time or an offset."""

import time
from dataclasses import dataclass
from datetime import datetime

from ...proto import v2
from ..values import time_ms

# An offset of more digits is not reached; times since September 2001 have 13 digits.
_OFFSET_DIGITS_MAX = 12
_EDGES = {"beginning": v2.BEGINNING, "end": v2.END}


@dataclass(frozen=True, slots=True)
class Start:
    """A start position: an offset, or the policy by which the broker finds it."""

    words: str
    offset: int | None = None
    policy: v2.QueryOffsetPolicy.ValueType = v2.END
    #: With the policy TIMESTAMP: milliseconds since 1970.
    at_ms: int = 0


def start_position(text: str) -> Start:
    """Parse `--from`. Raises click.BadParameter."""
    if text in _EDGES:
        return Start(f"the {text}", policy=_EDGES[text])
    if text.isdecimal() and len(text) <= _OFFSET_DIGITS_MAX:
        return Start(f"offset {int(text)}", offset=int(text))
    at_ms = past_ms(text)
    moment = datetime.fromtimestamp(at_ms / 1_000).astimezone()
    return Start(moment.isoformat(" ", "seconds"), policy=v2.TIMESTAMP, at_ms=at_ms)


def past_ms(text: str) -> int:
    """Parse a time to milliseconds since 1970; `-1h` is an hour ago. Raises click.BadParameter."""
    return time_ms(text, now_ms=time.time_ns() // 1_000_000)
