"""Light queues (LMQ) of many records: units of a record in queues other than its own.

The columnar version of `lmq_queues.lmq_units`. Few records have such units, so those are found in
columns and processed one by one (docs/formats/store-format.md, section 3.9).
"""

from collections.abc import Iterator

import numpy as np

from ..format.lmq_queues import NUMBERS, lmq_units
from .columns import Columns, TopicTable
from .properties import value_spans
from .raw import RawBytes


def lmq_rows(raw: RawBytes, columns: Columns, topics: TopicTable) -> Iterator[tuple[int, str, int]]:
    """Yield row, light queue and unit number for every additional unit of these records."""
    starts, lengths = columns.properties_start, columns.properties_length
    _, found = value_spans(raw, starts, lengths, NUMBERS)
    for row in np.flatnonzero(found).tolist():
        text = raw.bytes_at(int(starts[row]), int(lengths[row]))
        for name, number in lmq_units(topics.names[int(columns.topic_id[row])], text):
            yield row, name, number
