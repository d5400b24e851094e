"""A classic client's send that the native path may append as it came in: a frame.

`native/src/broker/classic_send.rs` defines which sends are common. The crate makes their records
and their answers from the frames. A send that the crate refuses at the append, at the end of a
segment, is decoded and takes the Python path. Promise: both paths make the same record and the same
answer (`tests/broker/classic/test_classic_native.py` compares them).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...remoting.codec import decode, encode
from ...remoting.codes import Reply
from ...remoting.command import Command, reply
from ..sending.send import Send
from .base.errors import context_of

if TYPE_CHECKING:
    from ...remoting.connection import Connection
    from ..sending.send import Prepared
    from .send import ClassicSends, Sent

_PREFIX_BYTES = 8
#: How the crate's frames begin, and no encoded SendMessageResponse does.
_FRAME = b"\0"
#: Where the values of an answer stand: between empty quotes, and the number of the request.
_VALUES = re.compile(rb'(?<=:")(?=")|(?<="opaque":)0')
_PARTS = 6


class TakenSend(Send):
    """The request, and the future of its answer."""

    __slots__ = ("_peer", "_sends", "_sent", "_topic", "opaque")

    is_frame = True

    def __init__(
        self, sends: ClassicSends, frame: bytes, peer: Connection, topic: str, opaque: int
    ) -> None:
        super().__init__(context_of(peer, "", len(frame)), frame)
        self._topic = topic
        self.opaque = opaque
        self._sends = sends
        self._peer = peer
        self._sent: Sent | None = None

    @property
    def topic(self) -> str:
        return self._topic

    def prepared(self) -> Prepared:
        """Raises RemotingError."""
        assert self.raw is not None
        ready, self._sent = self._sends.prepare(decode(self.raw), self._peer)
        return ready

    def stored(self, answer: bytes) -> None:
        if answer.startswith(_FRAME):
            self._sent = self._sends.stored(decode(answer[4:]).fields)

    def response(self) -> bytes | Command:
        """Return the crate's frame, or the response to what was sent in Python."""
        content: bytes = self.result()
        if content.startswith(_FRAME):
            return content
        return self._sends.response(content, self._sent)


def answer_parts(fields: dict[str, str]) -> tuple[bytes, ...] | None:
    """Return the header of an answer around its values: `fields` have the fixed ones, and empty
    ones. None if a fixed one is empty, too."""
    header = encode(reply(Reply.SUCCESS, fields=fields))[_PREFIX_BYTES:]
    parts = tuple(_VALUES.split(header))
    return parts if len(parts) == _PARTS else None
