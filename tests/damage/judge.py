"""What a damaged store returns, compared with what was written.

    correct    every message is read, unaltered
    refused    the start fails with a sentence that names a file of the store or its directory, or
               a read fails with an error
    counted    messages are missing, or delivered again, and a warning in the log names the damage
    stalled    a reader waits for what cannot come
    altered    a message differs from what was written
    silent     messages are missing without a warning
    crashed    an exception that is not an error of the store

The last four are faults of the product.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cometmq.broker.metadata.tables import Group
from cometmq.front.clock import Clock
from cometmq.front.errors import DoorError
from cometmq.ha.errors import HaError
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.errors import StoreError
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.damage import world
from cometmq.tests.damage.injury import Injury, choose
from cometmq.tests.damage.world import LATER, POPPED, PULLED, QUEUES, TAGS, TOPIC, Model, Variant

GOOD = ("correct", "refused", "counted")
CASE_S = 60.0
#: How long a reader waits for a repair before it counts as stalled.
PATIENCE_S = 8.0
_PAUSE_S = 0.02
#: Events of a healthy broker in these tests.
_USUAL = ("door.", "scrub.round", "pop_handover.", "ha.")


@dataclass(slots=True)
class Verdict:
    """The result of one seed."""

    seed: int
    verdict: str
    injury: str
    kind: str
    detail: str = ""
    events: list[str] = field(default_factory=list)


class Events(logging.Handler):
    """Collects the names of warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.names: list[str] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.texts.append(text)
        name = text.split(" ", 1)[0]
        if name not in self.names:
            self.names.append(name)

    @property
    def telling(self) -> list[str]:
        """Events that a healthy broker does not log."""
        return [name for name in self.names if not name.startswith(_USUAL)]


class Fault(Exception):
    """A verdict that ends the case."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict = verdict


@dataclass(slots=True)
class Missing:
    """What was not read, or read too often; each entry is a sentence."""

    found: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.found.append(text)


async def judge(
    seed: int, template: Path, root: Path, variant: Variant, injury: Injury | None = None
) -> Verdict:
    """Damage a copy of the template at `root` and read everything; with `injury` do that, while the
    broker is stopped."""
    rng = random.Random(seed)
    model = Model.load(template / "model")
    world.copy(template / "store", root)
    running = injury is None and variant.clean and rng.random() < 0.4
    clock = Clock()
    clock.advance_wall_ms(model.shift_ms)
    events = Events()
    logging.getLogger().addHandler(events)
    logging.getLogger("cometmq").setLevel(logging.WARNING)
    result = "correct", ""
    try:
        if not running:
            injury = injury or choose(root, template / "earlier", rng, running=False)
            injury.apply(root)
        async with asyncio.timeout(CASE_S), _opened(root, variant, clock) as k:
            if running:
                injury = choose(root, template / "earlier", rng, running=True)
                injury.apply(root)
            missing = await _read_everything(k, model)
            await _goes_on(k, missing)
            await _told(missing, events)
        if running:
            async with asyncio.timeout(CASE_S), _opened(root, variant, clock) as k:
                again = await _read_everything(k, model, delivered=True)
                missing.found += [f"after a restart: {text}" for text in again.found]
                await _told(missing, events)
        if missing.found:
            result = ("counted" if events.telling else "silent"), "; ".join(missing.found)
    except Fault as fault:
        result = fault.verdict, str(fault)
    except TimeoutError:
        result = "stalled", "the case did not end"
    except (StoreError, HaError, DoorError, ValueError, OSError) as error:
        named = str(root) in str(error) and not isinstance(error, UnicodeError)
        result = ("refused" if named else "crashed"), f"{type(error).__name__}: {error}"
    except Exception as error:
        result = "crashed", f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger().removeHandler(events)
    if result[0] in GOOD and any("Traceback" in text for text in events.texts):
        result = "crashed", "a traceback was logged"
    return Verdict(
        seed,
        result[0],
        f"{variant.name} {'running' if running else 'stopped'}: {injury}",
        injury.kind if injury is not None else "",
        result[1][:400],
        events.telling,
    )


async def _told(missing: Missing, events: Events) -> None:
    """Wait until the background checks have found why messages were missing."""
    loop = asyncio.get_running_loop()
    patience = loop.time() + PATIENCE_S
    while missing.found and not events.telling and loop.time() < patience:  # noqa: ASYNC110
        await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def _opened(root: Path, variant: Variant, clock: Clock) -> AsyncIterator[Desk]:
    async with desk(root, world.chosen(root, variant), clock) as k:
        yield k


async def _read_everything(k: Desk, model: Model, *, delivered: bool = False) -> Missing:
    missing = Missing()
    await _metadata(k, missing)
    for queue_id in range(QUEUES):
        await _pulled(k, model, queue_id, missing)
        await _filtered(k, model, queue_id, missing)
        _by_time(k, model, queue_id, missing)
    await _by_key(k, model, missing)
    _offsets(k, missing)
    await _popped(k, model, missing)
    await _later(k, model, missing, delivered=delivered)
    return missing


async def _metadata(k: Desk, missing: Missing) -> None:
    topic = k.node.metadata.topic(TOPIC)
    if topic is None or topic.read_queues != QUEUES:
        missing.note(f"topic {TOPIC}: {topic}")
        k.topic(TOPIC, queues=QUEUES)
    if k.node.metadata.topic(LATER) is None:
        missing.note(f"topic {LATER} is gone")
        k.topic(LATER, message_type=v2.DELAY)
    for name in (PULLED, POPPED):
        group = k.node.metadata.group(name)
        if group is None or group.max_attempts != world.MAX_ATTEMPTS:
            missing.note(f"group {name}: {group}")
            k.node.meta_log.write_group(Group(name, max_attempts=world.MAX_ATTEMPTS))


async def _all(k: Desk, topic: str, queue_id: int, tag: str = "*") -> list[v2.Message]:
    """Pull a queue from its start to its end."""
    store = k.node.store
    offset = store.min_offset(topic, queue_id)
    found: list[v2.Message] = []
    loop = asyncio.get_running_loop()
    patience = loop.time() + PATIENCE_S
    while offset < store.max_offset(topic, queue_id):
        messages, following = await world.pull_next(k, topic, queue_id, offset, tag=tag)
        found += messages
        if following > offset:
            offset = following
            patience = loop.time() + PATIENCE_S
        elif loop.time() > patience:
            raise Fault("stalled", f"pull of {topic}/{queue_id} tag {tag} at {offset}")
        else:
            await asyncio.sleep(_PAUSE_S)
    return found


def _compare(
    found: list[v2.Message], expected: list[world.Content], what: str, missing: Missing
) -> None:
    """Every message once and unaltered; messages behind the expected ones are allowed."""
    known = set(expected)
    contents = [world.content_of(each) for each in found]
    for content in contents:
        if content not in known and not content[0].startswith("after "):
            raise Fault("altered", f"{what}: {content}")
    counts = Counter(content for content in contents if content in known)
    if any(count > 1 for count in counts.values()):
        raise Fault("altered", f"{what}: a message is read twice")
    order = [content for content in contents if content in known]
    if order != [content for content in expected if content in counts]:
        raise Fault("altered", f"{what}: another order")
    if len(counts) < len(expected):
        missing.note(f"{what}: {len(counts)} of {len(expected)}")


async def _pulled(k: Desk, model: Model, queue_id: int, missing: Missing) -> None:
    found = await _all(k, TOPIC, queue_id)
    _compare(found, model.messages[queue_id], f"pull {queue_id}", missing)


async def _filtered(k: Desk, model: Model, queue_id: int, missing: Missing) -> None:
    for tag in TAGS:
        found = await _all(k, TOPIC, queue_id, tag)
        expected = [content for content in model.messages[queue_id] if content[1] == tag]
        _compare(found, expected, f"pull {queue_id} tag {tag}", missing)


def _by_time(k: Desk, model: Model, queue_id: int, missing: Missing) -> None:
    """The first offset at or after every stored time."""
    times = model.times_ms[queue_id]
    wrong = [
        n
        for n, time_ms in enumerate(times)
        if k.node.store.reader.offset_by_time(TOPIC, queue_id, time_ms) != times.index(time_ms)
    ]
    if wrong:
        missing.note(f"time query {queue_id}: {len(wrong)} of {len(times)} differ")


async def _by_key(k: Desk, model: Model, missing: Missing) -> None:
    """Every key finds all of its messages, once the index was checked and rebuilt."""
    expected: dict[tuple[str, str], set[str]] = {}
    for contents in model.messages.values():
        for body, tag, keys, message_id, _ in contents:
            for key in keys:
                expected.setdefault((key, "K"), set()).add(body)
            expected.setdefault((message_id, "U"), set()).add(body)
            expected.setdefault((tag, "T"), set()).add(body)
    loop = asyncio.get_running_loop()
    patience = loop.time() + PATIENCE_S
    while True:
        wrong = _wrong_keys(k, expected)
        if not wrong or loop.time() > patience:
            break
        await asyncio.sleep(0.1)
    if wrong:
        missing.note(f"key query: {len(wrong)} of {len(expected)}, like {wrong[0]}")


def _wrong_keys(k: Desk, expected: dict[tuple[str, str], set[str]]) -> list[str]:
    wrong = []
    for (key, index_type), bodies in expected.items():
        records = k.node.store.queries.query(TOPIC, key, count_max=64, index_type=index_type)
        found = Counter(record.body.decode("latin-1") for record in records)
        if set(found) - bodies:
            raise Fault("altered", f"key {key} finds {set(found) - bodies}")
        if max(found.values(), default=0) > 1 or set(found) != bodies:
            wrong.append(f"{index_type} {key}: {len(found)} of {len(bodies)}")
    return wrong


def _offsets(k: Desk, missing: Missing) -> None:
    offset = k.node.offsets.get(TOPIC, PULLED, 0)
    if offset != world.COMMITTED:
        missing.note(f"the consumer offset is {offset}, {world.COMMITTED} was committed")


async def _popped(k: Desk, model: Model, missing: Missing) -> None:
    """A pop group gets every message that it has not acknowledged."""
    expected = {content for contents in model.messages.values() for content in contents}
    k.advance(120_000)  # what was received before is visible again
    found: set[world.Content] = set()
    acked = set(model.acked)
    wanted = {content for content in expected if content[0] not in acked}
    is_second_round = False
    loop = asyncio.get_running_loop()
    patience = loop.time() + PATIENCE_S
    while not wanted <= found and loop.time() < patience:
        received = await k.receive(TOPIC, POPPED, k.context(remaining_ms=110))
        for each in received.messages:
            content = world.content_of(each)
            if content not in expected and not content[0].startswith("after "):
                raise Fault("altered", f"pop: {content}")
            if content not in found:
                patience = loop.time() + PATIENCE_S
            found.add(content)
        if not received.messages:
            if await _pop_is_at_end(k):
                if is_second_round:
                    break
                # A response that came after its deadline took messages with it.
                is_second_round = True
                k.advance(120_000)
            await asyncio.sleep(_PAUSE_S)
    lost = wanted - found
    if lost and not await _pop_is_at_end(k):
        raise Fault("stalled", f"pop: {len(found)} of {len(wanted)}")
    if lost:
        missing.note(f"pop: {len(lost)} of {len(wanted)} are missing")


async def _pop_is_at_end(k: Desk) -> bool:
    rows = await k.node.progress.group_queues(POPPED, TOPIC)
    return bool(rows) and all(row.lag == row.in_flight for row in rows)


async def _later(k: Desk, model: Model, missing: Missing, *, delivered: bool) -> None:
    """Delayed messages are delivered, once each, and not before their time."""
    expected = Counter(model.later)
    before = Counter(m.body.decode("latin-1") for m in await _all(k, LATER, 0))
    early = [body for body in before if body not in model.later[: world.DELIVERED]]
    if early and not delivered:
        raise Fault("altered", f"delivered early: {early}")
    k.advance(model.last_due_ms - k.node.runtime.clock.wall_ms() + 5000 if not delivered else 0)
    loop = asyncio.get_running_loop()
    patience = loop.time() + PATIENCE_S / 2
    while True:
        found = Counter(m.body.decode("latin-1") for m in await _all(k, LATER, 0))
        if set(expected) <= set(found) or loop.time() > patience:
            break
        await asyncio.sleep(0.05)
    if set(found) - set(expected):
        raise Fault("altered", f"delayed: {set(found) - set(expected)}")
    lost = set(expected) - set(found)
    if lost:
        missing.note(f"delayed: {len(lost)} of {len(expected)} are missing")
    if any(count > 1 for count in found.values()):
        missing.note("delayed messages are delivered again")


async def _goes_on(k: Desk, missing: Missing) -> None:
    """The broker accepts a message and returns it, or refuses it with a code."""
    answer = await k.send(message(TOPIC, b"after the damage", message_id="03FD"))
    if answer.status.code != v2.OK:
        missing.note(f"a send is refused: {answer.status.code} {answer.status.message}")
        if k.node.store.writable:
            raise Fault("silent", f"a send fails: {answer.status}")
        return
    await k.dispatched()
    for _ in range(100):
        found = [m for queue_id in range(QUEUES) for m in await _all(k, TOPIC, queue_id)]
        if any(m.body == b"after the damage" for m in found):
            return
        await asyncio.sleep(_PAUSE_S)
    missing.note("a new message is not read")


def line_of(verdict: Verdict) -> str:
    """Return one line of JSON."""
    return json.dumps(
        {
            "seed": verdict.seed,
            "verdict": verdict.verdict,
            "kind": verdict.kind,
            "injury": verdict.injury,
            "detail": verdict.detail,
            "events": verdict.events,
        }
    )


__all__ = ["GOOD", "Verdict", "WireError", "judge", "line_of"]
