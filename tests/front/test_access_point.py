"""The access point: two real doors, one in front of the other."""

import contextlib
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from cometmq.front.service import HALF_CLOSED
from cometmq.proto import v2


def _at(opened: Any) -> str:
    return f"127.0.0.1:{opened.port}"


async def _read_all(call: Any) -> list[bytes]:
    items = []
    while (item := await call.read()) is not grpc.aio.EOF:
        items.append(item)
    return items


async def test_what_this_node_owns_is_served_here(front: Any) -> None:
    async with front(None) as f:
        b = f.bench
        assert await b.client.unary("Echo", b"here") == b"here"
        assert len(await _read_all(b.client.stream("Items", b"3 0"))) == 3
        talk = b.client.bidi("Talk")
        await talk.write(b"here")
        assert await talk.read() == b"here"
        talk.cancel()
        assert len(b.services.contexts) == 1
        assert f.access.statistics.forwarded == 0


async def test_a_unary_call_is_passed_on_and_back(front: Any, bench: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        request = bytes(range(256)) * 1_000
        sent = (("x-mq-client-id", "me"), ("x-mq-namespace", "ns"), ("x-other", "dropped"))
        answer = await f.bench.client.unary("Echo", request, metadata=sent, timeout=7)
        assert answer == request
        assert f.bench.services.contexts == []
        (ctx,) = owner.services.contexts
        assert (ctx.client_id, ctx.namespace, ctx.forwarded) == ("me", "ns", True)
        assert {name for name, _ in ctx.metadata} == {"x-mq-client-id", "x-mq-namespace"}


async def test_the_deadline_goes_along(front: Any, bench: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        began_ns = time.monotonic_ns()
        await f.bench.client.unary("Echo", timeout=7)
        took_ns = time.monotonic_ns() - began_ns
        await f.bench.client.unary("Echo", timeout=None)
        there, without = owner.services.contexts
        here = f.asked[0][2]
        assert without.deadline_ns is None
        assert abs(here.deadline_ns - there.deadline_ns) < 1_000_000_000 + took_ns


async def test_locate_sees_the_request(front: Any, bench: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        request = v2.SendMessageRequest(messages=[v2.Message(topic=v2.Resource(name="T"))])
        answer = await f.bench.client.unary("Message", request.SerializeToString())
        assert v2.SendMessageResponse.FromString(answer).status.message == "1"
        assert f.asked[0][1].messages[0].topic.name == "T"
        with pytest.raises(grpc.RpcError) as refused:
            await f.bench.client.unary("Message", b"\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len(f.asked) == 1


async def test_failures_are_passed_back_as_they_are(front: Any, bench: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        answer = v2.AckMessageResponse.FromString(await f.bench.client.unary("Wire"))
        assert (answer.status.code, answer.status.message) == (v2.TOPIC_NOT_FOUND, "no topic here")
        for name, code in (
            ("Rpc", grpc.StatusCode.PERMISSION_DENIED),
            ("Boom", grpc.StatusCode.INTERNAL),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                await f.bench.client.unary(name)
            assert refused.value.code() is code
        assert f.bench.door.statistics().internal_errors == {}


async def test_a_stream_is_passed_on_item_by_item(front: Any, bench: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        items = await _read_all(f.bench.client.stream("Items", b"200 1000"))
        assert [int.from_bytes(item[:8], "big") for item in items] == list(range(200))
        call = f.bench.client.stream("Generate", b"2 wait")
        assert [await call.read(), await call.read()] == [b"0", b"1"]
        call.cancel()


async def test_a_stream_that_fails_in_the_middle(front: Any, bench: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        call = f.bench.client.stream("Generate", b"2 boom")
        assert [await call.read(), await call.read()] == [b"0", b"1"]
        with pytest.raises(grpc.RpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.INTERNAL


async def test_a_client_that_leaves_is_gone_for_the_owner_too(
    front: Any, bench: Any, eventually: Any
) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        calls = [
            f.bench.client.unary("Later"),
            f.bench.client.stream("ItemsLater"),
            f.bench.client.bidi("Talk"),
        ]
        await eventually(lambda: len(owner.services.futures) == 2 and owner.services.sessions)
        for call in calls:
            call.cancel()
        await eventually(lambda: all(future.cancelled() for future in owner.services.futures))
        await eventually(lambda: owner.services.sessions[0].closed)
        await eventually(lambda: owner.door.statistics().in_flight == 0)
        await eventually(lambda: f.bench.door.statistics().in_flight == 0)


async def test_both_sides_talk_through_it(front: Any, bench: Any, eventually: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        call = f.bench.client.bidi("Talk", metadata=(("x-mq-client-id", "talker"),))
        for message in (b"one", b"", b"x" * 500_000):
            await call.write(message)
            assert await call.read() == message
        await eventually(lambda: owner.services.sessions)
        (session,) = owner.services.sessions
        assert (session.ctx.client_id, session.ctx.forwarded) == ("talker", True)
        session.outbound.send(b"unasked")
        assert await call.read() == b"unasked"
        await call.write(b"tail")
        await call.done_writing()
        await eventually(lambda: session.closed == [HALF_CLOSED])
        session.outbound.send(b"a late word")
        assert await call.read() == b"a late word"
        session.tail.set_result(None)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("word", "code"),
    [
        (b"wire", grpc.StatusCode.OK),
        (b"rpc", grpc.StatusCode.INVALID_ARGUMENT),
        (b"finish", grpc.StatusCode.OK),
    ],
)
async def test_the_owner_ends_a_talk(
    front: Any, bench: Any, word: bytes, code: grpc.StatusCode
) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        call = f.bench.client.bidi("Talk")
        await call.write(word)
        with contextlib.suppress(grpc.RpcError):
            await _read_all(call)
        assert await call.code() is code


async def test_a_flood_from_the_owner_waits_for_the_client(
    front: Any, bench: Any, eventually: Any
) -> None:
    async with await bench(front_outbound_bytes=2_000_000) as owner, front(_at(owner)) as f:
        call = f.bench.client.bidi("Talk")
        await call.write(b"flood")
        await eventually(lambda: owner.services.floods == 1)
        await call.write(b"finish")
        assert {len(item) for item in await _read_all(call)} == {100_000}


async def test_one_hop_is_the_most(front: Any, bench: Any) -> None:
    async with await bench() as owner, front(_at(owner)) as f:
        marked = (("x-cometmq-forwarded", "1"),)
        for start in (f.bench.client.unary, f.bench.client.stream):
            call = start("Echo" if start == f.bench.client.unary else "Items", metadata=marked)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert "one hop" in await call.details()
        assert owner.services.contexts == []
        f.decision = "serve"
        assert await f.bench.client.unary("Echo", b"here", metadata=marked) == b"here"
        assert owner.services.contexts == []


async def test_a_forwarded_mark_is_accepted_from_nodes_of_the_cluster_only(
    front: Any, bench: Any
) -> None:
    async with await bench() as owner, front(_at(owner), "serve", token="secret") as f:
        marked = (("x-cometmq-forwarded", "1"),)
        for metadata in (marked, (*marked, ("x-cometmq-token", "wrong"))):
            for call in (
                f.bench.client.unary("Echo", b"mine", metadata=metadata),
                f.bench.client.stream("Items", b"1 0", metadata=metadata),
                f.bench.client.bidi("Talk", metadata=metadata),
            ):
                assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert (owner.services.contexts, owner.services.sessions, f.asked) == ([], [], [])
        # The address of a client is believed only from a node.
        assert await f.bench.client.unary("Echo", b"direct") == b"direct"
        direct = f.asked.pop()[2]
        owner.services.contexts.clear()
        token = (("x-cometmq-forwarded", "10.1.2.3:4"), ("x-cometmq-token", "secret"))
        assert await f.bench.client.unary("Echo", b"here", metadata=token) == b"here"
        assert owner.services.contexts == []  # served by the access point's own node
        assert f.asked[-1][2].peer == "10.1.2.3:4"
        # A client's own token is not forwarded; the node presents the cluster's.
        shown = (("x-cometmq-token", "a client's"),)
        assert await f.bench.client.unary("Echo", b"there", metadata=shown) == b"there"
        (ctx,) = owner.services.contexts
        assert (ctx.forwarded, ctx.token, ctx.metadata) == (True, "secret", ())
        assert ctx.forwarded_for == f.asked[-1][2].peer
        assert direct.forwarded_for == ""


async def test_two_nodes_that_point_at_each_other_do_not_circle(front: Any) -> None:
    # The hold ends long before the deadline, however long the machine stalls.
    async with (
        front(None, front_forward_hold_margin=10_000) as one,
        front(_at(one.bench)) as two,
    ):
        one.owner = _at(two.bench)
        answer = await one.bench.client.unary("Wire", timeout=10.5)
        assert v2.AckMessageResponse.FromString(answer).status.code == v2.HA_NOT_AVAILABLE
        assert two.access.statistics.forwarded == 0
