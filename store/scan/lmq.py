"""Light queues (LMQ) of many records at a time: units of a record in queues other than its own.

What `light_queues.lmq_units` says of one record, for columns of the scanner. Few records have any,
so those are found in columns and looked at one by one (store format, section 3.9).
"""

from collections.abc import Iterator

import numpy as np

from ..format.lmq_queues import NUMBERS, lmq_units
from .columns import Columns, TopicTable
from .properties import value_spans
from .raw import RawBytes


def lmq_rows(raw: RawBytes, columns: Columns, topics: TopicTable) -> Iterator[tuple[int, str, int]]:
    """Row, light queue and unit number for every unit that these records have besides their own."""
    starts, lengths = columns.properties_start, columns.properties_length
    _, found = value_spans(raw, starts, lengths, NUMBERS)
    for row in np.flatnonzero(found).tolist():
        text = raw.bytes_at(int(starts[row]), int(lengths[row]))
        for name, number in lmq_units(topics.names[int(columns.topic_id[row])], text):
            yield row, name, number
