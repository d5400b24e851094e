"""Attributes of topics and groups: which there are, what they may say, and how a command changes
them.

A change is a list of `+key=value` (set) and `-key` (remove), as Apache's tools write it (broker
semantics, section 8.3; those of groups: sections 6.4 and 12.2). Pure. Promises: an unknown key, a
key named twice, a value that nothing can be done with, the removal of what is not there and the
change of what cannot change are refused, and then nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import whole_number

MESSAGE_TYPE = "message.type"
PRIORITY_FACTOR = "priority.factor"
_EXPIRATION_MAX_MINUTES = 43_200
_COUNT_MAX = 1_000_000
_PERCENT_MAX = 100
# A name is a topic's at most; nothing else is longer.
_VALUE_MAX = 127


class Rule(Struct, frozen=True):
    """One attribute."""

    accepts: Callable[[str], bool]
    #: What it accepts, for the sentence that refuses the rest.
    expected: str
    #: Set when the topic is created, or never.
    fixed: bool = False


def _one_of(*values: str) -> Rule:
    return Rule(lambda text: text in values, " or ".join(values))


def _number(low: int, high: int) -> Rule:
    def accepts(text: str) -> bool:
        digits = text.removeprefix("-")
        # `int` alone would take blanks, underlines and other scripts' digits.
        return whole_number(digits) is not None and low <= int(text) <= high

    return Rule(accepts, f"a number from {low} to {high}")


def _fixed(value: str) -> Rule:
    return Rule(lambda text: text == value, f"{value} (others are not made here)", fixed=True)


_BOOL = _one_of("true", "false")

TOPIC_RULES: Mapping[str, Rule] = {
    MESSAGE_TYPE: _one_of(
        "UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE"
    ),
    "queue.type": _fixed("SimpleCQ"),
    "cleanup.policy": _fixed("DELETE"),
    "reserve.time": _number(-1, (1 << 63) - 1),
    "lite.topic.expiration": _number(-1, _EXPIRATION_MAX_MINUTES),
}

GROUP_RULES: Mapping[str, Rule] = {
    PRIORITY_FACTOR: _number(0, _PERCENT_MAX),
    "lite.bind.topic": Rule(bool, "the name of a topic"),
    "lite.sub.model": _one_of("Shared", "Exclusive"),
    "lite.sub.wildcard": _BOOL,
    "lite.sub.client.quota": Rule(
        lambda text: text == "-1" or _number(1, _COUNT_MAX).accepts(text),
        f"a number from 1 to {_COUNT_MAX}, or -1 for no limit",
    ),
    "lite.sub.client.max.event.cnt": _number(1, _COUNT_MAX),
    "lite.sub.reset.offset.exclusive": _BOOL,
    "lite.sub.reset.offset.unsubscribe": _BOOL,
}


def changed(
    rules: Mapping[str, Rule], known: Mapping[str, str], changes: Iterable[str], *, new: bool
) -> dict[str, str]:
    """The attributes after `changes`. Raises WireError."""
    after = dict(known)
    named: set[str] = set()
    for change in changes:
        key, value = _parse(change)
        rule = rules.get(key)
        if rule is None:
            raise _bad(f"there is no attribute {key!r}; there are {', '.join(sorted(rules))}")
        if key in named:
            raise _bad(f"attribute {key} is named twice")
        named.add(key)
        if rule.fixed and not new and value != after.get(key, value):
            raise _bad(f"attribute {key} cannot be changed")
        if value is None:
            if new or key not in after:
                raise _bad(f"attribute {key} is not set, so it cannot be removed")
            del after[key]
        elif len(value) > _VALUE_MAX or not rule.accepts(value):
            raise _bad(f"attribute {key} is {rule.expected}, not {value!r}")
        else:
            after[key] = value
    return after


def _parse(change: str) -> tuple[str, str | None]:
    """Key and value; no value: remove it."""
    if change.startswith("+") and "=" in change:
        key, _, value = change[1:].partition("=")
        return key.strip(), value.strip()
    if change.startswith("-") and "=" not in change:
        return change[1:].strip(), None
    raise _bad(f"{change!r} is not a change of an attribute: write +KEY=VALUE or -KEY")


def _bad(sentence: str) -> WireError:
    return WireError(v2.BAD_REQUEST, sentence)
