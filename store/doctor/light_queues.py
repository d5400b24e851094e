"""Light queues (LMQ): units of a record in queues other than its own. (store format, section 3.9)

A record names them in its properties: `INNER_MULTI_DISPATCH=%LMQ%a,%LMQ%b`, and in
`INNER_MULTI_QUEUE_OFFSET=7,12` the number of its unit in queue 0 of each.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..properties import property_value
from ..scan import Columns, RawBytes
from ..scan_properties import value_spans

PREFIX: Final = "%LMQ%"
_NAMES: Final = b"INNER_MULTI_DISPATCH"
_NUMBERS: Final = b"INNER_MULTI_QUEUE_OFFSET"


def light_units(raw: RawBytes, columns: Columns) -> Iterator[tuple[int, str, int]]:
    """Row, light queue and unit number for every unit that these records should have."""
    starts, lengths = columns.properties_start, columns.properties_length
    _, found = value_spans(raw, starts, lengths, _NAMES)
    for row in np.flatnonzero(found).tolist():
        text = raw.bytes_at(int(starts[row]), int(lengths[row]))
        names = property_value(text, _NAMES).decode("utf-8", "replace").split(",")
        numbers = property_value(text, _NUMBERS).split(b",")
        for name, number in zip(names, numbers, strict=False):
            if name.startswith(PREFIX) and number.isdigit():
                yield row, name, int(number)
