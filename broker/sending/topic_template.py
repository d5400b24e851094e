"""What the records of a topic share, computed once; and the queue of a message group. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from ...store.format.properties import java_hash

if TYPE_CHECKING:
    from cometmq_native import codec

    from ..metadata.tables import Topic

#: Prefixes of topics that accept messages of any type.
EXEMPT_PREFIXES = ("%RETRY%", "%DLQ%")


class Origin(Struct):
    """Properties shared by all messages of a broker."""

    region: str
    cluster: str
    max_body: int
    #: Stored with every record.
    store_host: bytes


class TopicTemplate(Struct):
    """A topic and what its requests share; made again when the topic is altered."""

    topic: Topic
    #: Number of requests: they are spread over the queues in turn. The client's choice of a queue
    #: is ignored, because the Python and Go clients always send queue 0.
    turn: int = 0
    #: The native crate's form, made on first use.
    native: codec.SendTemplate | None = None

    @property
    def common(self) -> bool:
        """Whether the crate may plan messages of the topic."""
        return self.topic.writable and not self.topic.name.startswith(EXEMPT_PREFIXES)

    def next_queue(self) -> int:
        """Return the queue of the next request."""
        self.turn += 1
        return (self.turn - 1) % self.topic.write_queues


@lru_cache(maxsize=8192)
def fifo_queue(message_group: str, queues: int) -> int:
    """Return the queue of a message group: Guava's consistent hash over Java's string hash.

    The server computes it, because the clients' hashes differ between languages
    (docs/formats/grpc-api.md, section 9.4; check values: broker-semantics.md, section 7).
    """
    state = java_hash(message_group) & 0xFFFFFFFFFFFFFFFF
    candidate = 0
    while True:
        state = (state * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        fraction = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / fraction)
        if not 0 <= following < queues:
            return candidate
        candidate = following
