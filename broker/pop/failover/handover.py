"""What a follower gave out and saw acknowledged while its leader was gone: `<store>/ha/pop-handover`.

Only a follower writes it, every two seconds while it serves, so that its own restart does not deliver
again what is in flight. When there is a leader again, it goes there (or stays here, where this replica is
elected itself: `takeover.py`), and the file is deleted (design, section 8.4). Form: magic, CRC-32 of the rest, a `v1.PopHandover`. The file is
derived and bounded: a queue that does not fit, or a file that is damaged, costs deliveries that are
repeated, never a message.
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

from ....proto import v1
from ..delivery import Delivery, Key
from ..fifo.ordered_group import OrderedGroup, OrderedQueue
from ..group import PopGroup
from ..queue import PopQueue

if TYPE_CHECKING:
    from ...node import Node

log = logging.getLogger(__name__)

_MAGIC = b"CMQPOP1\n"
_CRC_BYTES = 4
_WRITE_PERIOD_S = 2.0
ENTRIES_MAX = 50_000
"""Deliveries and acknowledged ranges in the file: about 60 ms of work each time it is written."""

Core = PopGroup | OrderedGroup


class HasCore(Protocol):
    """What this module needs of a subscription."""

    core: Core


class Handover:
    """The file of one follower; on a leader it does nothing."""

    def __init__(self, node: Node, subscriptions: Callable[[], Iterable[HasCore]]) -> None:
        self._node = node
        self._subscriptions = subscriptions
        self._path = node.store.config.root / "ha" / "pop-handover"
        self._saved: dict[tuple[str, str], list[v1.PopQueueState]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._served = False
        self._left = b""
        """What this replica gave out before the present leader was there; sent to it once."""

    def changed(self) -> None:
        """Pop state changed."""
        if self._timer is None and not self._node.leadership.pop_leads:
            self._served = True
            self._timer = self._node.loop.call_later(_WRITE_PERIOD_S, self._write)

    def restore(self, core: Core, open_queue: Callable[[Core, Key], object]) -> set[Key]:
        """Take over what this node knew of a group before its restart; returns of which queues."""
        known: set[Key] = set()
        if self._node.leadership.pop_leads:
            return known
        if self._saved is None:
            self._saved = _by_group(read_file(self._path))
        topics = core.topics if isinstance(core, PopGroup) else (core.topic,)
        for kind, topic in enumerate(topics):
            for state in self._saved.pop((topic, core.group), ()):
                key = kind, state.queue_id
                open_queue(core, key)
                if load_queue(core, key, state):
                    known.add(key)
        return known

    def discard(self) -> v1.PopHandover:
        """Somebody leads again; returns what was given out here while nobody did."""
        given_out = self._all()
        self.close(write=False)
        self._saved = {}
        self._served = False
        self._path.unlink(missing_ok=True)
        return given_out

    def leave(self) -> None:
        """Somebody else leads: forget it here, and keep it until it is sent there."""
        given_out = self.discard()
        if given_out.queues:
            self._left = given_out.SerializeToString()

    def snapshot(self) -> bytes | None:
        """For the leader that this replica follows now; None: there is nothing, or it has been sent."""
        if self._node.leadership.pop_leads:
            return None
        left, self._left = self._left, b""
        given_out = self._all()
        if given_out.queues:
            left = given_out.SerializeToString()
        self._saved = {}
        self._served = False
        return left or None

    def _all(self) -> v1.PopHandover:
        """What was given out since nobody leads, and before a restart meanwhile."""
        given_out = self._state() if self._served else v1.PopHandover()
        if self._saved is None:
            self._saved = _by_group(read_file(self._path))
        for states in self._saved.values():
            given_out.queues.extend(states)
        return given_out

    def close(self, write: bool = True) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
            if write:
                self._write()
            self._timer = None

    def _state(self) -> v1.PopHandover:
        handover = v1.PopHandover(written_at_ms=self._node.clock.wall_ms())
        handover.replica.broker_id = self._node.config.broker_id
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
            # Only a restart before the leader is back would have read it.
            log.warning("pop_handover.write_failed path=%s error=%s", self._path, error)


def dump_core(core: Core) -> Iterator[v1.PopQueueState]:
    """The state of each queue, complete or not at all."""
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
    """Put a saved state into a queue that was just opened at its consumer offset.

    Returns whether it is of use: another replica may have been further since.
    """
    queue = core.queues[key]
    if isinstance(core, OrderedGroup) or isinstance(queue, OrderedQueue):
        assert isinstance(queue, OrderedQueue)
        # The lock is not restored: its messages come again from the first un-acknowledged one.
        queue.advance_to(state.consumer_offset)
        queue.skips.update(o for o in acknowledged(state) if o > queue.committed)
        return True
    if state.next_offset < queue.committed:
        return False
    queue.advance_to(state.consumer_offset)
    for saved in state.deliveries:
        # The offset passes what the leader's journal has; all else below it is done.
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
                    # Of a message that is renewed no other handle is out.
                    saved.pop_time_ms if saved.client_id else 0,
                    stored=passed,
                ),
            )
    queue.next_read = max(queue.next_read, state.next_offset)
    queue.skips.update(o for o in acknowledged(state) if o >= queue.next_read)
    queue.settle()
    return True


def acknowledged(state: v1.PopQueueState) -> Iterator[int]:
    """The acknowledged offsets, at most as many as a file may describe."""
    left = ENTRIES_MAX
    for run in state.acked:
        for offset in range(run.first, run.last + 1):
            if left == 0:
                return
            left -= 1
            yield offset


def _runs(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of an ascending list."""
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
    found: dict[tuple[str, str], list[v1.PopQueueState]] = {}
    for state in handover.queues if handover is not None else ():
        found.setdefault((state.topic, state.group), []).append(state)
    return found


def write_file(path: Path, handover: v1.PopHandover) -> None:
    """Replace the file; not flushed, because its loss costs only repeated deliveries."""
    content = handover.SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(_MAGIC + zlib.crc32(content).to_bytes(_CRC_BYTES, "big") + content)
    os.replace(temporary, path)


def read_file(path: Path) -> v1.PopHandover | None:
    """The hand-over, or None for a file that is missing or damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head = len(_MAGIC) + _CRC_BYTES
    content = data[head:]
    crc = int.from_bytes(data[len(_MAGIC) : head], "big")
    if len(data) < head or not data.startswith(_MAGIC) or crc != zlib.crc32(content):
        log.warning("pop_handover.damaged path=%s", path)
        return None
    try:
        return v1.PopHandover.FromString(content)
    except DecodeError as error:
        log.warning("pop_handover.damaged path=%s error=%s", path, error)
        return None
