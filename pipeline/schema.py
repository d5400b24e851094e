"""Row schema of messages: column names, Spark types, Arrow types.

Hosts are `ADDRESS:PORT` (`[ADDRESS]:PORT` for IPv6). Times are UTC. `msgId` is the sender's unique
key, or the offset id without one. `properties` is parsed by Java's rules. `bodyCRC`, `size` and
`physicalOffset` describe the stored record. Every column is nullable, because Spark compares Arrow
schemas exactly.
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
#: Columns that need only the fixed part of a record and its topic.
METADATA_COLUMNS: Final = (
    *("topic", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp"),
    *("physicalOffset", "size"),
)


def ddl(columns: Sequence[str] = COLUMNS, properties: PropertiesForm = "map") -> str:
    """Return the row schema as Spark's DDL; properties "none" leaves that column out."""
    types = _TYPES | ({"properties": "string"} if properties == "string" else {})
    return ", ".join(f"{name} {types[name]}" for name in shown(columns, properties))


def shown(columns: Sequence[str], properties: PropertiesForm) -> tuple[str, ...]:
    """Return the columns, without `properties` for "none". Raises KeyError for an unknown one."""
    return tuple(
        name
        for name in columns
        if _TYPES[name] and not (name == "properties" and properties == "none")
    )


def arrow_schema(columns: Sequence[str] = COLUMNS, properties: PropertiesForm = "map") -> pa.Schema:
    """Return the row schema as Arrow schema, equal to Spark's conversion of the DDL (UTC)."""
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
