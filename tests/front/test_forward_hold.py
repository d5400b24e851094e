"""The access point: owners out of reach, requests that are held, an owner that is killed."""

import asyncio
import os
import signal
import sys
from typing import Any

import grpc
import grpc.aio

from cometmq.front import channels
from cometmq.proto import paths, v2
from cometmq.proto.errors import WireError
from cometmq.tests.harness.ports import free_port
from cometmq.tests.harness.relay import Relay


def _at(opened: Any) -> str:
    return f"127.0.0.1:{opened.port}"


async def _read_all(call: Any) -> list[bytes]:
    items = []
    while (item := await call.read()) is not grpc.aio.EOF:
        items.append(item)
    return items


async def test_an_owner_out_of_reach_is_stood_in_for(front: Any) -> None:
    async with front(f"127.0.0.1:{free_port()}", "serve") as f:
        b = f.bench
        assert await b.client.unary("Echo", b"served here") == b"served here"
        assert len(await _read_all(b.client.stream("Items", b"3 0"))) == 3
        assert await _read_all(b.client.stream("Generate", b"2")) == [b"0", b"1"]
        assert f.access.statistics.served_instead == 3


async def test_an_owner_out_of_reach_may_be_an_error(front: Any) -> None:
    refusal = WireError(v2.INTERNAL_SERVER_ERROR, "not today")
    async with front(f"127.0.0.1:{free_port()}", refusal) as f:
        answer = v2.AckMessageResponse.FromString(await f.bench.client.unary("Echo"))
        assert answer.status.message == "not today"
        (item,) = await _read_all(f.bench.client.stream("Items", b"1 0"))
        assert v2.ReceiveMessageResponse.FromString(item).status.message == "not today"


async def test_a_held_request_is_answered_before_its_deadline(front: Any) -> None:
    # The margin is larger than what a machine stalls.
    async with front(f"127.0.0.1:{free_port()}", front_forward_hold_margin=10_000) as f:
        answer = v2.AckMessageResponse.FromString(await f.bench.client.unary("Echo", timeout=10.5))
        assert answer.status.code == v2.HA_NOT_AVAILABLE
        statistics = f.access.statistics
        assert (statistics.held, statistics.held_in_vain) == (1, 1)
        assert statistics.holding_bytes == 0
        # Looking again costs a question to locate; only the first attempt was a call.
        assert statistics.forwarded <= 2


async def test_a_held_request_without_a_deadline_is_answered_too(front: Any) -> None:
    port = free_port()
    async with front(f"127.0.0.1:{port}", front_forward_hold_max=200) as f:
        answer = v2.AckMessageResponse.FromString(await f.bench.client.unary("Echo", timeout=None))
        assert answer.status.code == v2.HA_NOT_AVAILABLE


async def test_a_held_request_goes_to_the_new_owner(
    front: Any, bench: Any, eventually: Any
) -> None:
    async with await bench() as owner, front(f"127.0.0.1:{free_port()}") as f:
        calls = [f.bench.client.unary("Echo", b"%d" % number) for number in range(100)]
        await eventually(lambda: f.access.statistics.held == 100)
        f.owner = _at(owner)
        assert [await call for call in calls] == [b"%d" % number for number in range(100)]
        assert len(owner.services.contexts) == 100


async def test_a_held_request_is_served_by_a_node_that_becomes_the_owner(
    front: Any, eventually: Any
) -> None:
    async with front(f"127.0.0.1:{free_port()}") as f:
        call = f.bench.client.unary("Echo", b"mine now")
        await eventually(lambda: f.access.statistics.held)
        f.owner = None
        assert await call == b"mine now"


async def test_what_is_held_is_bounded(front: Any, eventually: Any) -> None:
    port = free_port()
    async with front(f"127.0.0.1:{port}", front_forward_hold_bytes=1_000) as f:
        call = f.bench.client.unary("Echo", bytes(900), timeout=60)
        await eventually(lambda: f.access.statistics.holding_bytes)
        answer = await f.bench.client.unary("Echo", bytes(200), timeout=60)
        assert v2.AckMessageResponse.FromString(answer).status.code == v2.HA_NOT_AVAILABLE
        call.cancel()
        await eventually(lambda: f.access.statistics.holding_bytes == 0)


async def test_an_owner_that_drains_hands_over(front: Any, bench: Any, eventually: Any) -> None:
    async with (
        await bench() as old,
        await bench() as new,
        front(_at(old)) as f,
    ):
        assert await f.bench.client.unary("Echo", b"old") == b"old"
        await old.door.drain(1)
        call = f.bench.client.unary("Echo", b"new")
        await eventually(lambda: f.access.statistics.held)
        f.owner = _at(new)
        assert await call == b"new"
        assert [len(each.services.contexts) for each in (old, new)] == [1, 1]


async def test_the_wrong_node_behind_a_name_answered_for_as_long_as_its_connection_stood(
    front: Any, bench: Any
) -> None:
    """Containers that come back with exchanged addresses: a proxy answered no call for minutes
    (drill 38)."""
    async with await bench() as owner, front(_at(owner)) as wrong:
        relay = Relay(wrong.bench.port)
        async with front(await relay.start()) as f:
            call = f.bench.client.unary("Echo", b"x")
            await asyncio.sleep(0.3)
            assert not call.done()  # it has no owner there and is not forwarded again
            relay.to = owner.port
            assert await call == b"x"
        await relay.stop()


async def test_connections_are_pooled_and_bounded(front: Any, bench: Any) -> None:
    async with (
        await bench() as one,
        await bench() as two,
        await bench() as three,
        front(None, front_forward_channels=2) as f,
    ):
        for owner in (one, two, three, one):
            f.owner = _at(owner)
            assert await f.bench.client.unary("Echo", b"x") == b"x"
        assert len(f.access._pool) == 2


class _Process:
    """An empty server as a process of its own, so that it can be killed."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    @classmethod
    async def start(cls, port: int = 0) -> "_Process":
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "cometmq.tests.bench.empty_server",
                "--port",
                str(port),
                "--items",
                "4",
            ),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        return cls(process, int(await asyncio.wait_for(process.stdout.readline(), 60)))

    async def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        await self.process.wait()


async def test_an_owner_that_is_killed_and_comes_back(front: Any, eventually: Any) -> None:
    owner = await _Process.start()
    async with front(f"127.0.0.1:{owner.port}") as f:
        client = f.bench.client
        assert await _code_of(client.unary(paths.SEND_MESSAGE, timeout=90)) == v2.OK
        # Stopped, it takes requests and answers none: they are in the middle when it is killed.
        owner.process.send_signal(signal.SIGSTOP)
        calls = [client.unary(paths.SEND_MESSAGE, timeout=90) for _ in range(10)]
        await eventually(lambda: f.access.statistics.forwarded == 11)
        await asyncio.sleep(0.05)
        await owner.kill()
        calls += [client.unary(paths.SEND_MESSAGE, timeout=90) for _ in range(10)]
        await eventually(lambda: f.access.statistics.held == 20)
        back = await _Process.start(owner.port)
        assert {await _code_of(call) for call in calls} == {v2.OK}
        assert f.access.statistics.held_in_vain == 0
        await back.kill()


async def _code_of(call: Any) -> int:
    return v2.SendMessageResponse.FromString(await call).status.code


async def test_the_empty_server_stops_on_a_signal() -> None:
    owner = await _Process.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{owner.port}")
    received = channel.unary_stream(paths.RECEIVE_MESSAGE)(b"")
    items = [v2.ReceiveMessageResponse.FromString(item) async for item in received]
    assert [item.WhichOneof("content") for item in items] == [
        "status",
        *["message"] * 4,
        "delivery_timestamp",
    ]
    handles = [item.message.system_properties.receipt_handle for item in items[1:5]]
    assert [len(handle.split(" ")) for handle in handles] == [9] * 4
    acked = await channel.unary_unary(paths.ACK_MESSAGE)(b"")
    assert v2.AckMessageResponse.FromString(acked).status.code == v2.OK
    await channel.close()
    owner.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(owner.process.wait(), 20) == 0


async def test_a_request_is_held_until_anybody_knows_its_owner(front: Any) -> None:
    async with front("") as f:
        waiting = asyncio.ensure_future(f.bench.client.unary("Echo", b"later", timeout=10))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert (f.access.statistics.held, f.access.statistics.forwarded) == (1, 0)
        f.owner = None
        f.access.retry_held()
        assert await waiting == b"later"


async def test_what_a_former_owner_does_not_answer_is_asked_of_the_next(
    front: Any, bench: Any, eventually: Any
) -> None:
    async with await bench() as former, await bench() as following, front(_at(former)) as f:
        waiting = asyncio.ensure_future(f.bench.client.unary("Later", b"x", timeout=20))
        await eventually(lambda: former.services.futures)
        f.owner = _at(following)
        f.access.owner_gone(_at(former))
        await eventually(lambda: following.services.futures)
        following.services.futures[0].set_result(b"the next one's")
        assert await waiting == b"the next one's"


async def test_calls_to_a_silent_former_owner_end_at_once(
    front: Any, bench: Any, eventually: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(channels, "_DROPPED_GRACE_S", 1_000.0)
    async with await bench() as former, await bench() as following, front(_at(former)) as f:
        waiting = asyncio.ensure_future(f.bench.client.unary("Later", b"x", timeout=20))
        await eventually(lambda: former.services.futures)
        f.owner = _at(following)
        f.access.owner_gone(_at(former), silent=True)
        await eventually(lambda: following.services.futures)
        following.services.futures[0].set_result(b"the next one's")
        assert await waiting == b"the next one's"
        assert f.access.statistics.held == 0, "the next owner was known"
