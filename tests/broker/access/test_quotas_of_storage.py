"""Quotas of storage: sends are refused while a topic, or the topics that a user may send to, have
as many bytes in the log; also after retention, a restart, and another quota.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

from cometmq.auth.model import Action, Policy, ResourcePattern, User
from cometmq.broker.access.stored_bytes import StoredBytes
from cometmq.proto import v2
from cometmq.store.format.record_layout import UNIT
from cometmq.store.queue.queue_bytes import BLOCK_UNITS, QueueBytes
from cometmq.tests.broker.access.test_quotas import FIRST, put, refused, send, signed, small
from cometmq.tests.broker.live import create_topic, follower_of, running, settings, until
from cometmq.tests.broker.metrics.test_observed import samples
from cometmq.tests.store.kit import Kit, message


async def test_a_topic_takes_no_more_bytes_than_its_quota_of_storage(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    async with running(chosen) as live, live.client() as wire:
        for topic in ("orders", "free"):
            await create_topic(wire, topic, queues=2)
        assert (await put(wire, "Topic:orders", stored=10_000)).code == v2.OK
        for _ in range(9):
            assert (await send(wire, "orders", size=1_000)).code == v2.OK
        while (status := await send(wire, "orders", size=1_000)).code == v2.OK:
            pass
        assert status.code == v2.TOO_MANY_REQUESTS
        assert status.message.startswith("[QUOTA] Topic:orders is limited to 10000 bytes stored")
        assert (await send(wire, "free", size=1_000)).code == v2.OK
        assert (await refused(live))["Topic", "stored"] == 1
        assert (await put(wire, "Topic:orders", stored=20_000)).code == v2.OK
        assert (await send(wire, "orders", size=1_000)).code == v2.OK
    async with running(chosen) as live, live.client() as wire:
        assert (await put(wire, "Topic:*", stored=10_000)).code == v2.OK
        assert (await put(wire, "Topic:orders", stored=10_000)).code == v2.OK
        assert (await send(wire, "orders")).code == v2.TOO_MANY_REQUESTS, "after a restart"
        assert (await send(wire, "free")).code == v2.OK
        found = (await samples(live))["cometmq_quota_stored_bytes"]
        assert [(row.labels["subject"], row.value > 10_000) for row in found] == [
            ("Topic:orders", True)
        ]


async def test_what_retention_deletes_counts_no_longer(tmp_path: Path) -> None:
    async with running(small(settings(tmp_path))) as live, live.client() as wire:
        await create_topic(wire, "orders", queues=1)
        await put(wire, "Topic:orders", stored=30_000)
        while (await send(wire, "orders", size=2_000)).code == v2.OK:
            pass
        store = live.node.store
        store.queue_table.hide_below("orders", 0, store.reader.max_offset("orders", 0) - 2)

        await until(lambda: 0 < dict(live.node.quotas.stored())["Topic:orders"] < 20_000)
        assert (await send(wire, "orders", size=2_000)).code == v2.OK


async def test_a_user_fills_the_topics_that_it_may_send_to(tmp_path: Path) -> None:
    chosen = settings(tmp_path, authentication_enabled=True, init_authentication_user=FIRST)
    async with running(chosen) as live, signed(live, "admin", "admin-secret") as wire:
        await create_topic(wire, "orders")
        await put(wire, "User:admin", stored=3_000)
        while (status := await send(wire, "orders", size=1_000)).code == v2.OK:
            pass
        assert status.code == v2.TOO_MANY_REQUESTS
        assert status.message.startswith("[QUOTA] User:admin is limited to 3000 bytes stored")


async def test_a_follower_that_leads_counts_what_it_has(tmp_path: Path) -> None:
    async with running(settings(tmp_path / "a")) as live, live.client() as wire:
        await create_topic(wire, "orders", queues=1)
        await put(wire, "Topic:orders", stored=100_000)
        await send(wire, "orders", size=5_000)
        async with running(follower_of(live.bound, tmp_path / "b")) as second:
            await until(lambda: second.node.store.reader.max_offset("orders", 0) == 1)
            await until(lambda: dict(second.node.quotas.stored()).get("Topic:orders", 0) > 5_000)


class Turns:
    """An event loop whose timers a test runs."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later(self, _delay_s: float, work: Any) -> Any:
        self.due.append(work)
        return work


class Unreadable:
    """A queue that cannot be read at first."""

    min_offset, max_offset = 0, 3
    is_damaged = True

    def read(self, first: int, count: int) -> bytes:
        if self.is_damaged:
            raise OSError(errno.EIO, "no")
        return UNIT.pack(0, 100, 0) * min(count, self.max_offset - first)


def test_measuring_goes_on_after_a_queue_that_could_not_be_read() -> None:
    loop, queue = Turns(), Unreadable()
    queues: Any = {("orders", 0): queue}
    stored = StoredBytes(cast(Any, loop), queues, lambda _: True, lambda: True)
    stored.start()
    assert (stored.of_topic("orders"), stored.rounds, len(loop.due)) == (0, 0, 1)
    queue.is_damaged = False
    loop.due.pop()()
    assert (stored.of_topic("orders"), stored.rounds, len(loop.due)) == (300, 1, 1)


def test_the_topics_of_a_user_count_once() -> None:
    found = StoredBytes.__new__(StoredBytes)
    found._names, found._before = ["a", "b1", "b2", "c"], [0, 1, 11, 111, 1_111]

    def user(*resources: str, allow: bool = True) -> User:
        policies = tuple(
            Policy(ResourcePattern.parse(text), Action.PUB, allow) for text in resources
        )
        return User("u", b"", policies=policies)

    assert found.of_user(user("Topic:b*", "Topic:b1", "Topic:c", "Group:a")) == 1_110
    assert found.of_user(user("*")) == found.of_user(None) == 1_111
    assert found.of_user(user("Topic:a", allow=False)) == 0
    assert found.of_topic("b1") == 10 and found.of_topic("absent") == 0


def test_the_sum_of_a_queue_follows_both_its_ends(tmp_path: Path) -> None:
    kit = Kit(tmp_path, mapped_file_size_commit_log=1 << 22)
    kit.open()
    count = BLOCK_UNITS + 100
    results = kit.store.writer.append_many([message(body=b"x" * (i % 7)) for i in range(count)])
    sizes = [result.size for result in results]
    kit.dispatch()
    queue = kit.store.queue_table.queue("TopicTest", 0)
    known = QueueBytes(queue)
    while known.read(1_000) >= 1_000:
        pass
    assert known.total == sum(sizes)
    for begin in (10, 11, BLOCK_UNITS - 1, BLOCK_UNITS, count - 1, count):
        queue.min_offset = begin
        known.read(count)
        assert known.total == sum(sizes[begin:])
    kit.close()
