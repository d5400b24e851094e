"""A remoting command: the header and the body of one frame, request or response.

Pure. `codec.py` converts commands from and to bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from .header_fields import read

#: Bits of `Command.flag`.
RESPONSE = 1
ONEWAY = 2
#: Set by a server in a request of a client that it passes on to another server.
PASSED_ON = 4
#: What this server tells of itself: the version number of 5.5.0. A client refuses SQL
#: subscriptions to servers below 4.1.0.
SERVER_VERSION = 513

#: Fields with which a client signs its request: for the servers that check them only. The
#: signature covers values, not their names, the code or a time: who has it signs other requests.
ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
CREDENTIALS = frozenset((ACCESS_KEY, SIGNATURE, "SecurityToken"))

_Made = TypeVar("_Made")


@dataclass(slots=True)
class Command:
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
    #: What `header` or `document` has made of the command, and by which reader.
    _made: Any = field(default=None, init=False, repr=False, compare=False)
    _reader: object = field(default=None, init=False, repr=False, compare=False)

    def header(self, layout: type[_Made], *, letters: bool = False) -> _Made:
        """Return the fields as an object: what decides about rights and what serves the request
        get the same one. Raises HeaderError."""
        made: _Made
        if self._reader is layout:
            made = self._made
            return made
        assert self._reader is None, f"request {self.code} is read in two ways"
        made = self._made = read(layout, self.fields, letters=letters)
        self._reader = layout
        return made

    def document(self, reader: Callable[[Command], _Made]) -> _Made:
        """Return what `reader` makes of the command, once, as `header` does. Raises its errors."""
        if self._reader is not reader:
            assert self._reader is None, f"request {self.code} is read in two ways"
            self._made = reader(self)
            self._reader = reader
        made: _Made = self._made
        return made

    @property
    def is_response(self) -> bool:
        """Whether the frame answers a request of the other side."""
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the request gets no response, not even an error."""
        return bool(self.flag & ONEWAY)


def without_credentials(command: Command) -> Command:
    """Return a command for a receiver that must not have the sender's credentials."""
    if command.fields.keys().isdisjoint(CREDENTIALS):
        return command
    fields = {name: command.fields[name] for name in command.fields.keys() - CREDENTIALS}
    return replace(command, fields=fields)


def reply(
    code: int,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return a response; the connection sets `opaque` and the header layout of its request."""
    return Command(code, dict(fields or {}), body, RESPONSE, remark=remark)
