"""Records of Apache's clients and brokers, appended to a CometMQ log."""

from __future__ import annotations

from cometmq.broker.assembly.parts import Broker
from cometmq.store.format.record import Message, encode_properties, pack_host
from cometmq.store.format.results import PutStatus


def append(
    node: Broker,
    topic: str,
    body: bytes,
    properties: dict[str, str],
    *,
    queue_id: int = 0,
    sys_flag: int = 0,
) -> None:
    """Append one record; readers see it at once."""
    host = pack_host("127.0.0.1", 1)
    message = Message(
        topic,
        queue_id,
        body,
        encode_properties(properties),
        sys_flag=sys_flag,
        born_timestamp_ms=node.runtime.clock.wall_ms(),
        born_host=host,
        store_host=host,
    )
    (result,) = node.sender.append_internal([message])
    assert result.status is PutStatus.PUT_OK
