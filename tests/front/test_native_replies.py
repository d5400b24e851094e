"""Answers at the native door: those that are ready together go to the network in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cometmq.front.context import RequestContext
from cometmq.front.failure import FailureHandler
from cometmq.front.metrics.calls import CallTimes
from cometmq.front.metrics.families import Families
from cometmq.front.native.replies import Replies
from cometmq.front.service import Kind, Method

_MS = 1_000_000
ECHO, OTHER = (
    Method(path, Kind.UNARY, bytes, lambda *_: b"", lambda _: b"")
    for path in ("/t.T/Echo", "/t.T/Other")
)


class Network:
    """Records what is passed on; the clients of the calls in `gone` have left."""

    def __init__(self) -> None:
        self.now_ns = 5 * _MS
        self.passed: list[list[tuple[str, bytes]]] = []
        self.gone: set[str] = set()
        self.undelivered: list[str] = []
        self.times = CallTimes(lambda: self.now_ns)
        self.replies = Replies(self.reply_many, self.times, FailureHandler(lambda: self.now_ns))

    def reply_many(self, calls: list[Any], answers: list[bytes]) -> list[int]:
        self.passed.append(list(zip(calls, answers, strict=True)))
        return [position for position, call in enumerate(calls) if call in self.gone]

    def add(self, call: str, method: Method = ECHO, begin_ns: int = 0) -> None:
        def report() -> None:
            self.undelivered.append(call)

        ctx = RequestContext(begin_ns=begin_ns, on_undelivered=report)
        self.replies.add(call, call.encode(), method, ctx)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of calls by method, up to 1 ms and altogether."""
        family = self.times.family(Families("C", "broker", "b-0"))
        return {
            (sample.labels["request_code"], sample.labels["le"]): int(sample.value)
            for sample in family.samples
            if sample.name.endswith("_bucket") and sample.labels["le"] in ("1.0", "+Inf")
        }


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


def test_answers_are_counted_by_method_and_arrival(network: Network) -> None:
    with network.replies:
        for call in "abc":
            network.add(call)
        network.add("d", begin_ns=5 * _MS)
        network.add("e", OTHER, 5 * _MS)
        network.add("f", OTHER, 5 * _MS)
    assert network.counts() == {
        ("echo", "1.0"): 1,
        ("echo", "+Inf"): 4,
        ("other", "1.0"): 2,
        ("other", "+Inf"): 2,
    }
