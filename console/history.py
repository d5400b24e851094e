"""The last minutes of some figures, for curves. Pure, in memory; lost with the process."""

from collections import deque
from collections.abc import Sequence

#: Points kept: an hour without a viewer (one each 5 s), 12 minutes with one (each second).
POINTS_MAX = 720


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
