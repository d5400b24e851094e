"""Queue order of a pop. Pure.

The topic's queues rotate, one further with each pop; a retry topic comes first in a share of the
pops and last in the others, so that it is always read unless the batch is full
(docs/formats/broker-semantics.md, section 1.4). A topic with priorities is read from the most
urgent queue down, in the share of pops set by the group attribute `priority.factor` (section 6.4).
Shares are distributed evenly instead of randomly.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...names.delivery import Key
from ...names.retry import NORMAL

_PER_CENT = 100
_FACTOR = "priority.factor"


def falls_in(turn: int, percent: int) -> bool:
    """Return whether this turn belongs to a share of `percent` of 100 turns."""
    return (turn + 1) * percent // _PER_CENT > turn * percent // _PER_CENT


def in_turn(queues: int, turn: int) -> list[Key]:
    """Return the topic's queues, starting with another one each turn."""
    first = turn % queues
    return [(NORMAL, queue_id % queues) for queue_id in range(first, first + queues)]


def by_priority(queues: int, ascending: bool) -> list[Key]:
    """Return the topic's queues, the most urgent first; `ascending`: larger numbers are more
    urgent.
    """
    ids = range(queues - 1, -1, -1) if ascending else range(queues)
    return [(NORMAL, queue_id) for queue_id in ids]


def priority_factor(attributes: Mapping[str, str]) -> int:
    """Return the percentage of a group's pops that honour priorities."""
    text = attributes.get(_FACTOR, "")
    return min(int(text), _PER_CENT) if text.isdecimal() else _PER_CENT


def with_retries(main: list[Key], retries: list[Key], turn: int, percent: int) -> list[Key]:
    """Return the retry queues before the others in a share of the turns, else after them."""
    if not retries:
        return main
    return [*retries, *main] if falls_in(turn, percent) else [*main, *retries]
