"""The last minutes of some figures, for curves. Pure, in memory; lost with the process."""

from collections import deque
from collections.abc import Sequence

from ..proto import v1

#: Points kept: an hour without a viewer (one each 5 s), 12 minutes with one (each second).
POINTS_MAX = 720
#: Curves of one group: more replicas than a person can tell apart.
REPLICAS_MAX = 8


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
