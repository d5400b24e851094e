"""What a door makes of a failure, whichever door it is.

A `WireError` is an answer that carries its status, an `RpcFailure` a gRPC status, anything else a fault
of ours: INTERNAL, logged once a path and counted.
"""

import logging
from typing import Any, Final

from ..proto.errors import INTERNAL, RpcFailure, WireError
from .context import RequestContext
from .service import Method

logger = logging.getLogger(__name__)

#: A status message travels as a header, and clients refuse more than 8 KiB of headers in all.
DETAILS_MAX: Final = 1_000


class Faults:
    """The faults of one door, by path."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}

    def internal(self, path: str, error: BaseException | None) -> RpcFailure:
        """Count a fault of ours, log the first of a path, and say what the client is told."""
        seen = self.counted.get(path, 0)
        self.counted[path] = seen + 1
        if not seen:
            logger.error("door.internal_error path=%s", path, exc_info=error)
        return RpcFailure(INTERNAL, f"internal error in {path}: see the server's log")

    def failure(self, method: Method, error: BaseException) -> Any:
        """The answer that carries a wire error, or an RpcFailure for what is a gRPC status."""
        if isinstance(error, WireError):
            try:
                return method.fail(error)
            except Exception as broken:
                error = broken
        return error if isinstance(error, RpcFailure) else self.internal(method.path, error)

    def undelivered(self, method: Method, ctx: RequestContext) -> None:
        """Tell the service, once, that its answer was lost."""
        callback, ctx.on_undelivered = ctx.on_undelivered, None
        if callback is not None:
            try:
                callback()
            except Exception as error:
                self.internal(method.path, error)
