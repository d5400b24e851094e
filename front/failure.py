"""Failures of calls, handled alike by both doors.

A `WireError` becomes an answer with a status, an `RpcFailure` a gRPC status, any other exception a
server fault: INTERNAL, counted by path and exception type. Of each path and type the first fault is
logged with its traceback, then one a minute with the count.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..proto.errors import INTERNAL, RESOURCE_EXHAUSTED, RpcFailure, WireError
from .context import RequestContext
from .service import Method, Outbound, OutboundFull, Session

logger = logging.getLogger(__name__)

#: A status message travels in a header, and clients refuse more than 8 KiB of headers in total.
DETAILS_MAX: Final = 1_000
#: Shortest interval between two log lines for faults of one path and type.
_LOG_INTERVAL_NS: Final = 60 * 1_000_000_000


@dataclass(slots=True)
class _Faults:
    """Server faults of one path and exception type."""

    count: int
    logged_ns: int


class FailureHandler:
    """Converts, counts and logs the failures of one door's calls."""

    def __init__(self, steady_ns: Callable[[], int]) -> None:
        self._steady_ns = steady_ns
        # Bounded by the methods of the table and the exception classes of the program.
        self._faults: dict[tuple[str, str], _Faults] = {}

    @property
    def counted(self) -> dict[tuple[str, str], int]:
        """Server faults by path and exception type."""
        return {key: faults.count for key, faults in self._faults.items()}

    def internal(self, path: str, error: BaseException | None) -> RpcFailure:
        """Count a server fault, log it unless its kind was logged in the last minute, and return
        the client's status."""
        kind = type(error).__name__ if error is not None else "unknown"
        faults = self._faults.get((path, kind))
        now_ns = self._steady_ns()
        if faults is None:
            faults = self._faults[path, kind] = _Faults(0, now_ns - _LOG_INTERVAL_NS)
        faults.count += 1
        if now_ns - faults.logged_ns >= _LOG_INTERVAL_NS:
            faults.logged_ns = now_ns
            text = "door.internal_error path=%s error=%s count=%d"
            logger.error(text, path, kind, faults.count, exc_info=error)
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
