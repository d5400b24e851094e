"""Route queues: encodes the queues of a route or an assignment, which differ in their ids only.

A topic has up to 1,024 queues in each group, and message objects cost 5 us each. Pure.
"""

from collections.abc import Iterable
from typing import Final

from . import v2
from .errors import WireError
from .varint import encode_varint

#: Encoded bytes of a topic that answers repeat: a name of 127 characters, and a namespace.
RESOURCE_BYTES_MAX: Final = 512
#: Encoded bytes of the endpoints that answers repeat: some tens of addresses.
ENDPOINTS_BYTES_MAX: Final = 1_024


def check_repeated(topic: v2.Resource, dialled: v2.Endpoints | None = None) -> None:
    """Raise WireError if a part of a request that each queue of the answer repeats is too large."""
    if topic.ByteSize() > RESOURCE_BYTES_MAX:
        raise WireError(
            v2.ILLEGAL_TOPIC,
            f"topic and namespace have over {RESOURCE_BYTES_MAX} bytes: shorten the namespace",
        )
    if dialled is not None and dialled.ByteSize() > ENDPOINTS_BYTES_MAX:
        raise WireError(
            v2.ILLEGAL_ACCESS_POINT,
            f"the endpoints have over {ENDPOINTS_BYTES_MAX} bytes: name fewer addresses",
        )


def encode_queues(queue: v2.MessageQueue, ids: Iterable[int]) -> bytes:
    """Encode `QueryRouteResponse.message_queues`: `queue`, whose id is 0, with each of the ids."""
    return b"".join([b"\x12" + each for each in _sized(queue, ids)])


def encode_assignments(queue: v2.MessageQueue, ids: Iterable[int]) -> bytes:
    """Encode `QueryAssignmentResponse.assignments` likewise."""
    parts: list[bytes] = []
    for each in _sized(queue, ids):
        parts += (b"\x12", encode_varint(len(each) + 1), b"\x0a", each)
    return b"".join(parts)


def _sized(queue: v2.MessageQueue, ids: Iterable[int]) -> Iterable[bytes]:
    """Yield the length and the content of each queue."""
    shared = queue.SerializeToString()
    for queue_id in ids:
        content = b"\x10" + encode_varint(queue_id) + shared
        yield encode_varint(len(content)) + content
