"""Consumers against a broker that loses responses, sends invalid ones or disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import cometmq
from cometmq.client.errors import BadRequest, Closed
from cometmq.client.push_consumer import Handler
from cometmq.proto import paths, v2

from .strange_broker import OK, StrangeBroker, in_turn, until

WAIT_S = 30.0
DEAD = v2.Status(code=v2.INVALID_RECEIPT_HANDLE, message="gone")


@asynccontextmanager
async def receiving(**options: Any) -> AsyncIterator[tuple[StrangeBroker, cometmq.SimpleConsumer]]:
    """A broker and its consumer."""
    async with (
        StrangeBroker.running() as broker,
        cometmq.SimpleConsumer(
            broker.endpoints, group="g", topics="t", **{"timeout": WAIT_S, **options}
        ) as consumer,
    ):
        yield broker, consumer


def pushed(broker: StrangeBroker, handler: Handler, **options: Any) -> cometmq.PushConsumer:
    """A push consumer of the broker."""
    options = {"timeout": WAIT_S, **options}
    return cometmq.PushConsumer(broker.endpoints, handler, group="g", topics="t", **options)


async def test_a_retried_ack_with_a_used_handle_succeeds() -> None:
    async with receiving() as (broker, consumer):
        broker.deliver("a")
        (message,) = await consumer.receive()
        dead = v2.AckMessageResponse(status=DEAD)
        broker.answers[paths.ACK_MESSAGE] = in_turn(grpc.StatusCode.UNAVAILABLE, dead)
        await consumer.ack(message)
        with pytest.raises(BadRequest):
            await consumer.ack(message)
        dead_too = v2.ChangeInvisibleDurationResponse(status=DEAD)
        broker.answers[paths.CHANGE_INVISIBLE_DURATION] = in_turn(
            grpc.StatusCode.UNAVAILABLE, dead_too
        )
        await consumer.nack(message)


async def test_messages_missing_in_the_ack_response_are_refused() -> None:
    async with receiving() as (broker, consumer):
        broker.deliver("a", "b")
        messages = await consumer.receive()
        answer = v2.AckMessageResponse(status=v2.Status(code=v2.MULTIPLE_RESULTS))
        answer.entries.add(receipt_handle="handle-b", status=OK)
        broker.answers[paths.ACK_MESSAGE] = lambda _: answer
        ((refused, error),) = await consumer.ack_all(messages)
        assert (refused.message_id, error.code_name) == ("a", "INTERNAL_ERROR")
        assert consumer.statistics.acknowledged == 1


async def test_close_makes_a_pending_receive_raise_closed() -> None:
    async with StrangeBroker.running() as broker:
        broker.deliver()
        consumer = cometmq.SimpleConsumer(broker.endpoints, group="g", topics="t")
        await consumer.start()
        broker.answers[paths.RECEIVE_MESSAGE] = lambda _: asyncio.sleep(60)
        receiving = asyncio.create_task(consumer.receive())
        await until(lambda: broker.calls[paths.RECEIVE_MESSAGE] == 1)
        await consumer.close()
        with pytest.raises(Closed):
            await receiving


async def test_a_receive_of_less_than_the_least_poll_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.client.consuming.ANSWER_MARGIN_S", WAIT_S)
    async with receiving() as (broker, consumer):
        for wait, marked in ((0, True), (4.0, True), (60.0, False)):
            broker.deliver("a")
            (_,) = await consumer.receive(wait=wait)
            assert ("x-cometmq-short-poll" in broker.metadata[paths.RECEIVE_MESSAGE]) is marked


async def test_immediate_empty_polls_cause_no_busy_loop() -> None:
    async with receiving() as (broker, consumer):
        assert await consumer.receive(wait=0.5) == []
        assert broker.calls[paths.RECEIVE_MESSAGE] < 10
        async with pushed(broker, print):
            await asyncio.sleep(0.5)
        assert broker.calls[paths.RECEIVE_MESSAGE] < 20


async def test_a_topic_without_a_route_is_not_subscribed() -> None:
    async with receiving() as (broker, consumer):
        broker.answers[paths.QUERY_ROUTE] = lambda _: v2.QueryRouteResponse(
            status=v2.Status(code=v2.TOPIC_NOT_FOUND)
        )
        with pytest.raises(cometmq.RequestRefused):
            await consumer.subscribe("other")
        for _ in range(2):
            assert await consumer.receive(wait=0) == []


async def test_an_unimplemented_method_is_refused_at_once() -> None:
    async with StrangeBroker.running() as broker:
        broker.answers[paths.PULL_MESSAGE] = lambda _: grpc.StatusCode.UNIMPLEMENTED
        async with cometmq.PullConsumer(broker.endpoints, group="g", topics="t") as consumer:
            with pytest.raises(cometmq.RequestRefused, match="UNIMPLEMENTED"):
                await consumer.poll(wait=WAIT_S)


async def test_an_ack_is_retried_until_the_broker_is_back() -> None:
    """The broker hides the message while the consumer is connected."""
    async with StrangeBroker.running() as broker:
        broker.deliver("a")
        broker.answers[paths.ACK_MESSAGE] = lambda _: grpc.StatusCode.UNAVAILABLE

        async def handle(_: cometmq.Message) -> None:
            pass

        async with pushed(broker, handle) as consumer:
            consumer._session.timeout_s = 0.1  # after the start, which may take longer
            await until(lambda: broker.calls[paths.ACK_MESSAGE] >= 3)
            del broker.answers[paths.ACK_MESSAGE]
            await until(lambda: consumer.statistics.acknowledged == 1)


async def cancels_itself(_: cometmq.Message) -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


class Breaks:
    """An interceptor with a defect."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self.fail)

    def fail(self, *_: object) -> None:
        raise LookupError("broken hook")


@pytest.mark.parametrize("what", ["handler", "received", "handling", "handled"])
async def test_a_failure_around_a_handler_returns_the_message(what: str) -> None:
    async def fine(_: cometmq.Message) -> None:
        pass

    handler: Callable[[cometmq.Message], Awaitable[None]] = fine
    if what == "handler":
        handler = cancels_itself
    hooks = [] if what == "handler" else [Breaks(what)]
    async with StrangeBroker.running() as broker:
        broker.deliver("a", "b")
        async with pushed(broker, handler, interceptors=hooks) as consumer:
            await until(lambda: broker.calls[paths.CHANGE_INVISIBLE_DURATION] == 2)
            assert consumer.statistics.handler_failures == 2
    assert not broker.calls[paths.ACK_MESSAGE]


async def test_close_does_not_wait_for_the_retries_of_a_message_group() -> None:
    seen: list[str] = []

    async def handle(message: cometmq.Message) -> None:
        seen.append(message.message_id)
        raise RuntimeError("always")

    async with StrangeBroker.running() as broker:
        broker.fifo = True  # and the pause after a failure is 30 s
        broker.deliver("a", "b")
        consumer = await pushed(broker, handle).start()
        await until(lambda: bool(seen))
        async with asyncio.timeout(20.0):
            await consumer.close()
    assert seen == ["a"], "the next of the group must wait for it"


async def test_a_handler_may_close_its_own_consumer() -> None:
    closed = asyncio.Event()

    async def handle(_: cometmq.Message) -> None:
        await consumer.close()
        closed.set()

    async with StrangeBroker.running() as broker:
        broker.deliver("a")
        consumer = await pushed(broker, handle).start()
        async with asyncio.timeout(20.0):
            await closed.wait()


async def test_settings_without_a_subscription_keep_fifo() -> None:
    async with StrangeBroker.running() as broker:
        broker.fifo = True
        async with pushed(broker, print) as consumer:
            consumer._apply_settings(v2.Settings())
            assert consumer._fifo
