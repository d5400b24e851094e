"""Independent checker of the drills: compares acknowledgements with logs and deliveries.

Lost: acknowledged, not found. Phantom: found, never sent. Duplicated: found more than once (a send
with an unknown outcome was repeated, which at-least-once delivery allows). Moved: found at another
offset than the acknowledged one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cometmq.drills.logwalk import Found

from ..harness.journal import Promises


@dataclass(slots=True)
class Verdict:
    """The result of a comparison."""

    acknowledged: int = 0
    unknown: int = 0
    found: int = 0
    lost: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Return whether nothing was lost, invented or moved."""
        return not (self.lost or self.phantom or self.moved)

    def __str__(self) -> str:
        return (
            f"acknowledged {self.acknowledged}, unknown and sent again {self.unknown}, "
            f"found {self.found}, lost {len(self.lost)}, phantom {len(self.phantom)}, "
            f"duplicated {len(self.duplicated)}, moved {len(self.moved)}"
        )


def check_log(promises: Promises, records: Iterable[Found], topic: str) -> Verdict:
    """Compare with the records of a commit log."""
    places: dict[str, set[int]] = {}
    counts: Counter[str] = Counter()
    for record in records:
        if record.topic == topic:
            identity = record.properties.get("UNIQ_KEY", "?")
            counts[identity] += 1
            places.setdefault(identity, set()).add(record.queue_offset)
    verdict = check_deliveries(promises, counts)
    for identity, offset in promises.acknowledged.items():
        if identity in places and offset not in places[identity]:
            verdict.moved.append(identity)
    return verdict


def check_deliveries(promises: Promises, counts: Counter[str]) -> Verdict:
    """Compare with the deliveries to consumers, by identity."""
    return Verdict(
        acknowledged=len(promises.acknowledged),
        unknown=len(promises.unknown),
        found=sum(counts.values()),
        lost=[identity for identity in promises.acknowledged if identity not in counts],
        phantom=[identity for identity in counts if identity not in promises.attempted],
        duplicated=[identity for identity, times in counts.items() if times > 1],
    )
