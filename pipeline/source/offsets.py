"""Offsets of queues as JSON: `{broker: {topic: {queue: next offset}}}`, ends are exclusive.

The broker's level may be omitted if there is one broker. In options -1 means latest and -2
earliest. A stream's checkpoint also has names that begin with `$`:

    $plan    split size of the batch, so that one repeated after a restart has the same tasks
    $log     each broker's last record when the batch was planned (`marks.py`)
    $begin   queues whose batch does not begin at the former checkpoint, and where it begins
    $lost    messages of the query that no longer existed when it came to them
    $late    the batch was planned without its start: the logs are compared with that when it runs

Checkpoints of older versions have only `$plan`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..errors import OptionError
from .marks import Mark

#: Broker, topic, queue id.
Queue = tuple[str, str, int]
Offsets = dict[Queue, int]
LATEST: Final = -1
EARLIEST: Final = -2
PLAN: Final = "$plan"
_SPLIT_BYTES: Final = "splitBytes"
_LOG: Final = "$log"
_BEGIN: Final = "$begin"
LOST: Final = "$lost"
_LATE: Final = "$late"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Start or end of a read for every queue. The broker "" stands for the only broker."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    offsets: Mapping[Queue, int] = field(default_factory=dict)  # offsets, or times in ms
    time_ms: int = 0
    strict: bool = False  # raise for a queue without a message at or after the time

    def of(self, queue: Queue) -> int | None:
        """Return the offset or time of a queue; None if it is not named."""
        _, topic, queue_id = queue
        found = self.offsets.get(queue)
        return found if found is not None else self.offsets.get(("", topic, queue_id))


def parse_offset_spec(name: str, text: str, *, allow_earliest: bool) -> OffsetSpec:
    """Parse earliest, latest or JSON. Raises OptionError."""
    word = text.lower()
    if word == "latest":
        return OffsetSpec("latest")
    if word == "earliest":
        if allow_earliest:
            return OffsetSpec("earliest")
        raise OptionError(f"{name} cannot be earliest.")
    return OffsetSpec("offsets", offsets=parse_offsets(name, text, special=True))


def parse_offsets(name: str, text: str, *, special: bool) -> dict[Queue, int]:
    """Parse JSON with or without the broker's level. Raises OptionError."""
    example = f'{name} is JSON like {{"broker":{{"topic":{{"0":23}}}}}}'
    try:
        found = dict(_leaves(json.loads(text)))
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"{example}, not {text[:200]!r}.") from None
    least = EARLIEST if special else 0
    for (_, topic, queue_id), value in found.items():
        if value < least or queue_id < 0:
            raise OptionError(f"{name}: invalid offset {value} of queue {queue_id} of {topic}.")
    return found


def _leaves(document: Any) -> list[tuple[Queue, int]]:
    if not isinstance(document, dict):
        raise TypeError
    found: list[tuple[Queue, int]] = []
    for first, inner in document.items():
        if first.startswith("$"):
            continue
        for second, value in inner.items():
            if isinstance(value, dict):
                found += [((first, second, int(q)), _whole(n)) for q, n in value.items()]
            else:
                found.append((("", first, int(second)), _whole(value)))
    return found


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a stream is: the next offset of every queue, and what recognizes the logs."""

    offsets: Offsets
    split_bytes: int = 0  # 0: unknown
    marks: Mapping[str, Mark] = field(default_factory=dict)
    begins: Offsets = field(default_factory=dict)
    lost: int = 0
    is_compared: bool = True  # its batch begins where `begins` and the former one tell

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint in the form that Spark stores."""
        return cls(
            dict(_leaves(document)),
            int(document.get(PLAN, {}).get(_SPLIT_BYTES, 0)),
            {broker: Mark(*mark) for broker, mark in document.get(_LOG, {}).items()},
            dict(_leaves(document.get(_BEGIN, {}))),
            int(document.get(LOST, 0)),
            _LATE not in document,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores."""
        found = to_json(self.offsets)
        found[PLAN] = {_SPLIT_BYTES: self.split_bytes}
        if self.marks:
            found[_LOG] = {broker: list(mark) for broker, mark in sorted(self.marks.items())}
        if self.begins:
            found[_BEGIN] = to_json(self.begins)
        if self.lost:
            found[LOST] = self.lost
        if not self.is_compared:
            found[_LATE] = True
        return found


def to_json(offsets: Mapping[Queue, int]) -> dict[str, Any]:
    """Return the nested form: text keys, sorted."""
    found: dict[str, Any] = {}
    for (broker, topic, queue_id), offset in sorted(offsets.items()):
        found.setdefault(broker, {}).setdefault(topic, {})[str(queue_id)] = offset
    return found
