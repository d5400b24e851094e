"""Acceptor service `cometmq.v1.MetaCell` on the nameserver's port, for the other nameservers."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..front.service import Method
from ..ha.core.cas_register import Ballot, Vote
from ..nodes.node_links import NodeLinks
from ..proto import paths, v1
from ..proto.errors import RpcFailure
from .acceptor_store import AcceptorRefusedError, AcceptorStore, acceptor_message
from .meta_store import StoreUnavailableError
from .node_method import node_method
from .record_file import VALUE_BYTES_MAX

if TYPE_CHECKING:
    from ..front.context import RequestContext

_INVALID_ARGUMENT = 3
_UNAVAILABLE = 14
# The largest value, a register name and a ballot.
_REQUEST_BYTES = VALUE_BYTES_MAX + 4_096


class AcceptorService:
    """The handlers."""

    def __init__(self, store: AcceptorStore, links: NodeLinks) -> None:
        self._store = store
        self._links = links

    def methods(self) -> list[Method]:
        """Return the rows of the service table."""
        rows = (
            (paths.CELL_PREPARE, v1.PrepareRequest, self.prepare),
            (paths.CELL_ACCEPT, v1.AcceptRequest, self.accept),
            (paths.CELL_READ, v1.ReadCellRequest, self.read),
        )
        return [
            node_method(path, request, v1.CellResponse, handler, self._links, _REQUEST_BYTES)
            for path, request, handler in rows
        ]

    def prepare(self, request: v1.PrepareRequest, ctx: "RequestContext") -> Any:
        """Handle a prepare request of a proposer."""
        ballot = _ballot(request.ballot)
        return self._answer(lambda: self._store.prepare(request.cell, ballot))

    def accept(self, request: v1.AcceptRequest, ctx: "RequestContext") -> Any:
        """Handle an accept request of a proposer."""
        ballot = _ballot(request.ballot)
        return self._answer(lambda: self._store.accept(request.cell, ballot, request.value))

    def read(self, request: v1.ReadCellRequest, ctx: "RequestContext") -> v1.CellResponse:
        """Return the acceptor's state without a promise; `accepted` tells whether it votes."""
        store = self._store
        if not request.cell:
            return v1.CellResponse(
                accepted=store.votes, cells=store.names, acceptor_id=store.acceptor_id
            )
        state = store.peek(request.cell)
        return acceptor_message(state, accepted=store.votes, acceptor_id=store.acceptor_id)

    async def _answer(self, work: Callable[[], Awaitable[Vote]]) -> v1.CellResponse:
        try:
            vote = await work()
        except AcceptorRefusedError as error:
            raise RpcFailure(_INVALID_ARGUMENT, str(error)) from None
        except StoreUnavailableError as error:
            raise RpcFailure(_UNAVAILABLE, str(error)) from None
        return acceptor_message(vote.state, accepted=vote.ok, acceptor_id=vote.acceptor_id)


def _ballot(message: v1.Ballot) -> Ballot:
    return Ballot(message.counter, message.proposer)
