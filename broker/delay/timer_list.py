"""`cometmq.v1.Admin/ListTimers`: the messages that wait in the timer wheel, and when they are due.

Reads slots in order of time and the records of their units. A turn of the event loop reads a
bounded number of slots and units, a call a bounded number of turns; the next call continues with
the next slot. Messages beyond the roll window wait in a nearer slot: they are found by their time,
so slots before the beginning are read, too. Recalled messages are left out.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from ...proto import v1, v2
from ...proto.errors import WireError
from ...store.config.store_config import TIMER_SLOTS
from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError
from ...store.format.properties import decode_properties
from ...store.format.record import checked_delivery
from ...store.timer.rules import OUT_MS, REAL_TOPIC, UNIQUE_KEY, is_cancelled, recall_key
from ..metadata.tables import is_system_topic
from ..names.recall_handle import RecallHandle
from .delivery_copy import number
from .timer_intake import due_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ...store.timer.store import TimerStore
    from ...store.timer.unit import TimerUnit
    from .timer_service import TimerService

#: Units that one turn reads: about ten milliseconds of the event loop.
_UNITS_MAX: Final = 1_000
#: Slots that one turn looks at: ten milliseconds, if all were used and none is now.
_SLOTS_MAX: Final = 32_768
#: Turns of one call: a whole wheel without messages, or half a second of units.
_TURNS_MAX: Final = 50
#: Messages of one answer, each at most a few hundred bytes and its names.
_COUNT_MAX: Final = 256
_BOUNDS_MAX: Final = 256
#: `TimerWheel.count` reads this part of the wheel at most.
_COUNTED_MS: Final = 7 * 86_400_000
#: Later than every due time.
_FAR_MS: Final = 1 << 62


class TimerList:
    """The handler."""

    def __init__(self, timers: TimerService, store: MessageStore, broker: str) -> None:
        self._timers = timers
        self._store = store
        self._broker = broker

    async def list_timers(
        self, request: v1.ListTimersRequest, ctx: RequestContext
    ) -> v1.ListTimersResponse:
        """Return waiting messages by slot, and the numbers that are due. Raises WireError."""
        answer = v1.ListTimersResponse(code=v2.OK, message="OK", next_slot_ms=request.slot_ms)
        try:
            await self._timers.settle()
            files, open_ms = self._unread()
            begin_ms = max(request.begin_ms, open_ms)
            bounds = _checked(request.bounds_ms, begin_ms)
            if bounds:
                answer.due.extend(self._timers.due(begin_ms, bounds))
            if request.count <= 0:
                return answer
            for _ in range(_TURNS_MAX):
                if self._list(answer, files, open_ms, request):
                    break
                await asyncio.sleep(0)
                files, open_ms = self._unread()
        except OSError as error:
            text = f"the timer wheel cannot be read: {error}"
            raise WireError(v2.INTERNAL_SERVER_ERROR, text) from error
        return answer

    def _unread(self) -> tuple[TimerStore, int]:
        unread = self._timers.unread()
        if unread is None:
            text = "the timer wheel is not in use: timerWheelEnable is false, or no leader serves"
            raise WireError(v2.UNSUPPORTED, text)
        return unread

    def _list(
        self,
        answer: v1.ListTimersResponse,
        files: TimerStore,
        open_ms: int,
        request: v1.ListTimersRequest,
    ) -> bool:
        """Read the slots of one turn; return whether the answer is full, or the list complete."""
        room, most = _UNITS_MAX, min(request.count, _COUNT_MAX)
        precision_ms = files.wheel.precision_ms
        wheel_end_ms = open_ms + TIMER_SLOTS * precision_ms
        end_ms = min(request.end_ms or wheel_end_ms, wheel_end_ms)
        from_ms = max(answer.next_slot_ms, open_ms)
        stop_ms = min(from_ms + _SLOTS_MAX * precision_ms, end_ms)
        times = files.wheel.used_times(from_ms, stop_ms)
        for at_ms in times:
            units = list(islice(files.units(at_ms), _UNITS_MAX + 1))
            if len(units) > room and room < _UNITS_MAX:
                answer.next_slot_ms = at_ms  # the next turn has room for this slot
                return False
            waiting = self._waiting(files, at_ms, units[:_UNITS_MAX], request)
            if len(answer.timers) + len(waiting) > most and answer.timers:
                answer.next_slot_ms = at_ms
                return True
            answer.timers.extend(waiting[:most])
            answer.left_out = len(units) > _UNITS_MAX or len(waiting) > most
            room -= len(units)
            is_full = answer.left_out or len(answer.timers) >= most
            if is_full or room <= 0:
                answer.next_slot_ms = next(times, stop_ms if stop_ms < end_ms else 0)
                return is_full or not answer.next_slot_ms
        answer.next_slot_ms = stop_ms if stop_ms < end_ms else 0
        return not answer.next_slot_ms

    def _waiting(
        self,
        files: TimerStore,
        slot_ms: int,
        units: Sequence[TimerUnit],
        request: v1.ListTimersRequest,
    ) -> list[v1.WaitingMessage]:
        """Return the messages of a slot that are due in the requested time, not recalled, and not
        of a deleted topic; the oldest first."""
        recalls = [unit for unit in units if unit.cancels and not unit.rolled]
        cancelled = files.cancelled_keys(recalls) | self._timers.recalled_elsewhere
        topic, found = request.topic, []
        for unit in reversed(units):
            if unit.cancels or (slot_ms < request.begin_ms and not unit.rolled):
                continue
            if topic and not self._may_name(unit, topic):
                continue
            one, mark = self._message(unit, slot_ms, files.wheel.precision_ms)
            if unit.rolled and not request.begin_ms <= one.due_ms < (request.end_ms or _FAR_MS):
                continue
            if not topic and is_system_topic(one.topic) and not request.include_system:
                continue
            key = recall_key(one.message_id, mark)
            if topic not in ("", one.topic) or is_cancelled(cancelled, key, one.topic):
                continue
            is_known = one.topic and not is_system_topic(one.topic)
            if not is_known or self._timers.is_of_present(one.topic, unit.physical_offset):
                found.append(one)
        return found

    def _may_name(self, unit: TimerUnit, topic: str) -> bool:
        """Return whether the record may be a message of the topic: a look at its bytes, which costs
        a tenth of decoding it."""
        try:
            data = self._store.record_at(unit.physical_offset)
        except (OffsetOutOfRangeError, RecordFormatError):
            return False
        return f"{REAL_TOPIC}\x01{topic}".encode() in data

    def _message(
        self, unit: TimerUnit, slot_ms: int, precision_ms: int
    ) -> tuple[v1.WaitingMessage, int]:
        """Return the message and its mark."""
        try:
            delivery = checked_delivery(self._store.record_at(unit.physical_offset))
            properties = decode_properties(delivery.properties)
        except (OffsetOutOfRangeError, RecordFormatError):
            # Retention has deleted it, or it is damaged: only its time is known.
            lost = v1.WaitingMessage(due_ms=slot_ms, physical_offset=-1, size=unit.size)
            lost.slot_ms = slot_ms
            return lost, 0
        out_ms = number(properties.get(OUT_MS, "").encode())
        message_id = properties.get(UNIQUE_KEY, "")
        topic = properties.get(REAL_TOPIC, "")
        mark = delivery.prepared_transaction_offset
        handle = RecallHandle(topic, self._broker, out_ms + 1, message_id, max(mark, 0))
        listed = v1.WaitingMessage(
            topic=topic,
            message_id=message_id,
            due_ms=due_ms(delivery.properties, out_ms, precision_ms),
            stored_ms=delivery.store_timestamp_ms,
            physical_offset=unit.physical_offset,
            size=unit.size,
            tag=properties.get("TAGS", ""),
            keys=properties.get("KEYS", "").split(),
            recall_handle=handle.encode() if topic and message_id else "",
            slot_ms=slot_ms,
        )
        return listed, mark


def _checked(bounds_ms: Sequence[int], begin_ms: int) -> list[int]:
    """Return bounds that ascend, none before the beginning. Raises WireError."""
    if len(bounds_ms) > _BOUNDS_MAX:
        raise WireError(v2.BAD_REQUEST, f"at most {_BOUNDS_MAX} bounds_ms are allowed")
    bounds = [max(bound, begin_ms) for bound in bounds_ms]
    if bounds != sorted(bounds):
        raise WireError(v2.BAD_REQUEST, "bounds_ms do not ascend")
    if bounds and bounds[-1] - begin_ms > _COUNTED_MS:
        raise WireError(v2.BAD_REQUEST, "bounds_ms are more than seven days after begin_ms")
    return bounds
