"""AckMessage requests that the native crate reads.

Promises: a request that is accepted here names different deliveries of this broker, each with a
handle that Python decodes to the same delivery (`names/handles.py`), and gets the same answer there
(a test compares both). Everything else takes the Python path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...proto.request_limits import ACKS_MAX
from ..base.late_request import LateRequest
from ..messages.wire import STATUS_OK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...proto import v2
    from ...proto.native import Native

#: Deliveries of one queue: its kind and id, queue offsets, pop times.
QueueAcks = tuple[int, int, list[int], list[int]]
#: Returns group, topic, deliveries by queue, and the answer that acknowledges all of them; None if
#: the request is not common.
ReadAcks = Callable[[bytes], tuple[str, str, list[QueueAcks], bytes] | None]


class AckRequest(LateRequest):
    """Stands for a `v2.AckMessageRequest`."""

    __slots__ = ()

    @property
    def group(self) -> v2.Resource:
        """The group. Raises what `decoded` raises, as the following."""
        group: v2.Resource = self.decoded().group
        return group

    @property
    def topic(self) -> v2.Resource:
        """The topic."""
        topic: v2.Resource = self.decoded().topic
        return topic

    @property
    def entries(self) -> Sequence[v2.AckMessageEntry]:
        """The messages."""
        entries: Sequence[v2.AckMessageEntry] = self.decoded().entries
        return entries


def common_acks(native: Native | None, broker_name: str) -> ReadAcks | None:
    """Return the crate's function; None without the crate."""
    if native is None:
        return None
    return native.ack_reader(broker_name, STATUS_OK, ACKS_MAX).read
