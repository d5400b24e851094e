"""A SendMessage request as it came in; the native path (`native_path.py`) works on the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.late_request import LateRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...proto import v2


class SendRequest(LateRequest):
    """Stands for a `v2.SendMessageRequest`."""

    __slots__ = ()

    @property
    def messages(self) -> Sequence[v2.Message]:
        """The messages. Raises what `decoded` raises."""
        messages: Sequence[v2.Message] = self.decoded().messages
        return messages
