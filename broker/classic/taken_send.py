"""A classic client's send that the native path may append as it came in: a frame.

`native/src/classic_send.rs` defines which sends are common. The crate makes their records and their
answers from the frames. A send that the crate refuses at the append, at the end of a segment, is
decoded and takes the Python path. Promise: both paths make the same record and the same answer
(`tests/broker/test_classic_native.py` compares them).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...remoting.codec import decode, encode
from ...remoting.codes import Reply
from ...remoting.command import Command, reply
from ..sending.late_send import LateSend

if TYPE_CHECKING:
    from ...remoting.connection import Connection
    from ..sending.send import Prepared
    from .send import ClassicSends, Sent

_PREFIX_BYTES = 8
#: Where the values of an answer stand: between empty quotes, and the number of the request.
_VALUES = re.compile(rb'(?<=:")(?=")|(?<="opaque":)0')
_PARTS = 6


class TakenSend(LateSend):
    """The request, and the future of its answer."""

    __slots__ = ("_peer", "_sends", "_sent", "opaque")

    def __init__(
        self, sends: ClassicSends, frame: bytes, peer: Connection, topic: str, opaque: int
    ) -> None:
        super().__init__(frame, topic)
        self.opaque = opaque
        self._sends = sends
        self._peer = peer
        self._sent: Sent | None = None

    def prepared(self) -> Prepared:
        """Raises RemotingError."""
        ready, self._sent = self._sends.prepare(decode(self.raw), self._peer)
        return ready

    def stored(self, answer: bytes) -> None:
        self._sent = self._sends.stored(decode(answer[4:]).fields)

    def response(self) -> bytes | Command:
        """Return the crate's frame, or the response to what was sent in Python."""
        content: bytes = self.result()
        if content.startswith(b"\0"):
            return content
        return self._sends.response(content, self._sent)


def answer_parts(fields: dict[str, str]) -> tuple[bytes, ...] | None:
    """Return the header of an answer around its values: `fields` have the fixed ones, and empty
    ones. None if a fixed one is empty, too."""
    header = encode(reply(Reply.SUCCESS, fields=fields))[_PREFIX_BYTES:]
    parts = tuple(_VALUES.split(header))
    return parts if len(parts) == _PARTS else None
