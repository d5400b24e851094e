"""`cometmq.v1.Admin`, clients: connected producers and consumers of all protocols, their stacks.

Clients are in memory: those of a follower are known to the leader as well, because the follower
forwards their telemetry (`clients/telemetry_forward.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v1, v2
from ..clients.connected import unknown_client
from .pages import page_of

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..clients.connected import ConnectedClients

#: Clients of one answer: 10 ms of the event loop.
CLIENTS_MAX = 1_000


class ClientAdmin:
    """Handlers for clients."""

    def __init__(self, sources: list[ConnectedClients]) -> None:
        """`sources` has the clients of each protocol; another protocol may be added later."""
        self.sources = sources

    async def list_all(
        self, request: v1.ListClientsRequest, ctx: RequestContext
    ) -> v1.ListClientsResponse:
        """A page of the clients by id, or one client with its settings."""
        if request.client_id:
            status = self._status(request.client_id, detailed=True)
            if status is None:
                raise unknown_client(request.client_id)
            return v1.ListClientsResponse(code=v2.OK, message="OK", clients=[status])
        ids = {client_id for source in self.sources for client_id in source.ids()}
        limit = min(request.limit, CLIENTS_MAX) if request.limit > 0 else CLIENTS_MAX
        page, more = page_of(ids, request.after, limit)
        rows = (self._status(client_id, detailed=False) for client_id in page)
        return v1.ListClientsResponse(
            code=v2.OK, message="OK", clients=[row for row in rows if row is not None], more=more
        )

    async def stack(
        self, request: v1.GetClientStackRequest, ctx: RequestContext
    ) -> v1.GetClientStackResponse:
        """The stack of the threads of one client."""
        for source in self.sources:
            if (asked := source.stack(request.client_id)) is not None:
                stack = await asked
                return v1.GetClientStackResponse(code=v2.OK, message="OK", stack=stack)
        raise unknown_client(request.client_id)

    def _status(self, client_id: str, *, detailed: bool) -> v1.ClientStatus | None:
        found = (source.status(client_id, detailed=detailed) for source in self.sources)
        return next((status for status in found if status is not None), None)
