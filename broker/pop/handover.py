"""Pop handover: what a follower delivered and acknowledged without a leader,
`<store>/ha/pop-handover`.

Only a follower writes the file, every two seconds while it serves, so that its own restart does not
deliver messages in flight again. When a leader exists again, the state is sent to it (or used
locally, if this replica is elected: `takeover.py`), and the file is deleted. Format: magic, CRC-32
of the rest, a `v1.PopHandover`. The file is derived and bounded: a queue that does not fit, or a
damaged file, costs repeated deliveries, never a message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

from ...proto import v1
from ..names.delivery import Delivery, Key
from .fifo.ordered_group import OrderedGroup, OrderedQueue
from .group import PopGroup
from .queue import PopQueue

if TYPE_CHECKING:
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime

logger = logging.getLogger(__name__)

_MAGIC = b"CMQPOP1\n"
_CRC_BYTES = 4
_WRITE_PERIOD_S = 2.0
#: Deliveries and acknowledged ranges in the file: about 60 ms of work for each write.
ENTRIES_MAX = 50_000

Core = PopGroup | OrderedGroup


class HasCore(Protocol):
    """The part of a subscription that is saved."""

    core: Core


class Handover:
    """The file of a follower; inactive on a leader."""

    def __init__(
        self,
        runtime: Runtime,
        root: Path,
        leadership: Leadership,
        subscriptions: Callable[[], Iterable[HasCore]],
    ) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._broker_id = runtime.config.broker_id
        self._leadership = leadership
        self._subscriptions = subscriptions
        self._path = root / "ha" / "pop-handover"
        self._saved: dict[tuple[str, str], list[v1.PopQueueState]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._served = False
        #: Deliveries from the time before the present leader; sent to it once.
        self._unsent = b""

    def changed(self) -> None:
        """Schedule a write: the pop state changed."""
        if self._timer is None and not self._leadership.pop_leads:
            self._served = True
            self._timer = self._loop.call_later(_WRITE_PERIOD_S, self._write)

    def restore(self, core: Core, open_queue: Callable[[Core, Key], object]) -> set[Key]:
        """Restore a group's state from before the restart; return the restored queues."""
        known: set[Key] = set()
        if self._leadership.pop_leads:
            return known
        if self._saved is None:
            self._saved = self._read()
        topics = core.topics if isinstance(core, PopGroup) else (core.topic,)
        for kind, topic in enumerate(topics):
            for state in self._saved.pop((topic, core.group), ()):
                key = kind, state.queue_id
                open_queue(core, key)
                if load_queue(core, key, state):
                    known.add(key)
        return known

    def discard(self) -> v1.PopHandover:
        """Delete the file, as a leader exists again; return what was delivered without one."""
        given_out = self._all()
        self.close(write=False)
        self._saved = {}
        self._served = False
        self._path.unlink(missing_ok=True)
        return given_out

    def leave(self) -> None:
        """Delete the file and keep its content for the new leader."""
        given_out = self.discard()
        if given_out.queues:
            self._unsent = given_out.SerializeToString()

    def snapshot(self) -> bytes | None:
        """Return the content for the leader of this replica, once; None if there is none."""
        if self._leadership.pop_leads:
            return None
        unsent, self._unsent = self._unsent, b""
        given_out = self._all()
        if given_out.queues:
            unsent = given_out.SerializeToString()
        self._saved = {}
        self._served = False
        return unsent or None

    def _all(self) -> v1.PopHandover:
        """Return what was delivered without a leader, also before a restart."""
        given_out = self._state() if self._served else v1.PopHandover()
        if self._saved is None:
            self._saved = self._read()
        for states in self._saved.values():
            given_out.queues.extend(states)
        return given_out

    def _read(self) -> dict[tuple[str, str], list[v1.PopQueueState]]:
        handover = read_file(self._path)
        if handover is not None:
            set_back(handover, self._clock.forward_ms())
        return _by_group(handover)

    def close(self, write: bool = True) -> None:
        """Write pending changes."""
        if self._timer is not None:
            self._timer.cancel()
            if write:
                self._write()
            self._timer = None

    def _state(self) -> v1.PopHandover:
        handover = v1.PopHandover(written_at_ms=self._clock.forward_ms())
        handover.replica.broker_id = self._broker_id
        room = ENTRIES_MAX
        for sub in self._subscriptions():
            for state in dump_core(sub.core):
                room -= len(state.deliveries) + len(state.acked)
                if room < 0:
                    break
                handover.queues.append(state)
        return handover

    def _write(self) -> None:
        self._timer = None
        try:
            write_file(self._path, self._state())
        except OSError as error:
            # The file matters only for a restart before the leader is back.
            logger.warning("pop_handover.write_failed path=%s error=%s", self._path, error)


def dump_core(core: Core) -> Iterator[v1.PopQueueState]:
    """Yield the complete state of each queue."""
    for queue in core.queues.values():
        state = v1.PopQueueState(
            group=core.group,
            topic=queue.topic if isinstance(queue, PopQueue) else core.topic,
            queue_id=queue.queue_id,
            consumer_offset=queue.committed,
            next_offset=queue.next_read,
        )
        deliveries: Iterable[Delivery]
        if isinstance(queue, PopQueue):
            deliveries = queue.unacked.values()
            read = range(queue.committed, queue.next_read)
            acked = [o for o in read if o not in queue.unacked] + sorted(queue.skips)
        else:
            deliveries, acked = _dump_batch(queue)
        for delivery in deliveries:
            state.deliveries.add(
                queue_offset=delivery.offset,
                attempt=delivery.attempt,
                pop_time_ms=delivery.pop_ms,
                visible_at_ms=delivery.visible_ms,
                client_id=delivery.owner,
            )
        for first, last in _runs(acked):
            state.acked.add(first=first, last=last)
        yield state


def _dump_batch(queue: OrderedQueue) -> tuple[Iterable[Delivery], list[int]]:
    batch = queue.batch
    acked = set(queue.skips)
    if batch is None:
        return (), sorted(acked)
    acked.update(offset for offset in batch.acked if offset > queue.committed)
    deliveries = [
        Delivery(o, batch.pop_ms, batch.visible.get(o, batch.visible_ms), batch.attempts[o])
        for o in batch.unacked()
    ]
    return deliveries, sorted(acked)


def load_queue(core: Core, key: Key, state: v1.PopQueueState) -> bool:
    """Load a saved state into a queue that was just opened at its consumer offset.

    Return whether it applies: another replica may have advanced further since.
    """
    queue = core.queues[key]
    if isinstance(core, OrderedGroup) or isinstance(queue, OrderedQueue):
        assert isinstance(queue, OrderedQueue)
        # The lock is not restored: delivery restarts at the first unacknowledged message.
        queue.advance_to(state.consumer_offset)
        queue.skips.update(o for o in acknowledged(state) if o > queue.committed)
        return True
    if state.next_offset < queue.committed:
        return False
    queue.advance_to(state.consumer_offset)
    for saved in state.deliveries:
        # The offset may pass what the leader's journal holds; everything else below it is done.
        passed = saved.queue_offset < state.consumer_offset
        if passed or saved.queue_offset >= queue.committed:
            core.restore(
                queue,
                Delivery(
                    saved.queue_offset,
                    saved.pop_time_ms,
                    saved.visible_at_ms,
                    saved.attempt,
                    saved.client_id,
                    # A renewed message has no other valid handle.
                    saved.pop_time_ms if saved.client_id else 0,
                    stored=passed,
                ),
            )
    queue.next_read = max(queue.next_read, state.next_offset)
    queue.skips.update(o for o in acknowledged(state) if o >= queue.next_read)
    queue.settle()
    return True


def set_back(handover: v1.PopHandover, now_ms: int) -> None:
    """Move the visible times back with the clock if it was set back since the writing, or if the
    writer's was ahead: no message is hidden for longer than it was then."""
    back_ms = handover.written_at_ms - now_ms
    if back_ms > 0:
        for state in handover.queues:
            for delivery in state.deliveries:
                delivery.visible_at_ms -= back_ms


def acknowledged(state: v1.PopQueueState) -> Iterator[int]:
    """Yield the acknowledged offsets, at most as many as a file may hold."""
    left = ENTRIES_MAX
    for run in state.acked:
        for offset in range(run.first, run.last + 1):
            if left == 0:
                return
            left -= 1
            yield offset


def _runs(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of each run of an ascending list."""
    first = last = -1
    for offset in offsets:
        if offset == last + 1 and first >= 0:
            last = offset
            continue
        if first >= 0:
            yield first, last
        first = last = offset
    if first >= 0:
        yield first, last


def _by_group(
    handover: v1.PopHandover | None,
) -> dict[tuple[str, str], list[v1.PopQueueState]]:
    by_subscription: dict[tuple[str, str], list[v1.PopQueueState]] = {}
    for state in handover.queues if handover is not None else ():
        by_subscription.setdefault((state.topic, state.group), []).append(state)
    return by_subscription


def write_file(path: Path, handover: v1.PopHandover) -> None:
    """Replace the file without a flush: its loss costs only repeated deliveries."""
    content = handover.SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(_MAGIC + zlib.crc32(content).to_bytes(_CRC_BYTES, "big") + content)
    os.replace(temporary, path)


def read_file(path: Path) -> v1.PopHandover | None:
    """Return the handover; None if the file is missing or damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head = len(_MAGIC) + _CRC_BYTES
    content = data[head:]
    crc = int.from_bytes(data[len(_MAGIC) : head], "big")
    if len(data) < head or not data.startswith(_MAGIC) or crc != zlib.crc32(content):
        logger.warning("pop_handover.damaged path=%s", path)
        return None
    try:
        return v1.PopHandover.FromString(content)
    except DecodeError as error:
        logger.warning("pop_handover.damaged path=%s error=%s", path, error)
        return None
