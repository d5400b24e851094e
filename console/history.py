"""The last minutes of some figures, for curves. Pure, in memory; lost with the process."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import pairwise

from ..proto import v1

#: Points kept: an hour without a viewer (one each 5 s), 12 minutes with one (each second).
POINTS_MAX = 720
#: Curves of one group: more replicas than a person can tell apart.
REPLICAS_MAX = 8
#: Objects of which the rates are kept; those whose pages were asked for least recently go first.
OBJECTS_MAX = 64
# Several browsers may show an object: a rate needs some time between two counts.
_STEP_MS = 1_000


class History:
    """Columns of figures over time."""

    def __init__(self, columns: int) -> None:
        self._points: deque[tuple[float, ...]] = deque(maxlen=POINTS_MAX)
        self._columns = columns

    def add(self, at_ms: int, values: Sequence[float | None]) -> None:
        """Add a point; None is a gap in the curve."""
        assert len(values) == self._columns
        self._points.append((at_ms / 1_000, *values))  # type: ignore[arg-type]

    def columns(self) -> list[list[float]]:
        """Return the times in seconds, then the column of each figure."""
        if not self._points:
            return [[] for _ in range(self._columns + 1)]
        return [list(column) for column in zip(*self._points, strict=True)]

    def last(self) -> list[float]:
        """Return the newest point; [] without one."""
        return list(self._points[-1]) if self._points else []


class ReplicaHistory:
    """The positions of the replicas of one broker group over time, as its leader reports them.

    The columns are the time in seconds, the confirm offset, the number of in-sync replicas, the
    epoch, and the log end of each replica by broker id. None: unknown at that time.
    """

    def __init__(self) -> None:
        self.broker_ids: list[int] = []
        self._points: deque[tuple[tuple[float | None, ...], dict[int, int]]] = deque(
            maxlen=POINTS_MAX
        )

    def add(self, at_ms: int, members: Sequence[v1.MemberStatus] | None) -> None:
        """Add a point; None if the group does not answer."""
        known = [one for one in members or () if one.log_end]
        ends = {int(one.replica.broker_id): int(one.log_end) for one in known}
        self.broker_ids = sorted({*self.broker_ids, *ends})[-REPLICAS_MAX:]
        confirm = max((int(one.confirm) for one in known), default=None)
        in_sync = sum(one.in_sync for one in members) if members else None
        epoch = max((int(one.epoch) for one in known), default=None)
        self._points.append(((at_ms / 1_000, confirm, in_sync, epoch), ends))

    def columns(self) -> list[list[float | None]]:
        """Return the columns."""
        rows = [self._row(*each) for each in self._points]
        if not rows:
            return [[] for _ in range(4 + len(self.broker_ids))]
        return [list(column) for column in zip(*rows, strict=True)]

    def last(self) -> list[float | None]:
        """Return the newest point; [] without one."""
        return self._row(*self._points[-1]) if self._points else []

    def _row(self, figures: tuple[float | None, ...], ends: dict[int, int]) -> list[float | None]:
        return [*figures, *(ends.get(broker_id) for broker_id in self.broker_ids)]


class Rates:
    """Messages per second of the objects whose pages are open, from the counts that they show."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, deque[tuple[int, tuple[int, ...]]]] = OrderedDict()

    def add(self, name: str, at_ms: int, *counts: int) -> list[list[float | None]]:
        """Add the counts of an object and return the columns of its curve: the time in seconds,
        and the rate of each count since the point before. A count that went back is a gap."""
        points = self._counts.setdefault(name, deque(maxlen=POINTS_MAX))
        self._counts.move_to_end(name)
        if len(self._counts) > OBJECTS_MAX:
            self._counts.popitem(last=False)
        if not points or at_ms - points[-1][0] >= _STEP_MS:
            points.append((at_ms, counts))
        known = list(points)
        columns: list[list[float | None]] = [[at / 1_000 for at, _ in known[1:]]]
        for column in range(len(counts)):
            columns.append(
                [
                    round((after[column] - before[column]) * 1_000 / (at - since), 2)
                    if after[column] >= before[column]
                    else None
                    for (since, before), (at, after) in pairwise(known)
                ]
            )
        return columns
