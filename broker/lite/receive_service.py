"""ReceiveMessage of all groups: hands each request to the pop service or to the lite topics.

It also combines what concerns both: arrivals, clients that left and the progress of groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..messages.validation import require_client_id

if TYPE_CHECKING:
    import asyncio

    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...proto import v2
    from ..clients.registry import ClientRegistry
    from ..pop.receive import PopService
    from ..pull.service import PullService
    from ..visible.dispatch_pump import DispatchPump
    from .service import LiteService


class ReceiveService:
    """Handler of ReceiveMessage, and the listener of arrivals for all waiting requests."""

    def __init__(
        self,
        *,
        clock: Clock,
        clients: ClientRegistry,
        pump: DispatchPump,
        pop: PopService,
        lite: LiteService,
        pulls: PullService,
    ) -> None:
        self._clock = clock
        self._clients = clients
        self._pump = pump
        self._pop = pop
        self._lite = lite
        self._pulls = pulls
        self._limit = pop.limit

    def receive(
        self, request: v2.ReceiveMessageRequest, ctx: RequestContext
    ) -> list[bytes] | asyncio.Future[list[bytes]]:
        """Handler of ReceiveMessage."""
        require_client_id(ctx)
        now_ns = self._clock.steady_ns()
        self._clients.seen(ctx, now_ns)
        self._pump.catch_up()
        lite = self._lite
        is_lite = lite.takes(request.group.name, ctx.client_id)
        receive = lite.receiving.receive if is_lite else self._pop.receive
        answer = receive(request, ctx, now_ns)
        self._clients.consumes(ctx.client_id, request.group.name)
        return answer

    @property
    def waiting(self) -> int:
        """Number of waiting ReceiveMessage polls; a held PullMessage does not hasten the pump."""
        return self._limit.waiting

    def notify(self, topic: str, queue_id: int) -> None:
        """Wake the requests that wait for new messages of a queue."""
        self._pop.notify(topic, queue_id)
        self._lite.notify(topic, queue_id)
        self._pulls.notify(topic, queue_id)

    def client_gone(self, client_id: str) -> None:
        """End the polls of a client that left, and release its messages."""
        self._lite.client_gone(client_id)
        self._pop.client_gone(client_id)

    def progress(self, topic: str, group: str, queue_id: int) -> tuple[int, int] | None:
        """Return the read offset and the messages in flight of a group; None without a state."""
        progress = self._pop.progress(topic, group, queue_id)
        return self._lite.receiving.progress(topic, group) if progress is None else progress

    def end_polls(self) -> None:
        """Answer all waiting requests: their clients ask again."""
        self._pop.end_polls()
        self._lite.receiving.end_polls()
        self._pulls.end_polls()

    def close(self) -> None:
        """Answer all waiting requests and stop."""
        self._pop.close()
        self._lite.receiving.end_polls()
        self._pulls.close()
