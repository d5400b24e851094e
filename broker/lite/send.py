"""LITE messages: a record of the parent topic that also stands in the light queue of its lite topic.

Source: broker semantics, sections 12.1 and 12.2. The lite topic begins with its first message. When there
is no room for another light queue, the store says so and the entry is LITE_TOPIC_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.lmq_queues import with_lmqs
from .names import is_parent, queue_of

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...store.format.record import Message
    from ..messages.validation import Draft
    from ..metadata.tables import Topic
    from ..sending.answer import ReceiptExtras


class LiteSends:
    """What `Sender.types` knows of the type."""

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, ReceiptExtras | None]:
        """The record, named after its lite topic. Raises WireError."""
        if not is_parent(topic):
            # A mixed topic takes every type but this: nobody could subscribe to its lite topics.
            raise WireError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic.name} has no lite topics: its type is not LITE",
            )
        return with_lmqs(message, [queue_of(topic.name, draft.lite_topic)]), None
