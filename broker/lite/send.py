"""LITE messages: records of the parent topic that are also in the LMQ of their lite topic.

Source: docs/formats/broker-semantics.md, sections 12.1 and 12.2. The first message creates the lite
topic. At the limit of LMQs the store refuses it with LITE_TOPIC_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.lmq_queues import with_lmqs
from ..names.lite import is_parent, queue_of

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...store.format.record import Message
    from ..messages.validation import Draft
    from ..metadata.tables import Topic
    from ..sending.answer import ReceiptExtras


class LiteSends:
    """The message type LITE, for the sender."""

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, ReceiptExtras | None]:
        """Return the record with its LMQ. Raises WireError."""
        if not is_parent(topic):
            # A mixed topic accepts every other type: no client can subscribe to its lite topics.
            raise WireError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic.name} has no lite topics: its type is not LITE",
            )
        return with_lmqs(message, [queue_of(topic.name, draft.lite_topic)]), None
