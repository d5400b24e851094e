"""Producers against a broker that loses responses, sends invalid ones or disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import cometmq
from cometmq.client.errors import BadRequest, Closed
from cometmq.proto import paths, v2

from .strange_broker import OK, StrangeBroker, in_turn, until

WAIT_S = 30.0


@asynccontextmanager
async def producing(**options: Any) -> AsyncIterator[tuple[StrangeBroker, cometmq.Producer]]:
    """A broker and its producer."""
    async with (
        StrangeBroker.running() as broker,
        cometmq.Producer(broker.endpoints, **{"timeout": WAIT_S, **options}) as producer,
    ):
        yield broker, producer


def sent_bodies(raw: bytes) -> list[bytes]:
    return [each.body for each in v2.SendMessageRequest.FromString(raw).messages]


async def test_a_refusal_after_a_lost_response_is_an_unknown_outcome() -> None:
    async with producing() as (broker, producer):
        refusal = v2.SendMessageResponse(status=v2.Status(code=v2.ILLEGAL_MESSAGE_KEY))
        broker.answers[paths.SEND_MESSAGE] = in_turn(grpc.StatusCode.UNAVAILABLE, refusal)
        with pytest.raises(cometmq.OutcomeUnknown) as raised:
            await producer.send("t", b"x", message_id="mine")
        assert raised.value.message_id == "mine"


@pytest.mark.parametrize(
    "answer",
    [
        v2.SendMessageResponse(),
        v2.SendMessageResponse(status=OK),
        b"\xff\xff\xff\xff",
    ],
    ids=["no status", "no entries", "no protobuf"],
)
async def test_an_invalid_response_is_an_unknown_outcome(answer: Any) -> None:
    async with producing() as (broker, producer):
        await producer.send("t", b"first")  # the limit does not include the route
        broker.answers[paths.SEND_MESSAGE] = lambda _: answer
        with pytest.raises(cometmq.OutcomeUnknown):
            await producer.send("t", b"x", within=2.0)


@pytest.mark.parametrize("answer", [b"\xff\xff\xff\xff", grpc.StatusCode.UNAVAILABLE])
async def test_a_send_without_a_route_raises_connection_failed(answer: Any) -> None:
    async with producing() as (broker, producer):
        broker.answers[paths.QUERY_ROUTE] = lambda _: answer
        with pytest.raises(cometmq.ConnectionFailed):
            await producer.send("t", b"x", within=1.0)
        assert not broker.calls[paths.SEND_MESSAGE]


async def test_a_send_to_a_silent_broker_ends_within_its_total_timeout() -> None:
    async with producing(request_timeout=60.0, timeout=60.0) as (broker, producer):
        await producer.send("t", b"first")  # the limit does not include the route
        broker.answers[paths.SEND_MESSAGE] = lambda _: asyncio.sleep(60)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(cometmq.OutcomeUnknown):
                await producer.send("t", b"x", within=2.0)


async def test_a_refused_send_is_repeated_while_its_new_route_does_not_come() -> None:
    async with producing(request_timeout=60.0, timeout=60.0) as (broker, producer):
        await producer.send("t", b"first")
        refusal = v2.SendMessageResponse(status=v2.Status(code=v2.HA_NOT_AVAILABLE))
        accepted = broker.healthy
        answers = [refusal]
        broker.answers[paths.SEND_MESSAGE] = lambda raw: (
            answers.pop() if answers else accepted(paths.SEND_MESSAGE, raw)
        )
        broker.answers[paths.QUERY_ROUTE] = lambda _: asyncio.sleep(60)  # its host has vanished
        async with asyncio.timeout(WAIT_S):
            await producer.send("t", b"second")
        assert broker.calls[paths.QUERY_ROUTE] == 2


async def test_a_cancelled_send_keeps_the_order_of_its_message_group() -> None:
    async with producing(timeout=WAIT_S) as (broker, producer):
        gate, under_way, most = asyncio.Event(), 0, 0

        async def slowly(raw: bytes) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await gate.wait()
            under_way -= 1
            return broker.healthy(paths.SEND_MESSAGE, raw)

        broker.answers[paths.SEND_MESSAGE] = slowly
        sends = [asyncio.create_task(producer.send("t", b"x", group="g")) for _ in range(3)]
        await until(lambda: under_way == 1)
        sends[1].cancel()
        await asyncio.wait([sends[1]])
        asyncio.get_running_loop().call_later(0.1, gate.set)
        await asyncio.gather(sends[0], sends[2])
        assert most == 1


async def test_one_bad_message_of_a_batch_fails_alone() -> None:
    async with producing(linger=0.05) as (broker, producer):

        def some(raw: bytes) -> Any:
            if b"bad" in sent_bodies(raw):
                return v2.SendMessageResponse(status=v2.Status(code=v2.ILLEGAL_MESSAGE_KEY))
            return broker.healthy(paths.SEND_MESSAGE, raw)

        broker.answers[paths.SEND_MESSAGE] = some
        first, second, third = await asyncio.gather(
            *(producer.send("t", body) for body in (b"good", b"bad", b"fine")),
            return_exceptions=True,
        )
        assert isinstance(first, cometmq.Receipt)
        assert isinstance(third, cometmq.Receipt)
        assert isinstance(second, BadRequest)


async def test_cancelling_a_flush_does_not_cancel_the_sends() -> None:
    async with producing(linger=0.001, timeout=WAIT_S) as (broker, producer):
        gate = asyncio.Event()

        async def slowly(raw: bytes) -> Any:
            await gate.wait()
            return broker.healthy(paths.SEND_MESSAGE, raw)

        broker.answers[paths.SEND_MESSAGE] = slowly
        sending = asyncio.create_task(producer.send("t", b"x"))
        await until(lambda: broker.calls[paths.SEND_MESSAGE] == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.flush(), 0.05)
        gate.set()
        assert isinstance(await sending, cometmq.Receipt)


@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_close_waits_for_sends_in_flight(linger: float) -> None:
    async with StrangeBroker.running() as broker:
        gate = asyncio.Event()

        async def slowly(raw: bytes) -> Any:
            await gate.wait()
            return broker.healthy(paths.SEND_MESSAGE, raw)

        broker.answers[paths.SEND_MESSAGE] = slowly
        producer = await cometmq.Producer(broker.endpoints, linger=linger).start()
        sending = asyncio.create_task(producer.send("t", b"x"))
        await until(lambda: broker.calls[paths.SEND_MESSAGE] == 1)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(Closed):
            await producer.send("t", b"late")
        gate.set()
        assert isinstance(await sending, cometmq.Receipt)
        await closing


async def test_an_exception_of_a_hook_is_raised_by_the_batched_send() -> None:
    class Broken:
        def sent(self, *_: object) -> None:
            raise LookupError("broken hook")

    async with producing(linger=0.001, interceptors=[Broken()]) as (_, producer):
        with pytest.raises(LookupError, match="broken hook"):
            await producer.send("t", b"x")


async def test_hooks_are_called_for_a_cancelled_send() -> None:
    called: list[object] = []

    class Hooks:
        def sending(self, message: object) -> None:
            called.append("sending")

        def sent(self, message: object, result: object) -> None:
            called.append(type(result))

    async with producing(interceptors=[Hooks()]) as (broker, producer):
        broker.answers[paths.SEND_MESSAGE] = lambda _: asyncio.sleep(60)
        sending = asyncio.create_task(producer.send("t", b"x"))
        await until(lambda: broker.calls[paths.SEND_MESSAGE] == 1)
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
    assert called == ["sending", cometmq.OutcomeUnknown]


# Transactions.


def transactional(broker: StrangeBroker, checker: Any) -> cometmq.TransactionProducer:
    return cometmq.TransactionProducer(
        broker.endpoints, topics=["t"], checker=checker, timeout=WAIT_S, request_timeout=WAIT_S
    )


def give_up_soon(producer: cometmq.TransactionProducer) -> None:
    """Limit the calls from now on; the start and the half message may take longer."""
    producer._session.timeout_s, producer._session.request_timeout_s = 2.0, 0.9


async def test_a_commit_of_unknown_outcome_is_not_followed_by_a_rollback() -> None:
    ends: list[int] = []

    def lose(raw: bytes) -> Any:
        ends.append(v2.EndTransactionRequest.FromString(raw).resolution)
        return asyncio.sleep(60)

    async with StrangeBroker.running() as broker:
        broker.answers[paths.END_TRANSACTION] = lose
        async with transactional(broker, lambda _: cometmq.Resolution.UNKNOWN) as producer:
            with pytest.raises(cometmq.OutcomeUnknown):
                async with producer.transaction("t", b"x") as transaction:
                    give_up_soon(producer)
                    await transaction.commit()
    assert set(ends) == {v2.COMMIT}


async def test_a_failed_rollback_does_not_replace_the_exception_of_the_block() -> None:
    async with StrangeBroker.running() as broker:
        broker.answers[paths.END_TRANSACTION] = lambda _: grpc.StatusCode.UNAVAILABLE
        async with transactional(broker, lambda _: cometmq.Resolution.UNKNOWN) as producer:
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction("t", b"x"):
                    give_up_soon(producer)
                    raise ZeroDivisionError


async def test_a_check_received_during_start_is_answered() -> None:
    async with StrangeBroker.running() as broker:
        check = v2.TelemetryCommand()
        orphan = check.recover_orphaned_transaction_command
        orphan.transaction_id = "one"
        orphan.message.CopyFrom(broker.message("half").message)
        broker.first_commands.append(check)
        async with transactional(broker, lambda _: cometmq.Resolution.COMMIT):
            await until(lambda: broker.calls[paths.END_TRANSACTION] >= 1)


async def test_a_second_start_is_refused() -> None:
    async with producing() as (_, producer):
        with pytest.raises(RuntimeError, match="already started"):
            await producer.start()
        await producer.send("t", b"still works")
