"""The store directory that random damage is done to, and what a reader must get from it.

A real broker writes the directory: messages with tags, keys and properties in two queues, delayed
messages (some delivered, most waiting), a pull group, a pop group. Small files make every place
count. A `Variant` is the state after a clean stop or after kill -9, with or without extension
units.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.store.format.disk import data_ranges
from cometmq.tests.broker.desk import Desk, desk, message, resource
from cometmq.tests.broker.live import Settings, settings, until
from cometmq.tests.broker.timing import enqueued

TOPIC, LATER, PULLED, POPPED = "Orders", "Later", "pulled", "popped"
QUEUES = 2
MESSAGES = 140
TAGS = ("red", "green", "blue")
DELIVERED, WAITING = 4, 24
COMMITTED = 20
ACKED = 16
MAX_ATTEMPTS = 5
STEP_MS = 1000
#: Longer than a run of thousands of cases: until then no delayed message is due by itself.
FIRST_DUE_MS = 12 * 3_600_000

Content = tuple[str, str, tuple[str, ...], str, str]


@dataclass(slots=True)
class Model:
    """What was written; `messages` by queue id in queue order."""

    shift_ms: int = 0
    messages: dict[int, list[Content]] = field(default_factory=dict)
    times_ms: dict[int, list[int]] = field(default_factory=dict)
    later: list[str] = field(default_factory=list)  # bodies, delivered ones included
    acked: list[str] = field(default_factory=list)  # bodies
    last_due_ms: int = 0

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Model:
        values = json.loads(path.read_text())
        for name in ("messages", "times_ms"):
            values[name] = {int(key): value for key, value in values[name].items()}
        values["messages"] = {
            queue_id: [(b, t, tuple(keys), i, p) for b, t, keys, i, p in contents]
            for queue_id, contents in values["messages"].items()
        }
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to make the directory."""

    name: str
    clean: bool
    ext: bool = False


VARIANTS = (
    Variant("clean", clean=True),
    Variant("killed", clean=False),
    Variant("ext", clean=True, ext=True),
)


def chosen(root: Path, variant: Variant) -> Settings:
    """Return the settings of the broker; files are as small as they can be."""
    base = settings(root)
    store = replace(
        base.store,
        mapped_file_size_commit_log=16 << 10,
        mapped_file_size_consume_queue=400,
        mapped_file_size_consume_queue_ext=1000,
        mapped_file_size_timer_log=10 * 52 + 20,
        max_hash_slot_num=50,
        max_index_num=200,
        enable_consume_queue_ext=variant.ext,
        enabled_append_prop_crc=True,
    )
    return replace(base, store=store, ha=replace(base.ha, ha_scrub_interval_ms=300))


def content_of(found: v2.Message) -> Content:
    """Return what a consumer sees of a message."""
    system = found.system_properties
    return (
        found.body.decode("latin-1"),
        system.tag,
        tuple(system.keys),
        system.message_id,
        json.dumps(dict(sorted(found.user_properties.items()))),
    )


def numbered(n: int) -> v2.Message:
    """Return message `n` of the topic."""
    return message(
        TOPIC,
        b"%04d " % n + b"." * (n * 7 % 90),
        message_id=f"01FD{n:028X}",
        tag=TAGS[n % len(TAGS)],
        keys=[f"key{n}", f"group{n % 10}"],
        properties={"number": str(n)},
    )


async def build(root: Path, variant: Variant) -> None:
    """Write `root/store`, in the state of the variant, and `root/model`.

    `root/earlier` is a copy of the store that was made before the last half of its messages.
    """
    clock = Clock()
    model = Model(messages={0: [], 1: []}, times_ms={0: [], 1: []})
    store = root / "store"
    async with desk(store, chosen(store, variant), clock) as k:
        await _fill(k, model, store, root / "earlier")
        if not variant.clean:
            await asyncio.sleep(1.5)  # the flush threads write what waits
            copy(store, root / "killed")
    model.shift_ms = clock.wall_ms() - clock.machine_ms()
    if not variant.clean:
        shutil.rmtree(store)
        os.rename(root / "killed", store)
    model.save(root / "model")


async def _fill(k: Desk, model: Model, store: Path, earlier: Path) -> None:
    k.topic(TOPIC, queues=QUEUES)
    k.topic(LATER, queues=1, message_type=v2.DELAY)
    for group in (PULLED, POPPED):
        k.group(group, max_attempts=MAX_ATTEMPTS)
    now_ms = k.node.runtime.clock.wall_ms()
    for n in range(DELIVERED):
        await _send_later(k, model, n, now_ms + 2000)
    k.advance(3000)
    await until(lambda: k.node.store.max_offset(LATER, 0) == DELIVERED)
    first_due_ms = k.node.runtime.clock.wall_ms() + FIRST_DUE_MS
    for n in range(MESSAGES):
        if n % 4 == 0:
            k.advance(STEP_MS)
        if n == MESSAGES // 2:
            copy(store, earlier)
        answer = await k.send(numbered(n))
        assert answer.status.code == v2.OK, answer
        if n * WAITING // MESSAGES != (n + 1) * WAITING // MESSAGES:
            at = n * WAITING // MESSAGES
            model.last_due_ms = first_due_ms + at // 3 * 5000
            await _send_later(k, model, DELIVERED + at, model.last_due_ms)
    await k.dispatched()
    for queue_id in range(QUEUES):
        result = k.node.store.get(TOPIC, queue_id, 0, MESSAGES, 1 << 30)
        for stored in result.records:
            (found,), _ = await pull_next(k, TOPIC, queue_id, stored.queue_offset, batch=1)
            model.messages[queue_id].append(content_of(found))
            model.times_ms[queue_id].append(int.from_bytes(stored.data[56:64], "big"))
    request = v2.UpdateOffsetRequest(
        message_queue=v2.MessageQueue(topic=resource(TOPIC), id=0),
        group=resource(PULLED),
        offset=COMMITTED,
    )
    assert k.pulls.update_offset(request, k.context()).status.code == v2.OK
    received = await k.receive(TOPIC, POPPED)
    handles = received.handles[:ACKED]
    assert k.ack(TOPIC, POPPED, *handles).status.code == v2.OK
    model.acked = [body.decode("latin-1") for body in received.bodies[:ACKED]]


async def _send_later(k: Desk, model: Model, n: int, due_ms: int) -> None:
    late = message(LATER, b"later %d" % n, message_id=f"02FD{n:028X}", message_type=v2.DELAY)
    late.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    answer = await k.send(late)
    assert answer.status.code == v2.OK, answer
    await enqueued(k)
    model.later.append(f"later {n}")


async def pull_next(
    k: Desk, topic: str, queue_id: int, offset: int, *, batch: int = 32, tag: str = "*"
) -> tuple[list[v2.Message], int]:
    """Call PullMessage without waiting; return its messages and the next offset (-1: none)."""
    request = v2.PullMessageRequest(
        group=resource(PULLED),
        message_queue=v2.MessageQueue(topic=resource(topic), id=queue_id),
        offset=offset,
        batch_size=batch,
        filter_expression=v2.FilterExpression(type=v2.TAG, expression=tag),
    )
    request.long_polling_timeout.FromMilliseconds(0)
    answer: Any = k.pulls.pull_message(request, k.context(remaining_ms=200))
    items = answer if isinstance(answer, list) else await answer
    messages, following = [], -1
    for item in items:
        response = v2.PullMessageResponse.FromString(item)
        if response.HasField("message"):
            messages.append(response.message)
        elif response.WhichOneof("content") == "next_offset":
            following = response.next_offset
    return messages, following


def _opened(path: Path) -> BinaryIO | None:
    """Open a file of a running broker, which replaces files by two renames: one may be missing for
    a moment. None for a temporary file that was renamed."""
    for _ in range(1_000):
        try:
            return open(path, "rb")
        except FileNotFoundError:
            if path.suffix == ".tmp":
                return None
            time.sleep(0.01)
    raise FileNotFoundError(path)


def copy(source: Path, target: Path) -> None:
    """Copy a store directory; the timer wheel stays sparse."""
    for path in sorted(source.rglob("*")):
        to = target / path.relative_to(source)
        if path.is_dir():
            to.mkdir(parents=True, exist_ok=True)
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        old = _opened(path)
        if old is None:
            continue
        with old, open(to, "wb") as new:
            size = os.fstat(old.fileno()).st_size
            new.truncate(size)
            for begin, end in data_ranges(old.fileno(), 0, size):
                os.pwrite(new.fileno(), os.pread(old.fileno(), end - begin, begin), begin)
