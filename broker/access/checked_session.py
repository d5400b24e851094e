"""Sessions of streams whose messages the guard checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...proto.errors import PERMISSION_DENIED, RpcFailure
from .rights import RIGHTS

if TYPE_CHECKING:
    from asyncio import Future

    from ...front.context import RequestContext
    from ...front.service import Method, Outbound, Session
    from .guard import Guard
    from .rights import Needs


class CheckedSession:
    """A session that opens with its first accepted message.

    Not earlier, because a client that writes to a refused stream does not see the status.
    """

    __slots__ = ("_ctx", "_guard", "_method", "_needs", "_outbound", "_session", "_user")

    def __init__(
        self, guard: Guard, method: Method, ctx: RequestContext, outbound: Outbound
    ) -> None:
        self._guard = guard
        self._method = method
        self._ctx = ctx
        self._outbound = outbound
        self._session: Session | None = None
        self._user = ""
        #: Of the last message that had any: the settings.
        self._needs: Needs = ()

    def receive(self, message: Any) -> Future[Any] | None:
        """Check and process one message. Raises WireError, which ends the stream."""
        if self._session is None:
            self._guard.check_first(self._method.path, message, self._ctx)
            self._session = self._method.handler(self._ctx, self._outbound)
            self._user = self._guard.user_of(self._ctx)
            self._guard.opened(self)
        else:
            self._guard.check_message(self._method.path, message, self._ctx)
        self._needs = RIGHTS[self._method.path](message) or self._needs
        return self._session.receive(message)

    def close(self, reason: str) -> Future[Any] | None:
        """Close the session."""
        self._guard.closed(self)
        return self._session.close(reason) if self._session is not None else None

    def recheck(self) -> None:
        """End the stream if its user has lost the right on what it names."""
        if not self._guard.still(self._user, self._needs, self._ctx):
            text = "the user of this stream has lost a right that it needs, or is disabled"
            self._outbound.finish(RpcFailure(PERMISSION_DENIED, text))
