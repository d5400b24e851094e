"""Sends of gRPC clients: single calls, and the calls of a turn that the native door hands over."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ...proto import v2
from ...proto.errors import RpcFailure, WireError
from ..base.late_request import LateRequest
from ..messages.validation import has_client_id
from .send import Prepared, Send, peer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq_native import codec

    from ...front.context import RequestContext
    from ...front.service import ClientRun
    from .dedup import SendDedup
    from .grpc_records import GrpcRecords
    from .settlement import Settlement


class SendRequest(LateRequest):
    """Stands for a `v2.SendMessageRequest`."""

    __slots__ = ()

    @property
    def messages(self) -> Sequence[v2.Message]:
        """The messages. Raises what `decoded` raises."""
        messages: Sequence[v2.Message] = self.decoded().messages
        return messages


class GrpcSend(Send):
    """One call."""

    __slots__ = ("_records", "_request")

    def __init__(
        self,
        request: v2.SendMessageRequest | SendRequest,
        ctx: RequestContext,
        records: GrpcRecords,
    ) -> None:
        super().__init__(ctx, request.raw if isinstance(request, SendRequest) else None)
        self._request = request
        self._records = records

    @property
    def topic(self) -> str:
        messages = self._request.messages
        return messages[0].topic.name if messages else ""

    @property
    def count(self) -> int:
        return len(self._request.messages)

    @property
    def held(self) -> Any:
        return self._request

    def is_readable(self) -> bool:
        try:
            _ = self._request.messages
        except (RpcFailure, WireError) as error:
            # As for a method that the front door decodes.
            if not self.done():
                self.set_exception(error.with_traceback(None))
            return False
        return True

    def prepared(self) -> Prepared:
        return self._records.make(self._request.messages, self.ctx)


class OnceSend(GrpcSend):
    """One call of SendOnce, after its id was not found in the index."""

    __slots__ = ("_dedup", "_ready", "_window")

    is_once = True

    def __init__(
        self, message: v2.Message, ctx: RequestContext, records: GrpcRecords, dedup: SendDedup
    ) -> None:
        super().__init__(v2.SendMessageRequest(messages=[message]), ctx, records)
        self._dedup = dedup
        self._window = dedup.window
        self._ready: Prepared | None = None

    @property
    def is_repeated(self) -> bool:
        """Whether the window had the id; known once the request is answered."""
        return self._ready is not None and not self._ready.messages

    @property
    def held(self) -> Any:
        return None  # another replica looks at its index first

    def prepared(self) -> Prepared:
        if self._dedup.window is not self._window:
            raise WireError(v2.HA_NOT_AVAILABLE, "the leader has changed: try again")
        self._ready = super().prepared()
        return self._ready


class GrpcRow:
    """Calls of one turn, without a future for each; `front.service.Taken` once they are stored."""

    def __init__(
        self,
        requests: Sequence[bytes],
        clients: Sequence[ClientRun],
        may_send: Callable[[str], bool] | None,
        settlement: Settlement,
    ) -> None:
        """Hold the requests of the first clients, up to one without an id; `may_send` tells whether
        all of them may send to a topic (None: they may)."""
        known = takewhile(lambda run: has_client_id(run[0]), clients)
        self._peers = [(*peer_of(ctx.peer), count) for ctx, count in known]
        self._requests = requests
        self._may_send = may_send
        self._settlement = settlement
        self._answers: list[bytes] = []
        self._end = 0

    def __len__(self) -> int:
        """Return the number of requests."""
        return sum(count for _, _, count in self._peers)

    @property
    def count(self) -> int:
        """The number of requests whose messages are stored: the first ones."""
        return len(self._answers)

    def plan(
        self, planner: codec.SendPlanner, at: int, place: Any, topic_of: Any, next_offset: Any
    ) -> codec.SendPlan:
        """Plan the requests from number `at` on; see `SendPlanner.plan_row`."""
        may_send = self._may_send

        def allowed(topic: str) -> Any:
            return topic_of(topic) if may_send is None or may_send(topic) else None

        requests: Any = self._requests
        return planner.plan_row(requests, self._peers, at, place, allowed, next_offset)

    def add(self, plan: codec.SendPlan) -> None:
        """Add the stored requests of a plan."""
        self._answers += plan.answers
        self._end = plan.ends[-1]

    def then(self, answer: Callable[[list[bytes]], None]) -> None:
        """Answer the requests once their records are as safe as promised."""
        self._settlement.settle_row(self._answers, self._end, answer)
