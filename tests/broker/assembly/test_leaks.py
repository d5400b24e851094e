"""No operation keeps memory: allocated blocks after many of each are those before.

A broker and its clients run in this process over real sockets, so a block that either keeps for
each operation counts. What stays for a time or up to a number by design is cut short.
`TEST_EXAMPLES=1000` makes 200,000 operations of each kind at least three times.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from cometmq.front.config import DoorConfig
from cometmq.proto import paths, v1, v2
from cometmq.proto.native import is_available
from cometmq.remoting.codes import Reply, Request
from cometmq.tests.broker.classic_wire import heartbeat, message, port_of, pulling, records
from cometmq.tests.broker.live import Live, create_group, create_topic, running, settings, until
from cometmq.tests.harness.wire import Wire, normal_message, receive_request
from cometmq.tests.remoting.client import RemotingClient

pytestmark = pytest.mark.timeout(36_000)

TIMES = max(200, round(200 * float(os.environ.get("TEST_EXAMPLES", "1"))))
#: At a time; what grows with it is not counted.
BATCH = 50
#: Blocks that a round may keep for each operation, and in all: for caches with a limit.
BLOCKS_MAX, ALLOWED_BLOCKS = 0.02, 150
#: A round may grow a table, or free what an earlier one left.
ROUNDS_MAX = 9
READERS, WAIT_S = "readers", 60.0


class Bench:
    """One broker with its clients, and a round of each operation."""

    def __init__(self, live: Live, wire: Wire, client: RemotingClient) -> None:
        self.live, self.wire, self.client = live, wire, client
        self._number = 0
        self._pulled = 0

    def ids(self, count: int) -> list[str]:
        self._number += count
        return [f"{number:032X}" for number in range(self._number - count, self._number)]

    async def send(self, count: int, topic: str = "t", **system: Any) -> list[Any]:
        """Send messages over gRPC; return the entries of the answer."""
        made = []
        for name in self.ids(count):
            one = normal_message(topic, name, b"body", tag="t", key="k")
            for key, value in system.items():
                setattr(one.system_properties, key, value)
            made.append(one)
        answer = await self.wire.send(made)
        assert {entry.status.code for entry in answer.entries} == {v2.OK}
        return list(answer.entries)

    async def receive(self, count: int, topic: str = "t") -> None:
        """Receive and acknowledge as many messages over gRPC."""
        async with asyncio.timeout(WAIT_S):
            while count > 0:
                _, found = await self.wire.receive(receive_request(topic, READERS, await_s=5), 20)
                if found:
                    done = await self.wire.ack(topic, READERS, found)
                    assert done.status.code == v2.OK
                count -= len(found)

    async def settle(self) -> None:
        """Let what stays for a time end: unwritten checkpoints, outcomes, windows of clients."""
        node = self.live.node
        node.runtime.clock.advance_wall_ms(700_000)
        node.pop.clock_moved()
        node.runtime.clock_listeners.notify()
        await until(lambda: not node.journal.core.waiting and not node.transactions.table.buffer)

    # --- rounds -----------------------------------------------------------------------------------

    async def sends(self, count: int) -> None:
        await self.send(count, "unread")

    async def pops(self, count: int) -> None:
        await self.send(count)
        await self.receive(count)

    async def returned(self, count: int) -> None:
        """Give each message back once."""
        await self.send(count, "again")
        _, found = await self.wire.receive(receive_request("again", READERS, await_s=5), 20)
        for one in found:
            request = v2.ChangeInvisibleDurationRequest(
                group=v2.Resource(name=READERS),
                topic=v2.Resource(name="again"),
                receipt_handle=one.system_properties.receipt_handle,
                message_id=one.system_properties.message_id,
            )
            request.invisible_duration.seconds = 0
            answer = v2.ChangeInvisibleDurationResponse
            await self.wire.call(paths.CHANGE_INVISIBLE_DURATION, request, answer)
        await self.receive(count, "again")

    async def timers(self, count: int) -> None:
        due = normal_message("later", "0" * 32, b"").system_properties.delivery_timestamp
        due.FromMilliseconds(self.live.node.runtime.clock.wall_ms() + 20)
        for name in self.ids(count):
            one = normal_message("later", name, b"body")
            one.system_properties.message_type = v2.DELAY
            one.system_properties.delivery_timestamp.CopyFrom(due)
            assert (await self.wire.send([one])).status.code == v2.OK
        await self.receive(count, "later")

    async def transactions(self, count: int) -> None:
        for entry in await self.send(count, "halves", message_type=v2.TRANSACTION):
            end = v2.EndTransactionRequest(
                topic=v2.Resource(name="halves"),
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=v2.COMMIT,
            )
            answer = await self.wire.call(paths.END_TRANSACTION, end, v2.EndTransactionResponse)
            assert answer.status.code == v2.OK
        await self.receive(count, "halves")

    async def routes(self, count: int) -> None:
        request = v2.QueryRouteRequest(topic=v2.Resource(name="t"))
        for _ in range(count):
            await self.wire.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)

    async def lists(self, count: int) -> None:
        for _ in range(count):
            await self.wire.call(paths.LIST_TOPICS, v1.ListTopicsRequest(), v1.ListTopicsResponse)
            await self.wire.call(paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse)

    async def refusals(self, count: int) -> None:
        for name in self.ids(count):
            answer = await self.wire.send([normal_message("none", name, b"body")])
            assert answer.status.code == v2.TOPIC_NOT_FOUND

    async def connections(self, count: int) -> None:
        request = v2.QueryRouteRequest(topic=v2.Resource(name="t"))
        for number in range(count // 10):
            async with self.live.client(f"passing@{number % 7}") as wire:
                await wire.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)

    async def classic_sends(self, count: int) -> None:
        for name in self.ids(count):
            sent = message(b"body", f"TAGS\x01t\x02UNIQ_KEY\x01{name}\x02", b="unread", e=0)
            assert (await self.client.post(sent)).code == Reply.SUCCESS

    async def pulls(self, count: int) -> None:
        for name in self.ids(count):
            sent = message(b"body", f"TAGS\x01t\x02UNIQ_KEY\x01{name}\x02", b="pulled", e=0)
            assert (await self.client.post(sent)).code == Reply.SUCCESS
        until = self._pulled + count
        async with asyncio.timeout(WAIT_S):
            while self._pulled < until:
                fields = {"topic": "pulled", "queueId": 0, "queueOffset": self._pulled}
                found = await self.client.post(
                    pulling(
                        **fields, sysFlag=7, commitOffset=self._pulled, suspendTimeoutMillis=5_000
                    )
                )
                self._pulled += len(records(found.body))

    async def commits(self, count: int) -> None:
        where = {"consumerGroup": "shop", "topic": "pulled", "queueId": 0}
        for _ in range(count):
            done = await self.client.call(
                Request.UPDATE_CONSUMER_OFFSET, **where, commitOffset=self._pulled
            )
            assert done.code == Reply.SUCCESS

    async def heartbeats(self, count: int) -> None:
        for number in range(count):
            beat = heartbeat(f"c{number % 3}", pulled="*")
            assert (await self.client.call(Request.HEART_BEAT, beat)).code == Reply.SUCCESS

    async def classic_connections(self, count: int) -> None:
        for number in range(count // 10):
            async with RemotingClient(port_of(self.live)) as client:
                beat = heartbeat(f"passing{number % 3}", pulled="*")
                assert (await client.call(Request.HEART_BEAT, beat)).code == Reply.SUCCESS

    async def classic_refusals(self, count: int) -> None:
        for _ in range(count):
            assert (await self.client.call(4_711)).code != Reply.SUCCESS


Round = Callable[[Bench, int], Coroutine[Any, Any, None]]
ROUNDS: tuple[Round, ...] = (
    *(Bench.sends, Bench.pops, Bench.returned, Bench.timers, Bench.transactions, Bench.routes),
    *(Bench.lists, Bench.refusals, Bench.connections, Bench.classic_sends, Bench.pulls),
    *(Bench.commits, Bench.heartbeats, Bench.classic_connections, Bench.classic_refusals),
)


async def kept(bench: Bench, operate: Round) -> float:
    """Return by how much the blocks that stay for each operation are above the limit, in the median
    of some rounds."""
    await operate(bench, BATCH)  # fills caches
    await bench.settle()
    limit = BLOCKS_MAX + ALLOWED_BLOCKS / TIMES
    found: list[float] = []
    while len(found) < ROUNDS_MAX:
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(TIMES // BATCH):
            await operate(bench, BATCH)
        await bench.settle()
        gc.collect()
        found.append((sys.getallocatedblocks() - before) / TIMES)
        if len(found) in (3, 5) and median(found) <= limit:
            break
    return median(found) - limit


@pytest.mark.parametrize("door", [pytest.param("grpcio", marks=pytest.mark.slow), "native"])
async def test_no_operation_keeps_memory(
    tmp_path: Path, door: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import_module("cometmq.broker.sql.evaluator")  # as an idle broker does
    caplog.set_level(logging.CRITICAL)  # it keeps what is logged
    if door == "native" and not is_available():
        pytest.skip("the native crate is not installed (scripts/native_door)")
    chosen = settings(tmp_path, remoting_listen_port=-1)
    async with running(chosen, door=DoorConfig(front_door=door)) as live, live.client() as wire:
        for topic, kind in (
            *((name, v2.NORMAL) for name in ("t", "unread", "again", "pulled")),
            *(("later", v2.DELAY), ("halves", v2.TRANSACTION)),
        ):
            await create_topic(wire, topic, queues=1, message_type=kind)
        await create_group(wire, READERS)
        async with RemotingClient(port_of(live)) as client:
            bench = Bench(live, wire, client)
            found = {}
            for operate in ROUNDS:
                found[operate.__name__] = await kept(bench, operate)
                print(f"{operate.__name__}: {found[operate.__name__]:+.3f} blocks above the limit")
    assert {name: excess for name, excess in found.items() if excess > 0} == {}
