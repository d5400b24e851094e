"""`cometmq.v1.Test`: the wall clock, injected faults and counters, for tests.

Promises: served only with `testHooks=true`; moves the wall clock, never the steady clock, so that
leases and deadlines stay untouched; an invalid fault is BAD_REQUEST and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...front.faults import Fault, FaultAction, FaultKind, FaultTable
from ...proto import v1, v2
from ...proto.errors import WireError
from ..base.config import split_addresses

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...store.format.disk import Disk
    from ..base.runtime import Runtime

_KINDS: dict[int, FaultKind] = {v1.RPC: FaultKind.RPC, v1.DISK: FaultKind.DISK}
_ACTIONS: dict[int, FaultAction] = {
    v1.FAIL: FaultAction.FAIL,
    v1.DELAY: FaultAction.DELAY,
    v1.DROP: FaultAction.DROP,
}
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_ACTION_NUMBERS = {action: number for number, action in _ACTIONS.items()}
# Year 9999, the last one that a protobuf timestamp can hold.
_WALL_MS_MAX = 253_402_300_799_000

StaleRoute = Callable[[tuple[str, int] | None], None]


class FaultService:
    """Handlers of the service."""

    def __init__(
        self, runtime: Runtime, disk: Disk, faults: FaultTable, name_stale_route: StaleRoute
    ) -> None:
        """`name_stale_route` makes routes name one address; None restores the true routes."""
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._clock_listeners = runtime.clock_listeners
        self._disk = disk
        self._faults = faults
        self._name_stale_route = name_stale_route

    def get_clock(self, request: v1.GetClockRequest, ctx: RequestContext) -> v1.ClockResponse:
        """Return both readings of the clock."""
        clock = self._clock
        return v1.ClockResponse(
            code=v2.OK, message="OK", wall_ms=clock.wall_ms(), steady_ns=clock.steady_ns()
        )

    def set_clock(self, request: v1.SetClockRequest, ctx: RequestContext) -> v1.ClockResponse:
        """Set the wall clock."""
        self._move_to(request.wall_ms)
        return self.get_clock(v1.GetClockRequest(), ctx)

    def advance_clock(
        self, request: v1.AdvanceClockRequest, ctx: RequestContext
    ) -> v1.ClockResponse:
        """Advance the wall clock by a duration."""
        self._move_to(self._clock.wall_ms() + request.ms)
        return self.get_clock(v1.GetClockRequest(), ctx)

    def put_fault(self, request: v1.PutFaultRequest, ctx: RequestContext) -> v1.PutFaultResponse:
        """Add a fault, or replace the one with its id."""
        fault = request.fault
        if fault.kind not in _KINDS or fault.action not in _ACTIONS:
            raise WireError(v2.BAD_REQUEST, "a fault needs a kind and an action")
        try:
            self._faults.put(
                Fault(
                    fault.id,
                    _KINDS[fault.kind],
                    fault.target,
                    _ACTIONS[fault.action],
                    fault.code,
                    fault.delay_ms,
                    fault.rate,
                    fault.remaining,
                )
            )
        except ValueError as error:
            raise WireError(v2.BAD_REQUEST, str(error)) from error
        return v1.PutFaultResponse(code=v2.OK, message="OK")

    def list_faults(
        self, request: v1.ListFaultsRequest, ctx: RequestContext
    ) -> v1.ListFaultsResponse:
        """Return the faults with their hits."""
        answer = v1.ListFaultsResponse(code=v2.OK, message="OK")
        for fault in self._faults.list():
            answer.faults.add(
                id=fault.id,
                kind=v1.FaultKind.ValueType(_KIND_NUMBERS[fault.kind]),
                target=fault.target,
                action=v1.FaultAction.ValueType(_ACTION_NUMBERS[fault.action]),
                code=fault.code,
                delay_ms=fault.delay_ms,
                rate=fault.rate,
                remaining=fault.remaining,
                hits=fault.hits,
            )
        return answer

    def clear_faults(
        self, request: v1.ClearFaultsRequest, ctx: RequestContext
    ) -> v1.ClearFaultsResponse:
        """Remove faults by id, or all of them."""
        cleared = self._faults.clear(*request.ids)
        return v1.ClearFaultsResponse(code=v2.OK, message="OK", cleared=cleared)

    def get_counters(
        self, request: v1.GetCountersRequest, ctx: RequestContext
    ) -> v1.GetCountersResponse:
        """Return disk calls by name and some totals."""
        counters = self._counters
        return v1.GetCountersResponse(
            code=v2.OK,
            message="OK",
            disk_calls=dict(self._disk.counts),
            counters={
                "messages_sent": sum(total.messages for total in counters.sent.values()),
                "messages_received": sum(total.messages for total in counters.received.values()),
                "messages_acked": counters.acked,
                "redelivered_without_handover": counters.redelivered_without_handover,
            },
        )

    def set_routes(self, request: v1.SetRoutesRequest, ctx: RequestContext) -> v1.SetRoutesResponse:
        """Make routes name one address, or the true addresses again."""
        stale = None
        if request.address:
            try:
                (stale,) = split_addresses(request.address)
            except ValueError as error:
                raise WireError(v2.BAD_REQUEST, str(error)) from error
        self._name_stale_route(stale)
        return v1.SetRoutesResponse(code=v2.OK, message="OK")

    def _move_to(self, wall_ms: int) -> None:
        if not 0 <= wall_ms <= _WALL_MS_MAX:
            raise WireError(v2.BAD_REQUEST, f"{wall_ms} ms is not a time between 1970 and 9999")
        self._clock.set_wall_ms(wall_ms)
        self._clock_listeners.notify()
