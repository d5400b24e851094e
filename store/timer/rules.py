"""Timer rules: what a message's properties request and which slot its timer gets. Pure.

Rules of docs/formats/store-format.md, sections 11.2 and 11.4, and of
docs/formats/broker-semantics.md, section 6.2:

    DELAY > 0                      a level: TIMER_DELAY_SEC, _MS and TIMER_DELIVER_MS are dropped
    first of TIMER_DELAY_SEC (seconds from now), TIMER_DELAY_MS, TIMER_DELIVER_MS (absolute)
    not a number                   illegal
    timerWheelEnable=false         not enabled
    due already                    an ordinary message; a cancellation is illegal
    beyond timerMaxDelaySec        illegal
    otherwise                      rounded down to the precision, a whole second to the one before:
                                   a slot is read after its time has passed, never early
    slot above timerCongestNum...  refused, always from twice the number on, between at random

`requested` is called once, before a message is stored. `slot_for` is called when the stored message
is enqueued: it is due (delivered at once), or waits in a slot; times beyond the roll window wait in
a nearer slot first and are enqueued again from there.
"""

import enum
from collections.abc import Container, Mapping
from typing import Final

from msgspec import Struct

from ..config.store_config import StoreConfig
from ..format.properties import DELAY

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMER_QUEUE: Final = 0
DELAY_SEC: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
OUT_MS: Final = "TIMER_OUT_MS"
DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
UNIQUE_KEY: Final = "UNIQ_KEY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"
#: The request properties, in order of precedence.
REQUESTED: Final = (DELAY_SEC, DELAY_MS, DELIVER_MS)
_KEY_SEPARATOR: Final = "+"
#: No property value can contain it.
_MARK_SEPARATOR: Final = "\x01"
#: Marks of cancellations.
ANY_MARK: Final = 0
NO_MARK: Final = -1


class Verdict(enum.Enum):
    """What happens to a message; refusals have RocketMQ's names."""

    ORDINARY = "ORDINARY"  #: no delay is requested, or its time has passed
    LEVEL = "LEVEL"  #: goes to the schedule topic
    TIMER = "TIMER"  #: goes to the timer topic with TIMER_OUT_MS
    ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    NOT_ENABLED = "WHEEL_TIMER_NOT_ENABLE"
    CONGESTED = "WHEEL_TIMER_FLOW_CONTROL"


class Request(Struct, frozen=True):
    """The verdict; `out_ms` for TIMER, a sentence for refusals."""

    verdict: Verdict
    out_ms: int = 0
    reason: str = ""


def requested(properties: Mapping[str, str], now_ms: int, config: StoreConfig) -> Request:
    """Return the request of a message that is not a half message."""
    if (_number(properties.get(DELAY, "")) or 0) > 0:
        return Request(Verdict.LEVEL)
    name = next((each for each in REQUESTED if properties.get(each)), "")
    if not name:
        return Request(Verdict.ORDINARY)
    value = _number(properties[name])
    if value is None:
        return Request(Verdict.ILLEGAL, reason=f"{name} is not a number")
    if not config.timer_wheel_enable:
        return Request(Verdict.NOT_ENABLED, reason="timerWheelEnable is false")
    deliver_ms = {DELAY_SEC: now_ms + 1000 * value, DELAY_MS: now_ms + value}.get(name, value)
    if deliver_ms <= now_ms:
        if DELETE_KEY in properties:
            return Request(Verdict.ILLEGAL, reason="what it cancels is due already")
        return Request(Verdict.ORDINARY)
    if deliver_ms - now_ms > 1000 * config.timer_max_delay_sec:
        reason = f"its time is more than {config.timer_max_delay_sec} s away (timerMaxDelaySec)"
        return Request(Verdict.ILLEGAL, reason=reason)
    return Request(Verdict.TIMER, rounded(deliver_ms, config.timer_precision_ms))


def _number(text: str) -> int | None:
    """Parse a number as Java does: no blanks, no underscores."""
    digits = text.removeprefix("-").removeprefix("+") if text[:2] not in ("-+", "+-") else ""
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        return None
    return int(text)


def rounded(deliver_ms: int, precision_ms: int) -> int:
    """Return TIMER_OUT_MS: the slot before the delivery time; exact multiples go one slot back."""
    return deliver_ms - (deliver_ms % precision_ms or precision_ms)


def congested(num: int, limit: int, chance: float) -> bool:
    """Return whether a slot with `num` units is full; `chance` is a random number in [0, 1)."""
    if num <= limit:
        return False
    return num >= 2 * limit or chance < (num - limit) / limit


class TimerSlot(Struct, frozen=True):
    """The slot of a stored message."""

    slot_ms: int
    rolled: bool


def slot_for(out_ms: int, write_ms: int, config: StoreConfig) -> TimerSlot | None:
    """Return the slot for a message due at `out_ms`, enqueued at `write_ms`; None if it is due."""
    if out_ms < write_ms:
        return None
    window_ms = _window_ms(config)
    excess_ms = out_ms - write_ms - window_ms
    if excess_ms < 0:
        return TimerSlot(out_ms, rolled=False)
    # The rest is never short: a roll just before the time would be enqueued again at once.
    step_ms = window_ms // 2 if excess_ms < window_ms // 3 else window_ms
    return TimerSlot(write_ms + step_ms, rolled=True)


def _window_ms(config: StoreConfig) -> int:
    """Return how long a message waits at most before it is enqueued again: retention must not
    delete its record meanwhile, so three quarters of what it leaves are the limit."""
    window_ms = config.timer_roll_window_slot * config.timer_precision_ms
    return min(window_ms, config.waiting_kept_ms * 3 // 4)


def delete_key(unique_key: str, real_topic: str = "") -> str:
    """Return TIMER_DEL_UNIQKEY: 5.5 writes the bare key; earlier versions (and
    appendTopicForTimerDeleteKey) put the topic in front."""
    return f"{real_topic}{_KEY_SEPARATOR}{unique_key}" if real_topic else unique_key


def recall_key(unique_key: str, mark: int) -> str:
    """Return what names a waiting message within its topic: its key, and the mark in its record's
    prepared transaction offset (0 in Apache's records)."""
    return f"{unique_key}{_MARK_SEPARATOR}{mark:x}" if mark > 0 else unique_key


def cancellation(key: str, real_topic: str, mark: int) -> str:
    """Return what a cancellation names, for `is_cancelled`: the message of its topic with this
    mark, with ANY_MARK every one with the key (Apache's), with NO_MARK those without a mark. It
    names messages of its own topic only.

    `key` is TIMER_DEL_UNIQKEY in either form, `mark` the record's prepared transaction offset.
    """
    if not real_topic:
        return key
    name = delete_key(key.removeprefix(f"{real_topic}{_KEY_SEPARATOR}"), real_topic)
    if mark == ANY_MARK:
        return name
    return f"{name}{_MARK_SEPARATOR}{mark:x}" if mark > 0 else f"{name}{_MARK_SEPARATOR}"


def names_of(key: str, real_topic: str) -> tuple[str, str]:
    """Return the two cancellations that name the message with this `recall_key`: with its mark, and
    without."""
    unique_key, _, mark = key.partition(_MARK_SEPARATOR)
    name = delete_key(unique_key, real_topic)
    return f"{name}{_MARK_SEPARATOR}{mark}", name


def is_cancelled(names: Container[str], key: str, real_topic: str) -> bool:
    """Return whether a cancellation in the same slot names the message with this `recall_key`."""
    return any(name in names for name in names_of(key, real_topic))
