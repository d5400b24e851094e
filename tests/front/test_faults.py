"""Faults: the table itself, and how a door meets the faults of its RPCs."""

import asyncio
import errno
from typing import Any

import grpc
import pytest

from cometmq.front.clock import Clock
from cometmq.front.faults import FAULTS_MAX, Fault, FaultAction, FaultKind, FaultTable
from cometmq.proto import paths, v2

ECHO = "/test.Conformance/Echo"
RPC, DISK = FaultKind.RPC, FaultKind.DISK
FAIL, DELAY, DROP = FaultAction.FAIL, FaultAction.DELAY, FaultAction.DROP


def _table() -> FaultTable:
    return FaultTable(7, Clock())


def test_an_empty_table_does_nothing() -> None:
    table = _table()
    assert not table.rpc
    assert table.rpc_fault(ECHO) is None
    table.disk_fault("fdatasync")
    assert table.list() == []


def test_a_disk_call_fails_with_its_errno() -> None:
    table = _table()
    table.put(Fault("full", DISK, "pwrite", FAIL, code=errno.ENOSPC))
    table.disk_fault("fdatasync")
    with pytest.raises(OSError, match="full") as failed:
        table.disk_fault("pwrite")
    assert failed.value.errno == errno.ENOSPC
    assert [fault.hits for fault in table.list()] == [1]


def test_a_fault_of_every_method_does_not_lock_out_the_call_that_clears_it() -> None:
    table = _table()
    table.put(Fault("all", RPC, "*", FAIL, code=14))
    assert table.rpc_fault(ECHO) is not None
    assert table.rpc_fault(paths.CLEAR_FAULTS) is None


def test_hits_are_limited_and_stay_listed() -> None:
    table = _table()
    table.put(Fault("twice", DISK, "*", FAIL, code=errno.EIO, remaining=2))
    for call in ("pwrite", "fsync"):
        with pytest.raises(OSError, match="twice"):
            table.disk_fault(call)
    table.disk_fault("pwrite")
    (fault,) = table.list()
    assert (fault.hits, fault.spent) == (2, True)


def test_the_rate_is_chance_from_a_seed() -> None:
    def hits() -> list[bool]:
        table = _table()
        table.put(Fault("some", RPC, ECHO, FAIL, code=14, rate=0.3))
        return [table.rpc_fault(ECHO) is not None for _ in range(1_000)]

    first = hits()
    assert first == hits()
    assert 200 < sum(first) < 400


def test_an_id_is_replaced_and_cleared() -> None:
    table = _table()
    table.put(Fault("a", RPC, ECHO, FAIL, code=14))
    table.put(Fault("b", RPC, ECHO, DELAY, delay_ms=1))
    table.put(Fault("a", RPC, "/other", FAIL, code=14))
    hit = table.rpc_fault(ECHO)
    assert hit is not None and hit.id == "b"
    assert table.clear("a", "never") == 1
    assert [fault.id for fault in table.list()] == ["b"]
    assert table.clear() == 1
    assert not table.rpc


@pytest.mark.parametrize(
    "fault",
    [
        Fault("", RPC, ECHO, FAIL, code=14),
        Fault("x", RPC, "", FAIL, code=14),
        Fault("x", RPC, ECHO, FAIL, code=17),
        Fault("x", RPC, ECHO, FAIL, code=0),
        Fault("x", RPC, ECHO, FAIL, code=14, rate=1.5),
        Fault("x", RPC, ECHO, FAIL, code=14, remaining=-1),
        Fault("x", RPC, ECHO, DELAY, delay_ms=-1),
        Fault("x", DISK, "pwrite", DROP),
        Fault("x", DISK, "pwrite", FAIL, code=99_999),
    ],
)
def test_nonsense_is_refused(fault: Fault) -> None:
    with pytest.raises(ValueError, match=r"fault"):
        _table().put(fault)


def test_the_table_is_bounded() -> None:
    table = _table()
    for number in range(FAULTS_MAX):
        table.put(Fault(f"{number}", RPC, ECHO, FAIL, code=14))
    with pytest.raises(ValueError, match="clear some"):
        table.put(Fault("one more", RPC, ECHO, FAIL, code=14))


async def test_a_call_fails_with_a_grpc_status(bench: Any) -> None:
    async with await bench() as b:
        b.faults.put(Fault("down", RPC, ECHO, FAIL, code=14, remaining=1))
        with pytest.raises(grpc.RpcError) as failed:
            await b.client.unary("Echo")
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "down" in failed.value.details()
        assert b.services.contexts == []
        assert await b.client.unary("Echo", b"x") == b"x"


async def test_a_call_fails_with_a_wire_code(bench: Any) -> None:
    async with await bench() as b:
        b.faults.put(Fault("busy", RPC, "*", FAIL, code=v2.TOO_MANY_REQUESTS))
        answer = v2.AckMessageResponse.FromString(await b.client.unary("Echo"))
        assert answer.status.code == v2.TOO_MANY_REQUESTS
        (item,) = [item async for item in b.client.stream("Items", b"3 0")]
        assert v2.ReceiveMessageResponse.FromString(item).status.code == v2.TOO_MANY_REQUESTS


async def test_a_call_is_served_later(bench: Any) -> None:
    async with await bench() as b:
        b.faults.put(Fault("slow", RPC, ECHO, DELAY, delay_ms=20))
        assert await b.client.unary("Echo", b"late") == b"late"


async def test_a_dropped_answer_was_served(bench: Any) -> None:
    async with await bench() as b:
        b.faults.put(Fault("lost", RPC, "*", DROP, remaining=2))
        # Both wait at once: the time must be enough for a slow machine to serve them.
        calls = (
            b.client.unary("Echo", timeout=5),
            b.client.stream("Items", b"1 0", timeout=5),
        )
        codes = await asyncio.gather(*(call.code() for call in calls))
        assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert len(b.services.contexts) == 1
        assert b.services.undelivered == 0  # lost on the way: the server does not know
        assert await b.client.unary("Echo", b"x") == b"x"
