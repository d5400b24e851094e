"""A broker forwards on its own client port while it reopens its store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from cometmq.broker.lifecycle import BrokerLifecycle
from cometmq.proto import paths, v2
from cometmq.tests.broker.desk import message
from cometmq.tests.broker.live import Live, create_topic, nameserver, running, settings, until


async def send(broker: Live, topic: str) -> int:
    """Send one message through a broker's client port; 0: the port does not answer."""
    request = v2.SendMessageRequest(messages=[message(topic, b"body")])
    async with broker.client() as wire:
        try:
            answer = await wire.call(paths.SEND_MESSAGE, request, v2.SendMessageResponse)
        except grpc.aio.AioRpcError:
            return 0
    return int(answer.status.code)


async def test_a_broker_forwards_while_it_reopens_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_cut = asyncio.Event()
    run_pending = BrokerLifecycle._run_pending

    async def wait(instance: BrokerLifecycle) -> None:
        await is_cut.wait()
        await run_pending(instance)

    async with (
        nameserver() as namesrv,
        running(settings(tmp_path / "a", namesrv_addr=namesrv)) as first,
        running(settings(tmp_path / "b", namesrv_addr=namesrv, broker_name="broker-b")) as second,
    ):
        async with first.client() as wire:
            assert (await create_topic(wire, "one")).code == v2.OK
        monkeypatch.setattr(BrokerLifecycle, "_run_pending", wait)
        second.server.instance._callbacks.reopen("its log was cut")
        await until(lambda: not second.server.alive)
        async with asyncio.timeout(20):
            while await send(second, "one") != v2.OK:  # noqa: ASYNC110 - each call is a condition
                await asyncio.sleep(0.05)
        assert not second.server.alive
        is_cut.set()
        await until(lambda: second.server.alive)
        assert second.server.instances == 2
        assert await send(second, "one") == v2.OK
