"""Audit log: a line of JSON for each administrative call and each denial: when, who, from where,
what, outcome.

    {"time": "2026-11-23T06:04:28.000Z", "user": "admin", "from": "127.0.0.1:5", "call":
    "DeleteTopic", "target": "orders", "code": 20000, "message": "OK"}

The node that serves a call writes its line, and a node that refuses a call writes one as well, at
most 100 for administrative calls and 10 for others a second. With `reads` what tools read has lines
as well, which are written when the reading begins. The user is empty while authentication is off.
`AuditFile` writes to a file (mode 0600, at most 6 files of 16 MiB), `audit_topic.py` to a system
topic. A line that cannot be written fails no call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable
from datetime import UTC, datetime
from functools import partial
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from ...auth.quota import TokenBucket
from ...auth.signature import AUTHORIZATION, parse_authorization
from ...proto import paths, v2
from ...proto.errors import WireError
from .rights import CHANGES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...front.service import Method

logger = logging.getLogger(__name__)

AUDITED = CHANGES | {
    paths.SET_ARCHIVE_WATERMARK,
    paths.CHANGE_REPLICATION,
    paths.CHANGE_CONFIG,
}
#: What tools read: messages of any topic, settings, users, clients.
READS = frozenset(
    (
        paths.QUERY_MESSAGES,
        paths.READ_LOG,
        paths.READ_OFFSETS,
        paths.LIST_TIMERS,
        paths.LIST_TRANSACTIONS,
        paths.GET_CONFIG,
        paths.LIST_USERS,
        paths.LIST_CLIENTS,
        paths.GET_CLIENT_STACK,
    )
)
#: Denials a second: strangers choose their number.
_DENIED_CHANGES, _DENIED_OTHERS = 100, 10
_FILE_BYTES, _FILES = 16 << 20, 5
_TEXT_MAX = 255
_TARGETS = ("name", "user", "group", "topic", "subject")


#: The fields of one line; `from` is the client's address.
Entry = TypedDict(
    "Entry",
    {
        "time": str,
        "user": str,
        "from": str,
        "call": str,
        "target": str,
        "code": int,
        "message": str,
    },
)


class AuditedCall(Struct, frozen=True):
    """One administrative call; the user of a refused one is only claimed."""

    user: str
    #: Address of the client.
    source: str
    name: str
    target: str


class _PrivateFile(RotatingFileHandler):
    """A rotated file that only its owner can read."""

    def _open(self) -> Any:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding="utf-8", opener=private)

    def handleError(self, record: logging.LogRecord) -> None:
        """Log that a line was not written."""
        logger.error("audit.not_written file=%s", self.baseFilename, exc_info=True)


class AuditFile:
    """Writes lines to a rotated file."""

    def __init__(self, file: Path) -> None:
        """Raise OSError if the file cannot be opened."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._handler = _PrivateFile(file, maxBytes=_FILE_BYTES, backupCount=_FILES)

    def close(self) -> None:
        """Close the file."""
        self._handler.close()

    def write(self, entry: Entry, line: str) -> None:
        """Write a line; a failure is logged."""
        self._handler.handle(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))


class AuditLog:
    """Makes the lines of one broker."""

    def __init__(
        self,
        writers: Sequence[Callable[[Entry, str], None]],
        clock: Clock,
        *,
        authentication: bool,
        reads: bool,
        dropped: Counter[str],
    ) -> None:
        """Each of `writers` gets the entry and its line. `reads`: with lines for what tools read.
        `dropped` counts denials above the rate."""
        self._writers = writers
        self._clock = clock
        self._authentication = authentication
        self.reads = reads
        self._audited = AUDITED | READS if reads else AUDITED
        self._dropped = dropped
        now_ns = clock.steady_ns()
        self._changes = TokenBucket(_DENIED_CHANGES, now_ns)
        self._others = TokenBucket(_DENIED_OTHERS, now_ns)

    def watching(self, method: Method) -> Method:
        """Return the method with a line for each call, if it is administrative."""
        if method.path not in self._audited:
            return method
        return replace(method, handler=partial(self._serve, method))

    def refused(self, path: str, request: Any, ctx: RequestContext, error: WireError) -> None:
        """Write the line of a call that was refused before it was served."""
        if self.admits_denial(administrative=path in AUDITED):
            self._write(path, request, ctx, error.code, error.message)

    def admits_denial(self, *, administrative: bool) -> bool:
        """Return whether the line of a denial may be written now; count it if not."""
        bucket = self._changes if administrative else self._others
        if not bucket.admits(self._clock.steady_ns()):
            self._dropped["rate"] += 1
            return False
        bucket.take(1)
        return True

    def _serve(self, method: Method, request: Any, ctx: RequestContext) -> Any:
        try:
            answer = method.handler(request, ctx)
        except WireError as error:
            self._write(method.path, request, ctx, error.code, error.message)
            raise
        if isinstance(answer, Awaitable):
            return self._outcome(method.path, request, ctx, answer)
        if hasattr(answer, "__aiter__"):
            self._write(method.path, request, ctx, v2.OK, "begun")
            return answer
        self._write(method.path, request, ctx, answer.code, answer.message)
        return answer

    async def _outcome(
        self, path: str, request: Any, ctx: RequestContext, answer: Awaitable[Any]
    ) -> Any:
        """Wait for the answer and write its line."""
        try:
            found = await answer
        except asyncio.CancelledError:
            self._write(path, request, ctx, 0, "the caller left; the outcome is unknown")
            raise
        except WireError as error:
            self._write(path, request, ctx, error.code, error.message)
            raise
        except Exception as error:
            self._write(path, request, ctx, v2.INTERNAL_SERVER_ERROR, str(error))
            raise
        self._write(path, request, ctx, found.code, found.message)
        return found

    def note(self, call: AuditedCall, code: int, message: str) -> None:
        """Write the line of a call with its outcome."""
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
        entry: Entry = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "user": call.user[:_TEXT_MAX] if self._authentication else "",
            "from": call.source,
            "call": call.name,
            "target": call.target[:_TEXT_MAX],
            "code": int(code),
            "message": message[:_TEXT_MAX],
        }
        line = json.dumps(entry, ensure_ascii=False)
        for write in self._writers:
            write(entry, line)

    def _write(self, path: str, request: Any, ctx: RequestContext, code: int, message: str) -> None:
        if not getattr(request, "dry_run", False):
            name = path.rpartition("/")[2]
            call = AuditedCall(self._user(ctx), ctx.peer, name, target_of(request))
            self.note(call, code, message)

    def _user(self, ctx: RequestContext) -> str:
        """Return the user named by the call; of a refused call it is only claimed."""
        header = next((value for name, value in ctx.metadata if name == AUTHORIZATION), "")
        if not self._authentication or not header:
            return ctx.user if self._authentication else ""
        try:
            return parse_authorization(header).user
        except WireError:
            return ""


def target_of(request: Any) -> str:
    """Return the name of the topic, group or user that a request changes."""
    messages = getattr(request, "messages", None)
    if messages and not isinstance(messages, int):  # a send; a quota has their number
        request = messages[0]
    values = (getattr(request, name, "") for name in _TARGETS)
    texts = (str(getattr(value, "name", value)) for value in values)
    return next((text[:_TEXT_MAX] for text in texts if text), "")
