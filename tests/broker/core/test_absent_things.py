"""Parts of a store that are absent, empty or another store's: the broker refuses with a sentence
and changes nothing, or serves with nothing lost.

Each case is a copy of one store whose first segments retention has deleted, after a clean stop and
as a killed process leaves it. Removed files and folders run in the gate; emptied and swapped ones
and pairs are slow.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cometmq.ha.errors import HaError
from cometmq.proto import v2
from cometmq.store.format.disk import Disk, Space
from cometmq.store.format.errors import StoreError
from cometmq.store.holdings import load
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import Settings, settings, until

SEGMENT = 16 << 10
TIMERS = 3
#: Files that say nothing about the content: their loss is no loss.
PLAIN = ("lock", "abort", ".bak", ".tmp")


def chosen(directory: Path) -> Settings:
    base = settings(directory)
    store = replace(
        base.store,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=400,
        mapped_file_size_timer_log=5_200,
        max_hash_slot_num=100,
        max_index_num=400,
        file_reserved_time=0,
        delete_when=";".join(f"{hour:02d}" for hour in range(24)),
        clean_resource_interval=60_000,
        delete_commit_log_files_interval=0,
        flush_interval_consume_queue=20,
        flush_disk_type="SYNC_FLUSH",
    )
    return replace(base, store=store)


@dataclass(frozen=True, slots=True)
class Content:
    """What a store must still have."""

    ends: dict[tuple[str, int], int]
    bodies: frozenset[bytes]
    offsets: dict[tuple[str, str, int], int]
    topics: frozenset[str]
    groups: frozenset[str]

    @classmethod
    def of(cls, one: Desk) -> Content:
        store, offsets = one.node.store, one.node.offsets
        user = [key for key in store.queues() if not key[0].startswith(("rmq_sys", "%RETRY"))]
        bodies = [
            stored.data
            for topic, queue in user
            for stored in store.get(
                topic, queue, store.min_offset(topic, queue), 999, 1 << 24
            ).records
        ]
        return cls(
            {key: store.writer.next_offset(*key) for key in user},
            frozenset(bodies),
            {(t, g, q): n for t, g, q, n in offsets if g == "group"},
            frozenset(one.node.metadata.topics),
            frozenset(one.node.metadata.groups),
        )

    def missing_in(self, now: Content) -> list[str]:
        lost = [f"end of {key}" for key, end in self.ends.items() if now.ends.get(key, 0) < end]
        lost += [
            f"offset {key}"
            for key, offset in self.offsets.items()
            if now.offsets.get(key, 0) < offset
        ]
        lost += [f"{len(self.bodies - now.bodies)} messages"] * bool(self.bodies - now.bodies)
        return lost + sorted((self.topics - now.topics) | (self.groups - now.groups))


async def filled(root: Path, name: str) -> Content:
    """Make a store in `root/clean`, and its copy as after a kill in `root/killed`."""
    async with desk(root / "clean", chosen(root / "clean")) as one:
        one.topic("early")
        one.topic("orders", 2)
        one.topic("later", message_type=v2.DELAY)
        one.group("group")
        await one.sent("early", *(f"{name} early {n}".encode() for n in range(9)))
        await take(one, "early", 9)
        await one.sent("orders", *(f"{name} {n}".encode().ljust(900) for n in range(60)))
        retention = one.node.store.retention
        # Once the services know that no delayed message or transaction waits.
        await until(lambda: any(verdict.delete for verdict in retention.step(1 << 44, 4)))
        deletion = retention._deletion
        assert deletion is not None
        await until(deletion.finished)
        assert one.node.store.min_offset("early", 0) == 9
        await one.sent("orders", *(f"{name} new {n}".encode() for n in range(20)))
        await take(one, "orders", 10)
        later = message("later", b"late", message_type=v2.DELAY)
        later.system_properties.delivery_timestamp.FromMilliseconds(
            one.node.runtime.clock.wall_ms() + 600_000
        )
        for n in range(TIMERS):
            later.body = b"late %d" % n
            assert (await one.send(later)).status.code == v2.OK
        await one.dispatched()
        await until((root / "clean/config/consumerOffset.json").exists)
        content = Content.of(one)
        saver = one.node.offsets._saver
        saver._delay_s = 0.01
        for _ in range(2):  # the backup, which stands in for a lost file, is as new as the file
            saver.changed()
            await until(lambda: not saver._dirty and not saver._task)
        await until(lambda: "config/consumerOffset.json" in load(root / "clean")[0].parts)
        copy(root / "clean", root / "killed")
    return content


async def take(one: Desk, topic: str, count: int) -> None:
    taken = 0
    while taken < count:
        got = await one.receive(topic, "group", batch=count - taken)
        taken += len(got.messages)
        if got.handles:
            one.ack(topic, "group", *got.handles)


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


@dataclass(frozen=True, slots=True)
class Stores:
    """One store and another of the same configuration, each stopped and killed."""

    root: Path
    content: Content

    def copy(self, state: str, target: Path) -> None:
        copy(self.root / "own" / state, target)

    def things(self, state: str) -> list[str]:
        """Return the files and folders, by their paths."""
        base = self.root / "own" / state
        return sorted(
            str(path.relative_to(base))
            for path in base.rglob("*")
            if not str(path).endswith(PLAIN) and not path.name.startswith("lock")
        )


@pytest.fixture(scope="module", autouse=True)
def space() -> Iterator[None]:
    """Report free disks: retention must not act on the use of this machine's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "space", lambda _disk, _path: Space(100 << 30, 90 << 30, 90 << 30))
        yield


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    root = tmp_path_factory.mktemp("absent")
    for name in ("own", "other"):
        (root / name).mkdir()
    content = asyncio.run(filled(root / "own", "own"))
    asyncio.run(filled(root / "other", "other"))
    yield Stores(root, content)
    shutil.rmtree(root)


def remove(path: Path, other: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def empty(path: Path, other: Path) -> None:
    if path.is_dir():
        remove(path, other)
        path.mkdir()
    elif path.exists():
        path.write_bytes(b"")


def swap(path: Path, other: Path) -> None:
    if other.exists():
        remove(path, other)
        path.parent.mkdir(parents=True, exist_ok=True)
        copy(other, path)


def state_of(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


async def verdict(root: Path, content: Content) -> str:
    """Return "refused", "served", or what was lost or changed."""
    before = state_of(root)
    try:
        async with desk(root, chosen(root)) as one:
            await one.dispatched()
            lost = content.missing_in(Content.of(one))
            one.advance(700_000)
            bodies: set[bytes] = set()
            for _ in range(600):  # a busy machine delivers late
                got = await one.receive("later", "group", one.context(remaining_ms=105))
                bodies |= {bytes(m.body) for m in got.messages}
                if len(bodies) == TIMERS:
                    break
            lost += [f"{TIMERS - len(bodies)} timers"] * (len(bodies) < TIMERS)
            return f"LOST {', '.join(lost)}" if lost else "served"
    except (StoreError, HaError) as error:
        if state_of(root) != before:
            changed = state_of(root).items() ^ before.items()
            return f"CHANGED {sorted({name for name, _ in changed})} by a refusal: {error}"
        sentence = str(error)
        if not (sentence.endswith(".") and str(root) in sentence):
            return f"NO SENTENCE {sentence}"
        return "refused"


async def faults_of(
    stores: Stores,
    tmp_path: Path,
    state: str,
    change: Callable[[Path, Path], None],
    groups: Sequence[tuple[str, ...]],
) -> list[str]:
    faults = []
    for number, names in enumerate(groups):
        root = tmp_path / str(number)
        stores.copy(state, root)
        for name in names:
            change(root / name, stores.root / "other" / state / name)
        found = await verdict(root, stores.content)
        print(state, change.__name__, *names, found)
        if found not in ("served", "refused"):
            faults.append(f"{change.__name__} {' and '.join(names)}: {found}")
        shutil.rmtree(root)
    return faults


@pytest.mark.parametrize("state", ["clean", "killed"])
async def test_nothing_is_lost_silently_without_a_thing(
    stores: Stores, tmp_path: Path, state: str
) -> None:
    groups = [(name,) for name in stores.things(state)]
    assert await faults_of(stores, tmp_path, state, remove, groups) == []


@pytest.mark.parametrize("change", [remove, empty])
async def test_a_queue_is_not_lost_together_with_the_digest_that_would_show_it(
    stores: Stores, tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    queues = [name for name in stores.things("clean") if name.startswith("consumequeue/orders/")]
    pairs = [("config/storeDigests.json", name) for name in queues]
    assert pairs and await faults_of(stores, tmp_path, "clean", change, pairs) == []


@pytest.mark.slow
@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("change", [empty, swap])
async def test_nothing_is_lost_silently_with_a_strange_thing(
    stores: Stores, tmp_path: Path, state: str, change: Callable[[Path, Path], None]
) -> None:
    groups = [(name,) for name in stores.things(state)]
    assert await faults_of(stores, tmp_path, state, change, groups) == []


@pytest.mark.slow
@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("change", [remove, empty, swap])
async def test_nothing_is_lost_silently_without_two_things(
    stores: Stores, tmp_path: Path, state: str, change: Callable[[Path, Path], None]
) -> None:
    pairs = list(itertools.combinations(stores.things(state), 2))
    sample = random.Random(1).sample(pairs, min(len(pairs), 300))
    assert await faults_of(stores, tmp_path, state, change, sample) == []
