"""Streaming reader for Spark 4.0 and 4.1, which ask for the end of a batch without its start.

The reader knows the start from the batch before. When a query starts it does not until Spark plans
the first batch: that one has no limit, and the checkpoint is compared with the logs when its tasks
are planned. Trigger.AvailableNow is this one batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .offsets import LOST
from .stream import LogStreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from .options import SourceOptions


class StreamReaderWithoutStart(LogStreamReader):
    """`LogStreamReader` with the calls of Spark 4.0 and 4.1."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._at: dict[str, Any] | None = None  # where the next batch begins, once known

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """Called by Spark: return the end of the next micro-batch. Raises DataLossError."""
        if self._at is not None:
            return super().latestOffset(self._at, self.getDefaultReadLimit())
        logs = self._log().snapshot()
        end = self._checkpoint(self._ends(logs, {}), self._marks(logs))
        return replace(end, is_compared=False).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Called by Spark: the tasks of one micro-batch. Raises DataLossError."""
        found = super().partitions(start, end)
        before = int(start.get(LOST, 0))
        # The end of a batch planned late does not have the losses of its checkpoint.
        self._at = end if LOST in end or not before else {**end, LOST: before}
        return found
