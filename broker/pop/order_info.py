"""Order info: the delivered batches of FIFO groups in `consumerOrderInfo.json`.

It keeps queues locked across a restart. Format: RocketMQ's (docs/formats/broker-semantics.md,
section 1.9; docs/formats/store-format.md, section 12.3), so that either broker continues with the
other's file. Only a leader writes it, a few seconds after a change and at the stop. Without the
file the queues unlock early: their messages are delivered again, in order, from the first that is
not acknowledged.

Promises: a batch that the log no longer holds (a crash cut the log's end) is not restored; a batch
that is idle for a day, or whose group is unknown, is dropped. If the clock was set back since the
file was written, no lock is longer than it was then: all times are moved back with the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...store.config.catalog import number_table
from ..base import json_file
from ..names.retry import NORMAL
from .fifo.ordered_group import Batch, OrderedGroup

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata
    from .reader import PopReader
    from .subscription import Core, Subscription

logger = logging.getLogger(__name__)

_FILE = "consumerOrderInfo.json"
_SEPARATOR = "@"
#: A key of CometMQ's, which Apache ignores: what earlier batches acknowledged.
_ACKED_BEFORE = "ackedBefore"
#: A key of CometMQ's: the time at which the text was written.
_WRITTEN = "writtenMs"
IDLE_MAX_MS = 24 * 3_600_000
#: Pause after a snapshot, as a multiple of the time that rendering it took.
_COST = 19


class OrderInfo:
    """The file, and its copy for the followers."""

    def __init__(self, runtime: Runtime, store: MessageStore, metadata: Metadata) -> None:
        self._clock = runtime.clock
        self._period_s = runtime.config.flush_consumer_offset_interval / 1000
        self._store = store
        self._metadata = metadata
        self._sources: list[Callable[[], Iterable[Subscription]]] = []
        self._path: Path = store.config.root / "config" / _FILE
        #: Batches of groups without a state yet, by topic and group.
        self._waiting: dict[str, dict[int, Batch]] = {}
        self._saver: json_file.Saver | None = None
        self._leads = False
        #: The last snapshot.
        self._text = b""
        self._changed = True
        self._not_before_ns = 0
        #: The leader's last snapshot, on a follower; parsed on first use.
        self._received = b""

    def add_source(self, subscriptions: Callable[[], Iterable[Subscription]]) -> None:
        """Include the FIFO states that `subscriptions` returns."""
        self._sources.append(subscriptions)

    def lead(self) -> None:
        """Start to write the file; needs the running loop."""
        self._parse_received()
        # Another leader may have replaced a snapshot of an earlier term.
        self._leads = self._changed = True
        if self._saver is None:
            self._saver = json_file.Saver(self._path, self.render, self._period_s)

    def follow(self) -> None:
        """Stop to write: another replica leads."""
        self._waiting.clear()
        self._leads = False

    def snapshot(self) -> bytes:
        """Return the text for the followers: the same object until something changes.

        Rendering takes at most a twentieth of the loop's time, whatever its size.
        """
        clock = self._clock
        begin_ns = clock.steady_ns()
        if (not self._changed and self._text) or begin_ns < self._not_before_ns:
            return self._text
        self._changed = False
        self._text = self.render().encode()
        end_ns = clock.steady_ns()
        self._not_before_ns = end_ns + _COST * (end_ns - begin_ns)
        return self._text

    def receive(self, payload: bytes) -> None:
        """Store the leader's snapshot, on a follower."""
        self._received = payload

    def _parse_received(self) -> None:
        """Take over the locks of the leader's last snapshot."""
        received, self._received = self._received, b""
        if not received:
            return
        try:
            content = json_file.loads(received.decode())
            batches_by_topic, written_ms = batches_of(content), written_ms_of(content)
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("order_info.refused error=%s", error)
            return
        self._waiting = self._usable(batches_by_topic, written_ms)

    def load(self) -> None:
        """Read the file, and start to write it."""
        self.lead()
        content = json_file.load(self._path, batches_of)
        if content is None:
            return
        self._waiting.update(self._usable(batches_of(content), written_ms_of(content)))

    def _usable(
        self, batches_by_topic: Mapping[str, Mapping[int, Batch]], written_ms: int
    ) -> dict[str, dict[int, Batch]]:
        """Return the batches that are recent and in the log, in this process' time."""
        usable: dict[str, dict[int, Batch]] = {}
        batches = [batch for queues in batches_by_topic.values() for batch in queues.values()]
        # A file of Apache's has no time: it is no older than its newest batch.
        newest_ms = max([written_ms, *(batch.since_ms for batch in batches)])
        if (back_ms := newest_ms - self._clock.forward_ms()) > 0:
            for batch in batches:
                batch.visible_ms -= back_ms
                batch.since_ms -= back_ms
                batch.visible = {offset: ms - back_ms for offset, ms in batch.visible.items()}
        for name, queues in batches_by_topic.items():
            topic, _, _ = name.partition(_SEPARATOR)
            kept = {
                queue_id: batch
                for queue_id, batch in queues.items()
                if self._current(batch) and batch.next_read <= self._end(topic, queue_id)
            }
            if kept:
                usable[name] = kept
        return usable

    def changed(self) -> None:
        """Schedule a write: a batch was delivered, acknowledged or hidden longer."""
        self._changed = True
        if self._leads and self._saver is not None:
            self._saver.changed()

    async def close(self) -> None:
        """Write pending changes."""
        if self._saver is not None:
            await self._saver.close()
            self._saver = None

    def forget(self, topic: str = "", group: str = "") -> None:
        """Drop what waits of a deleted topic or group, or of one on the other."""
        self._parse_received()
        for name in list(self._waiting):
            of_topic, _, of_group = name.partition(_SEPARATOR)
            if topic in ("", of_topic) and group in ("", of_group):
                del self._waiting[name]
                self.changed()

    def restore(self, core: OrderedGroup, reader: PopReader) -> None:
        """Lock the queues of a group that were locked before the restart."""
        self._parse_received()
        topic, group = self._metadata.topic(core.topic), self._metadata.group(core.group)
        now_ms = self._clock.forward_ms()
        queues = self._waiting.pop(f"{core.topic}{_SEPARATOR}{core.group}", {})
        for queue_id, batch in queues.items():
            if topic is not None and queue_id >= topic.read_queues:
                continue  # a lite topic is not in the tables; it has one queue
            if group is not None and group.is_younger(batch.pop_ms, now_ms):
                continue  # of a deleted group
            queue = reader.ordered(core, (NORMAL, queue_id))
            if queue.committed > batch.offsets[-1]:
                continue
            batch.acked.update(o for o in batch.offsets if o < queue.committed)
            queue.batch = batch
            queue.settle()

    def render(self) -> str:
        """Return the text of the file."""
        table: dict[str, dict[int, dict[str, Any]]] = {
            name: {queue_id: batch_to_json(batch) for queue_id, batch in sorted(queues.items())}
            for name, queues in self._waiting.items()
        }
        for subscriptions in self._sources:
            for sub in subscriptions():
                queues = self._batches(sub.core)
                if queues:
                    table[f"{sub.core.topic}{_SEPARATOR}{sub.core.group}"] = queues
        return json_file.dumps(
            {
                "orderInfoCount": len(table),
                "orderedConsumptionLevel": "QUEUE",
                "table": table,
                _WRITTEN: self._clock.forward_ms(),
            }
        )

    def _batches(self, core: Core) -> dict[int, dict[str, Any]]:
        if not isinstance(core, OrderedGroup):
            return {}
        return {
            queue_id: batch_to_json(queue.batch)
            for (_, queue_id), queue in sorted(core.queues.items())
            if queue.batch is not None and self._current(queue.batch)
        }

    def _current(self, batch: Batch) -> bool:
        idle_since_ms = max(batch.since_ms, batch.unblocked_ms() or 0)
        return self._clock.forward_ms() - idle_since_ms < IDLE_MAX_MS

    def _end(self, topic: str, queue_id: int) -> int:
        return self._store.writer.next_offset(topic, queue_id)


def batch_to_json(batch: Batch) -> dict[str, Any]:
    """Return the entry of one queue, its fields in alphabetical order."""
    first = batch.offsets[0]
    bean: dict[str, Any] = {
        "cm": sum(1 << at for at, offset in enumerate(batch.offsets) if offset in batch.acked),
        "i": batch.visible_ms - batch.pop_ms,
        "l": batch.since_ms,
        "o": [first, *(offset - first for offset in batch.offsets[1:])],
        "oc": {offset: times - 1 for offset, times in batch.attempts.items() if times > 1},
    }
    if batch.attempt_id:
        bean = {"a": batch.attempt_id, **bean}
    if batch.acked_before:
        bean[_ACKED_BEFORE] = sorted(batch.acked_before)
    if batch.visible:
        bean["ot"] = dict(sorted(batch.visible.items()))
    bean["popTime"] = batch.pop_ms
    return bean


def batch_of(bean: Mapping[str, Any]) -> Batch | None:
    """Return the batch of a queue's entry; None if it has no messages.

    Raises ValueError, TypeError.
    """
    distances = [int(distance) for distance in bean.get("o") or ()]
    if not distances:
        return None
    offsets = [distances[0], *(distances[0] + distance for distance in distances[1:])]
    if sorted(set(offsets)) != offsets or offsets[0] < 0:
        raise ValueError(f"offsets of a batch are not ascending: {offsets}")
    pop_ms = int(bean.get("popTime", 0))
    counts = number_table(bean.get("oc") or {})
    acked = int(bean.get("cm", 0))
    return Batch(
        pop_ms,
        pop_ms + int(bean.get("i") or 0),
        str(bean.get("a") or ""),
        offsets,
        offsets[-1] + 1,
        {offset: max(0, counts.get(offset, 0)) + 1 for offset in offsets},
        "",
        int(bean.get("l") or pop_ms),
        {offset for at, offset in enumerate(offsets) if acked >> at & 1},
        {
            offset: when
            for offset, when in number_table(bean.get("ot") or {}).items()
            if offset in offsets
        },
        acked_before={int(offset) for offset in bean.get(_ACKED_BEFORE) or ()},
    )


def written_ms_of(content: Mapping[Any, Any]) -> int:
    """Return when the text was written; 0 if unknown. Raises ValueError, TypeError."""
    return int(content.get(_WRITTEN) or 0)


def batches_of(content: Mapping[Any, Any]) -> dict[str, dict[int, Batch]]:
    """Return the batches by `topic@group` and queue. Raises ValueError, TypeError,
    AttributeError."""
    batches_by_topic: dict[str, dict[int, Batch]] = {}
    for name, queues in (content.get("table") or {}).items():
        batches = {int(queue_id): batch_of(bean) for queue_id, bean in queues.items()}
        batches_by_topic[str(name)] = {
            queue_id: batch for queue_id, batch in batches.items() if batch is not None
        }
    return batches_by_topic
