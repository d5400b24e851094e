"""Answers at the native door: those that are ready together go to the network in one call."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import grpc
import pytest

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.front.failure import FailureHandler
from cometmq.front.native.calls import StreamCall
from cometmq.front.native.replies import Answer, Replies
from cometmq.front.service import Kind, Method
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto.native import is_available

native_only = pytest.mark.parametrize("door_name", ["native"])
if not is_available():
    native_only = pytest.mark.skip("the native door is not installed")

ECHO = Method("/t.T/Echo", Kind.UNARY, bytes, lambda *_: b"", lambda _: b"")


class Network:
    """Records what is passed on; the clients of the calls in `gone` have left."""

    def __init__(self) -> None:
        self.passed: list[list[tuple[str, Answer]]] = []
        self.gone: set[str] = set()
        self.undelivered: list[str] = []
        self.replies = Replies(self.reply_many, FailureHandler(time.monotonic_ns))

    def reply_many(self, calls: list[Any], answers: list[Answer]) -> list[int]:
        self.passed.append(list(zip(calls, answers, strict=True)))
        return [position for position, call in enumerate(calls) if call in self.gone]

    def add(self, call: str) -> None:
        def report() -> None:
            self.undelivered.append(call)

        ctx = RequestContext(on_undelivered=report)
        self.replies.add(call, call.encode(), ECHO, ctx)


@pytest.fixture
def network() -> Network:
    return Network()


def test_an_answer_outside_of_a_turn_is_passed_on_at_once(network: Network) -> None:
    network.add("a")
    assert network.passed == [[("a", b"a")]]


def test_answers_of_a_turn_are_passed_on_together_in_their_order(network: Network) -> None:
    with network.replies:
        network.add("a")
        with network.replies:  # an append within the turn
            network.add("b")
        network.add("c")
        assert not network.passed
    assert network.passed == [[("a", b"a"), ("b", b"b"), ("c", b"c")]]
    with network.replies:
        pass
    assert len(network.passed) == 1


def test_ready_answers_are_passed_on_when_a_turn_takes_long(network: Network) -> None:
    with network.replies:
        network.add("a")
        network.replies.pass_on()
        assert network.passed == [[("a", b"a")]]
        network.add("b")
    assert network.passed[1:] == [[("b", b"b")]]


def test_a_stream_whose_client_has_left_is_unregistered(network: Network) -> None:
    class Door:
        left: ClassVar[list[Any]] = []

        def leave(self, pending: Any) -> None:
            self.left.append(pending)

    door: Any = Door()
    lost: list[str] = []
    streams = [
        StreamCall(door, name, ECHO, RequestContext(on_undelivered=partial(lost.append, name)))
        for name in ("a", "b")
    ]
    network.gone = {"a"}
    with network.replies:
        for stream in streams:
            network.replies.add_stream(stream, [b"1", b"2"])
    assert network.passed == [[("a", [b"1", b"2"]), ("b", [b"1", b"2"])]]
    assert door.left == [streams[0]]
    assert lost == ["a"]


def test_answers_are_passed_on_when_a_turn_fails(network: Network) -> None:
    def fail(add: Callable[[str], None]) -> None:
        with network.replies:
            add("a")
            raise KeyError

    with pytest.raises(KeyError):
        fail(network.add)
    assert network.passed == [[("a", b"a")]]
    network.add("b")  # not in the turn
    assert len(network.passed) == 2


def test_only_the_calls_whose_client_has_left_are_undelivered(network: Network) -> None:
    network.gone = {"b", "d"}
    with network.replies:
        for call in "abcd":
            network.add(call)
    assert network.undelivered == ["b", "d"]


def test_many_answers_of_a_turn_do_not_wait_for_each_other(network: Network) -> None:
    with network.replies:
        for number in range(100):
            network.add(str(number))
        assert [len(each) for each in network.passed] == [64]
    assert [len(each) for each in network.passed] == [64, 36]


@native_only
async def test_an_answer_that_is_no_message_fails_its_call_alone(bench: Any) -> None:
    async with await bench() as b:
        original = b.door.replies.add

        def add(call: Any, answer: Any, method: Any, ctx: Any) -> None:
            original(call, None if answer == b"bad" else answer, method, ctx)

        b.door.replies.add = add
        calls = [b.client.unary("Echo", text) for text in (b"a", b"bad", b"c")]
        first, bad, last = await asyncio.gather(*calls, return_exceptions=True)
        assert (first, last) == (b"a", b"c")
        assert isinstance(bad, grpc.RpcError)
        assert bad.code() is grpc.StatusCode.INTERNAL


@native_only
def test_a_door_is_freed_without_a_garbage_collection(door_name: str) -> None:
    from cometmq.front.native.door import NativeDoor

    gc.disable()
    try:
        door = NativeDoor({}, DoorConfig(front_door=door_name), Clock(), None, NodeLinks())
        freed = weakref.ref(door)
        del door
        assert freed() is None
    finally:
        gc.enable()
