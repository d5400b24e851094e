"""In which order one pop looks at a group's queues. Pure.

The topic's queues come in turn, one further at each pop; a retry topic comes first in a part of the
pops and last in the others, so that it is always read unless the batch is full (broker semantics, section
1.4). A topic with priorities is read from the most urgent queue down, in the part of the pops that the
group's attribute `priority.factor` names (section 6.4). Parts are spread evenly instead of drawn.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..delivery import Key
from ..retry import NORMAL

_PER_CENT = 100
_FACTOR = "priority.factor"


def falls_in(turn: int, percent: int) -> bool:
    """Whether this turn is one of so many of a hundred."""
    return (turn + 1) * percent // _PER_CENT > turn * percent // _PER_CENT


def in_turn(queues: int, turn: int) -> list[Key]:
    """The topic's queues, each time another one first."""
    first = turn % queues
    return [(NORMAL, queue_id % queues) for queue_id in range(first, first + queues)]


def by_priority(queues: int, ascending: bool) -> list[Key]:
    """The topic's queues, the most urgent first; `ascending`: larger numbers are more urgent."""
    ids = range(queues - 1, -1, -1) if ascending else range(queues)
    return [(NORMAL, queue_id) for queue_id in ids]


def priority_factor(attributes: Mapping[str, str]) -> int:
    """Per cent of a group's pops that honour priorities."""
    text = attributes.get(_FACTOR, "")
    return min(int(text), _PER_CENT) if text.isdecimal() else _PER_CENT


def with_retries(main: list[Key], retries: list[Key], turn: int, percent: int) -> list[Key]:
    """The retry queues before the others in so many turns of a hundred, behind them else."""
    if not retries:
        return main
    return [*retries, *main] if falls_in(turn, percent) else [*main, *retries]
