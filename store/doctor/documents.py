"""Records and units as JSON-able dictionaries: the output of `store dump` and `export`.

The names are those of Apache's own view of a store, which is kept beside the golden directories.
Hosts are `address|port`, IPv6 in long form, as Java prints them.
"""

import base64
import ipaddress
from typing import Any

from ..format.bodies import decompress
from ..format.properties import tags_code
from ..format.record import Record, unpack_host


def host_text(packed: bytes) -> str:
    """Return `127.0.0.1|10911`, `0:0:0:0:0:0:0:1|10911`."""
    address, port = unpack_host(packed)
    if ":" in address:
        groups = ipaddress.IPv6Address(address).exploded.split(":")
        address = ":".join(f"{int(group, 16):x}" for group in groups)
    return f"{address}|{port}"


def message_document(record: Record) -> dict[str, Any]:
    """Return one whole message. `body_b64` is null if the body cannot be decompressed."""
    document: dict[str, Any] = {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "tags_code": tags_code(record.topic, record.properties, record.store_timestamp_ms),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp_ms,
        "born_host": host_text(record.born_host),
        "store_timestamp": record.store_timestamp_ms,
        "store_host": host_text(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "properties": record.properties_dict,
        "stored_body_b64": base64.b64encode(record.body).decode(),
    }
    try:
        body: bytes | None = decompress(record.body, record.sys_flag)
    except ValueError as error:
        body = None
        document["body_error"] = str(error)
    document["body_b64"] = None if body is None else base64.b64encode(body).decode()
    return document
