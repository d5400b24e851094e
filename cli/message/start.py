"""Start position of `message tail`: an edge of each queue, a time or an offset."""

from dataclasses import dataclass

from ...proto import v2
from ..times import present_ms, time_ms, time_text

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
    at_ms = time_ms(text, present_ms())
    return Start(time_text(at_ms, "seconds"), policy=v2.TIMESTAMP, at_ms=at_ms)
