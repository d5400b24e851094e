"""A send of another protocol as it came in, whose records are made when the native path refuses it.

The request is the future of its own answer: one object for each send. The answer is what the native
path made, in the protocol of the request, or an encoded SendMessageResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...front.reply_future import ReplyFuture

if TYPE_CHECKING:
    from .send import Prepared


class LateSend(ReplyFuture):
    """One message. Subclasses know the protocol."""

    __slots__ = ("raw", "topic")

    def __init__(self, raw: bytes, topic: str) -> None:
        """`raw`: for the native path."""
        super().__init__()
        self.raw = raw
        self.topic = topic

    def prepared(self) -> Prepared:
        """Make the records in Python. Raises WireError, or an error of the protocol."""
        raise NotImplementedError

    def stored(self, answer: bytes) -> None:
        """Note the native path's answer to a message that is stored, but not as safe as promised:
        another answer follows."""
        raise NotImplementedError
