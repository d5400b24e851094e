"""Task of the source: reads its part as Arrow batches. Runs in executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from ..decode import Decoder, decode
from ..errors import DataLossError
from ..splits import Split
from .log import PullSplit, WireSplit
from .loss import report_loss
from .options import SourceOptions
from .planning import PlannedTask

if TYPE_CHECKING:
    import pyarrow as pa


class LogPartition(InputPartition):
    """A planned task, pickled by Spark."""

    def __init__(self, planned: PlannedTask) -> None:
        super().__init__(0)
        self.planned = planned


def read(options: SourceOptions, part: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part; none for the partition that Spark creates for an empty plan."""
    if not isinstance(part, LogPartition):
        return iter(())
    return _rows(options, part.planned)


def _rows(options: SourceOptions, planned: PlannedTask) -> Iterator[pa.RecordBatch]:
    try:
        yield from _of_split(options, planned)
    except DataLossError as error:
        report_loss(str(error), fail_on_loss=options.fail_on_loss)


def _of_split(options: SourceOptions, planned: PlannedTask) -> Iterator[pa.RecordBatch]:
    split = planned.split
    chosen = options.topics
    if planned.ranges is not None:
        chosen = replace(chosen, ranges=planned.ranges)
    settings = {
        "properties": options.properties,
        "decompress": options.decompress,
        "verify_crc": options.verify_crc,
        "on_corrupt": options.on_corrupt,
        "topics": chosen,
        "batch_rows": options.batch_rows,
        "batch_bytes": options.batch_bytes,
    }
    if isinstance(split, Split):
        yield from decode(split, options.columns, **settings)  # type: ignore[arg-type]
        return
    assert options.access is not None
    from .pulled import pulled_rows
    from .wire import frames

    if isinstance(split, PullSplit):
        yield from pulled_rows(options, split)
        return
    assert isinstance(split, WireSplit)
    decoder = Decoder(options.columns, split.broker, **settings)  # type: ignore[arg-type]
    for data, begin, end in frames(options.access, split, fail_on_loss=options.fail_on_loss):
        yield from decoder.range(data, begin, begin, end, f"ReadLog of {split.broker}")
