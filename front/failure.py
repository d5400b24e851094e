"""Failures of calls, handled alike by both doors.

A `WireError` becomes an answer with a status, an `RpcFailure` a gRPC status, any other exception a
server fault: INTERNAL, counted by path; the first one of each path is logged.
"""

import asyncio
import logging
from typing import Any, Final

from ..proto.errors import INTERNAL, RESOURCE_EXHAUSTED, RpcFailure, WireError
from .context import RequestContext
from .service import Method, Outbound, OutboundFull, Session

logger = logging.getLogger(__name__)

#: A status message travels in a header, and clients refuse more than 8 KiB of headers in total.
DETAILS_MAX: Final = 1_000


class FailureHandler:
    """Converts, counts and logs the failures of one door's calls."""

    def __init__(self) -> None:
        #: Server faults by path.
        self.counted: dict[str, int] = {}

    def internal(self, path: str, error: BaseException | None) -> RpcFailure:
        """Count a server fault, log the first one of a path, and return the client's status."""
        seen = self.counted.get(path, 0)
        self.counted[path] = seen + 1
        if not seen:
            logger.error("door.internal_error path=%s", path, exc_info=error)
        return RpcFailure(INTERNAL, f"internal error in {path}: see the server's log")

    def failure(self, method: Method, error: BaseException) -> Any:
        """Return the answer that carries a wire error, or the RpcFailure for a gRPC status."""
        if isinstance(error, WireError):
            try:
                return method.fail(error)
            except Exception as broken:
                error = broken
        return error if isinstance(error, RpcFailure) else self.internal(method.path, error)

    def undelivered(self, method: Method, ctx: RequestContext) -> None:
        """Call the service's `on_undelivered` callback, once: its answer was lost."""
        callback, ctx.on_undelivered = ctx.on_undelivered, None
        if callback is not None:
            try:
                callback()
            except Exception as error:
                self.internal(method.path, error)

    def end_stream(self, method: Method, outbound: Outbound, error: BaseException) -> None:
        """End a bidirectional stream with the answer or status for `error`."""
        failure = self.failure(method, error)
        if isinstance(failure, RpcFailure):
            outbound.finish(failure)
            return
        try:
            outbound.send(failure)
            outbound.finish()
        except OutboundFull:
            outbound.finish(RpcFailure(RESOURCE_EXHAUSTED, str(error)))
        except Exception as broken:
            outbound.finish(self.internal(method.path, broken))

    def close_session(
        self, method: Method, session: Session, reason: str
    ) -> "asyncio.Future[Any] | None":
        """Close a session and return its future; an exception counts as a server fault."""
        try:
            return session.close(reason)
        except Exception as error:
            self.internal(method.path, error)
            return None
