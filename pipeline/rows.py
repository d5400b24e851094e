"""`RowBuilder`: converts columns of scanned records to Arrow record batches.

Only the data of the selected columns is read: metadata columns do not touch bodies, and properties
are parsed once for all columns that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from ..store.scan.columns import Columns, TopicTable
from ..store.scan.raw import Integers, RawBytes
from .hosts import Hosts, offset_ids
from .pairs import Properties
from .schema import PropertiesForm, arrow_schema, shown
from .slices import chosen, slices

_MICROS: Final = 1000
_TIME_MS_MAX: Final = (1 << 63) // _MICROS - 1
_NUMBERS: Final = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "bodyCRC": "body_crc",
    "physicalOffset": "physical_offset",
    "size": "size",
}
_TIMES: Final = {"bornTimestamp": "born_timestamp", "storeTimestamp": "store_timestamp"}
_FROM_PROPERTIES: Final = frozenset(("msgId", "tags", "keys", "properties"))
_PROPERTY_OF: Final = {"tags": "TAGS", "keys": "KEYS"}


class LogBytes:
    """Raw bytes of a log, for NumPy and for Arrow."""

    __slots__ = ("buffer", "raw")

    def __init__(self, raw: RawBytes) -> None:
        self.raw = raw
        self.buffer = pa.py_buffer(raw.data)


class RowBuilder:
    """Builds batches with the schema that Spark expects for the selected columns."""

    def __init__(
        self, columns: Sequence[str], properties: PropertiesForm, broker: str, topics: TopicTable
    ) -> None:
        self.names = shown(columns, properties)
        self.schema = arrow_schema(columns, properties)
        self.wants_bodies = "body" in self.names
        self._form = properties
        self._broker = broker
        self._topics = topics
        self._hosts = Hosts()
        self._makers: dict[str, Callable[[LogBytes, Columns], pa.Array]] = {
            "topic": lambda view, columns: chosen(self._topics.names, columns.topic_id),
            "brokerName": lambda view, columns: _repeated(self._broker, len(columns)),
            "body": lambda view, columns: slices(
                view.buffer, columns.body_start, columns.body_length, pa.binary()
            ),
            "bornHost": lambda view, columns: self._hosts.born(view.raw, columns),
            "storeHost": lambda view, columns: self._hosts.store(view.raw, columns),
        }

    def batch(
        self, view: LogBytes, columns: Columns, bodies: pa.Array | None = None
    ) -> pa.RecordBatch:
        """Build one batch. `bodies` replaces the stored bodies."""
        properties: Properties | None = None
        if not _FROM_PROPERTIES.isdisjoint(self.names):
            properties = Properties(
                view.buffer, columns.properties_start, columns.properties_length
            )
        arrays = []
        for name in self.names:
            if name == "body" and bodies is not None:
                arrays.append(bodies)
            elif name in _NUMBERS:
                arrays.append(self._number(name, getattr(columns, _NUMBERS[name])))
            elif name in _TIMES:
                arrays.append(timestamps(getattr(columns, _TIMES[name])))
            elif properties is not None and name in _FROM_PROPERTIES:
                arrays.append(self._from_properties(name, properties, view, columns))
            else:
                arrays.append(self._makers[name](view, columns))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _number(self, name: str, values: Integers) -> pa.Array:
        kind = self.schema.field(name).type
        return pa.array(values if kind == pa.int64() else values.astype(np.int32))

    def _from_properties(
        self, name: str, properties: Properties, view: LogBytes, columns: Columns
    ) -> pa.Array:
        if name == "properties":
            return properties.maps() if self._form == "map" else properties.text()
        if name in _PROPERTY_OF:
            return properties.values(_PROPERTY_OF[name])
        found = properties.values("UNIQ_KEY")
        if not found.null_count:
            return found
        import pyarrow.compute as pc

        return pc.coalesce(found, offset_ids(view.raw, columns))


def timestamps(values_ms: Integers) -> pa.Array:
    """Convert milliseconds to Spark's timestamps; null for values out of range."""
    kind = pa.timestamp("us", tz="UTC")
    wild = (values_ms > _TIME_MS_MAX) | (values_ms < -_TIME_MS_MAX)
    if wild.any():
        values = np.where(wild, 0, values_ms) * _MICROS
        return pa.array(values, pa.int64(), mask=wild).cast(kind)
    return pa.array(values_ms * _MICROS).view(kind)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)
