"""Properties that all records of the broker, and all requests of a topic, share."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from ...store.format.properties import java_hash

if TYPE_CHECKING:
    from cometmq_native import codec

    from ..metadata.tables import Metadata, Topic

#: Prefixes of topics that accept messages of any type.
EXEMPT_PREFIXES = ("%RETRY%", "%DLQ%")
_TEMPLATES_SPARE = 1_000


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


class TopicTemplates:
    """The templates of a broker's topics; both planners use them, and so the same turns."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._templates: dict[str, TopicTemplate] = {}

    def of(self, topic: Topic) -> TopicTemplate:
        """Return the template of a topic."""
        template = self._templates.get(topic.name)
        if template is None or template.topic is not topic:
            if len(self._templates) > _TEMPLATES_SPARE + 2 * len(self._metadata.topics):
                self._templates.clear()  # most belong to deleted topics
            turn = 0 if template is None else template.turn
            template = self._templates[topic.name] = TopicTemplate(topic, turn)
        return template


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
