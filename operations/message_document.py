"""A stored message as a document of JSON."""

import base64
from typing import Any

from ..proto import v2


def message_document(message: v2.Message) -> dict[str, Any]:
    """Return the fields of a message, with its body."""
    properties = message.system_properties
    document: dict[str, Any] = {
        "topic": message.topic.name,
        "queue": properties.queue_id,
        "offset": properties.queue_offset,
        "message_id": properties.message_id,
        "tag": properties.tag,
        "keys": list(properties.keys),
        "message_group": properties.message_group,
        "born_ms": properties.born_timestamp.ToMilliseconds(),
        "stored_ms": properties.store_timestamp.ToMilliseconds(),
        "properties": dict(message.user_properties),
    }
    return document | body_fields(message.body)


def body_fields(body: bytes) -> dict[str, str]:
    """Return the field `body`; for a body that is not text, `body_base64`."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}
