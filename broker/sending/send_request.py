"""A SendMessage request as it came in, decoded when a part reads its messages.

The native path (`native_path.py`) works on the bytes; a request that takes it is decoded only where
rights or a route depend on its topic.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ...front.service import Method, read_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...proto import v2


class SendRequest:
    """Stands for a `v2.SendMessageRequest`."""

    __slots__ = ("_decoded", "_method", "raw")

    def __init__(self, method: Method, raw: bytes) -> None:
        """`method` has the limits and the decoder."""
        self.raw = raw
        self._method = method
        self._decoded: v2.SendMessageRequest | None = None

    @property
    def messages(self) -> Sequence[v2.Message]:
        """The messages. Raises RpcFailure or WireError, as the front door does for a request that
        is too large or cannot be decoded."""
        if self._decoded is None:
            self._decoded = read_message(self._method, self.raw)
        return self._decoded.messages

    def SerializeToString(self) -> bytes:
        """Return the bytes as they came in."""
        return self.raw


def decoded_late(method: Method) -> Method:
    """Return SendMessage with requests that are decoded when their messages are read."""
    return replace(method, parse=partial(SendRequest, method), limits=None)
