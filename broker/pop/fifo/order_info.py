"""`consumerOrderInfo.json`: which batches of FIFO groups are out, so that a restart keeps the locks.

Form: RocketMQ's (broker semantics, section 1.9; store format, section 12.3), so that either broker goes
on with what the other left. Written a few seconds after a change and at the stop, by a leader alone.
Losing the file opens the queues early: their messages come again, from the first that is not
acknowledged, in their order.

Promises: a batch that the log does not hold any more (its end was cut off by a crash) is not taken
over; what idles for a day, or belongs to nobody, is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....store.config.catalog import number_table
from ...metadata import json_file
from ..retry import NORMAL
from .ordered_group import Batch, OrderedGroup

if TYPE_CHECKING:
    from ...node import Node
    from ..reader import Core, PopReader
    from ..subscription import Subscription

log = logging.getLogger(__name__)

_FILE = "consumerOrderInfo.json"
_SEPARATOR = "@"
IDLE_MAX_MS = 24 * 3_600_000
_COST = 19
"""After a text is made the next one waits for so many times what it took."""


class OrderInfo:
    """The file of one node."""

    def __init__(self, node: Node, subscriptions: Callable[[], Iterable[Subscription]]) -> None:
        self._node = node
        self._subscriptions = subscriptions
        self._path: Path = node.store.config.root / "config" / _FILE
        self._waiting: dict[str, dict[int, Batch]] = {}
        """Of groups that nobody has asked for yet, by topic and group."""
        self._saver: json_file.Saver | None = None
        self._leads = False
        self._text = b""
        """Of the last snapshot."""
        self._changed = True
        self._not_before_ns = 0
        self._heard = b""
        """What the leader said last, on a follower; taken in when somebody asks for it."""

    def begin(self) -> None:
        """Write the file from now on; needs the running loop."""
        self._take_in()
        # What was said in an earlier term may have been taken back in another's.
        self._leads = self._changed = True
        if self._saver is None:
            period_s = self._node.config.flush_consumer_offset_interval / 1000
            self._saver = json_file.Saver(self._path, self.render, period_s)

    def end(self) -> None:
        """Somebody else leads: what this node knew of locks is of no use."""
        self._waiting.clear()
        self._leads = False

    def snapshot(self) -> bytes:
        """The text, for the followers: the same object until something changes.

        Making it costs the loop at most a twentieth of its time, however much there is.
        """
        clock = self._node.clock
        begin_ns = clock.steady_ns()
        if (not self._changed and self._text) or begin_ns < self._not_before_ns:
            return self._text
        self._changed = False
        self._text = self.render().encode()
        end_ns = clock.steady_ns()
        self._not_before_ns = end_ns + _COST * (end_ns - begin_ns)
        return self._text

    def hear(self, payload: bytes) -> None:
        """What the leader says is out."""
        self._heard = payload

    def _take_in(self) -> None:
        """Lock what the leader had locked when it was heard last."""
        heard, self._heard = self._heard, b""
        if not heard:
            return
        try:
            found = batches_of(json_file.loads(heard.decode()))
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("order_info.refused error=%s", error)
            return
        self._waiting = self._usable(found)

    def load(self) -> None:
        """Take over what the file says, and go on writing it."""
        self.begin()
        found = json_file.load(self._path, batches_of)
        if found is None:
            return
        self._waiting.update(self._usable(batches_of(found)))

    def _usable(self, found: Mapping[str, Mapping[int, Batch]]) -> dict[str, dict[int, Batch]]:
        """What is not too old, and lies in the log."""
        usable: dict[str, dict[int, Batch]] = {}
        for name, queues in found.items():
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
        """A batch was given out, acknowledged or hidden further."""
        self._changed = True
        if self._leads and self._saver is not None:
            self._saver.changed()

    async def close(self) -> None:
        """Write what is left."""
        if self._saver is not None:
            await self._saver.close()
            self._saver = None

    def restore(self, core: OrderedGroup, reader: PopReader) -> None:
        """Lock the queues of a group again that were locked before the restart."""
        self._take_in()
        topic = self._node.metadata.topic(core.topic)
        queues = self._waiting.pop(f"{core.topic}{_SEPARATOR}{core.group}", {})
        for queue_id, batch in queues.items():
            if topic is not None and queue_id >= topic.read_queues:
                continue  # a lite topic has no entry in the tables, and one queue
            queue = reader.ordered(core, (NORMAL, queue_id))
            if queue.committed > batch.offsets[-1]:
                continue
            batch.acked.update(o for o in batch.offsets if o < queue.committed)
            queue.batch = batch
            queue.settle()

    def render(self) -> str:
        """The text of the file."""
        table: dict[str, dict[int, dict[str, Any]]] = {
            name: {queue_id: batch_to_json(batch) for queue_id, batch in sorted(queues.items())}
            for name, queues in self._waiting.items()
        }
        for sub in self._subscriptions():
            queues = self._batches(sub.core)
            if queues:
                table[f"{sub.core.topic}{_SEPARATOR}{sub.core.group}"] = queues
        return json_file.dumps(
            {
                "orderInfoCount": len(table),
                "orderedConsumptionLevel": "QUEUE",
                "table": table,
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
        return self._node.clock.wall_ms() - idle_since_ms < IDLE_MAX_MS

    def _end(self, topic: str, queue_id: int) -> int:
        return self._node.store.next_offset(topic, queue_id)


def batch_to_json(batch: Batch) -> dict[str, Any]:
    """One queue's entry, its fields in alphabetical order."""
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
    if batch.visible:
        bean["ot"] = dict(sorted(batch.visible.items()))
    bean["popTime"] = batch.pop_ms
    return bean


def batch_of(bean: Mapping[str, Any]) -> Batch | None:
    """The batch of a queue's entry; None for one without messages. Raises ValueError, TypeError."""
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
    )


def batches_of(content: Mapping[Any, Any]) -> dict[str, dict[int, Batch]]:
    """The batches by `topic@group` and queue. Raises ValueError, TypeError, AttributeError."""
    found: dict[str, dict[int, Batch]] = {}
    for name, queues in (content.get("table") or {}).items():
        batches = {int(queue_id): batch_of(bean) for queue_id, bean in queues.items()}
        found[str(name)] = {
            queue_id: batch for queue_id, batch in batches.items() if batch is not None
        }
    return found
