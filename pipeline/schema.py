"""The rows of a message: names, Spark types, Arrow types (pipeline note, section 6).

Hosts are `ADDRESS:PORT` (`[ADDRESS]:PORT` for IPv6), times are UTC, `msgId` is the sender's unique key
or else the offset id, `properties` is read by Java's rules. `bodyCRC`, `size` and `physicalOffset` are of
the record as it is stored. Every column may be null to Spark, which compares Arrow schemas exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

PropertiesForm: TypeAlias = Literal["map", "string", "none"]

_TYPES: Final = {
    "topic": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "brokerName": "string",
    "msgId": "string",
    "tags": "string",
    "keys": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "flag": "int",
    "sysFlag": "int",
    "bornTimestamp": "timestamp",
    "bornHost": "string",
    "storeTimestamp": "timestamp",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "preparedTransactionOffset": "bigint",
    "bodyCRC": "int",
    "physicalOffset": "bigint",
    "size": "int",
}
COLUMNS: Final[tuple[str, ...]] = tuple(_TYPES)
#: Columns for which nothing but the fixed part of a record and its topic is looked at.
METADATA_COLUMNS: Final = (
    *("topic", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp"),
    *("physicalOffset", "size"),
)


def ddl(columns: Sequence[str] = COLUMNS, properties: PropertiesForm = "map") -> str:
    """The row schema of these columns as Spark's DDL; with properties "none" that column is left out."""
    types = _TYPES | ({"properties": "string"} if properties == "string" else {})
    return ", ".join(f"{name} {types[name]}" for name in shown(columns, properties))


def shown(columns: Sequence[str], properties: PropertiesForm) -> tuple[str, ...]:
    """The columns without the properties where nobody wants them. Raises KeyError for an unknown one."""
    return tuple(
        name
        for name in columns
        if _TYPES[name] and not (name == "properties" and properties == "none")
    )


def arrow_schema(columns: Sequence[str] = COLUMNS, properties: PropertiesForm = "map") -> pa.Schema:
    """The same as Arrow's schema, equal to what Spark makes of the DDL with time zone UTC."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    types = _TYPES | ({"properties": "string"} if properties == "string" else {})
    return pa.schema([(name, kinds[types[name]]) for name in shown(columns, properties)])


MESSAGE_SCHEMA: Final = ddl()
