"""The index query that a `cometmq.v1.Admin/QueryMessages` asks for. Pure."""

from __future__ import annotations

from typing import Final

from ...proto import v1
from ...store.query import TIME_MAX_MS, KeyQuery

#: By field of a request.
INDEX_TYPES: Final = {"key": "K", "unique_key": "U", "tag": "T"}


def key_query(request: v1.QueryMessagesRequest, most: int) -> KeyQuery | None:
    """Return the index query of a request, or None; `most` is the default number of messages."""
    for name, index_type in INDEX_TYPES.items():
        key = getattr(request, name)
        if key:
            times = request.begin_ms, request.end_ms or TIME_MAX_MS
            return KeyQuery(request.topic, key, request.count or most, *times, index_type)
    if request.message_id and request.topic:
        return KeyQuery(request.topic, request.message_id, 1, index_type="U")
    return None
