"""A remoting command: the header and the body of one frame, request or response.

Pure. `codec.py` converts commands from and to bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

#: Bits of `Command.flag`.
RESPONSE = 1
ONEWAY = 2
#: Set by a server in a request of a client that it passes on to another server.
PASSED_ON = 4
#: What this server tells of itself: the version number of 5.5.0. A client refuses SQL
#: subscriptions to servers below 4.1.0.
SERVER_VERSION = 513


class Command(Struct):
    """One frame. A request and its response have the same `opaque`."""

    #: Request code (`codes.Request`) or response code (`codes.Reply`).
    code: int
    #: Typed fields of the header, all as text.
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    #: Bits RESPONSE, ONEWAY and PASSED_ON.
    flag: int = 0
    #: Number of the request, chosen by the side that sends it.
    opaque: int = 0
    #: Error text of a response.
    remark: str | None = None
    #: Name of the language of the sender.
    language: str = "JAVA"
    #: Version number of the sender.
    version: int = SERVER_VERSION
    #: True if the header has the ROCKETMQ layout, False if it is JSON.
    binary: bool = False

    @property
    def is_response(self) -> bool:
        """Whether the frame answers a request of the other side."""
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the request gets no response, not even an error."""
        return bool(self.flag & ONEWAY)


def reply(
    code: int,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return a response; the connection sets `opaque` and the header layout of its request."""
    return Command(code, dict(fields or {}), body, RESPONSE, remark=remark)
