"""The messages in flight that DescribeGroup lists: since when, until when, for which client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.live import create_topic, running, settings
from cometmq.tests.harness.wire import Wire, normal_message, receive_request

INVISIBLE_S = 600


async def described(wire: Wire, **fields: Any) -> v1.DescribeGroupResponse:
    answer: v1.DescribeGroupResponse = await wire.call(
        paths.DESCRIBE_GROUP, v1.DescribeGroupRequest(name="g", **fields), v1.DescribeGroupResponse
    )
    assert answer.code == v2.OK, answer.message
    return answer


async def test_deliveries_are_listed_until_they_are_acknowledged(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t", queues=1)
        for n in range(3):
            await wire.send([normal_message("t", f"M{n}", b"x")])
        now_ms = live.node.runtime.clock.wall_ms()
        request = receive_request("t", "g")
        request.invisible_duration.seconds = INVISIBLE_S
        _, received = await wire.receive(request)
        assert len(received) == 3
        assert not (await described(wire)).deliveries
        found = (await described(wire, deliveries=10)).deliveries
        assert [(one.topic, one.queue_id, one.offset) for one in found] == [
            ("t", 0, 0),
            ("t", 0, 1),
            ("t", 0, 2),
        ]
        for one in found:
            assert one.delivered_ms >= now_ms
            assert one.visible_ms - one.delivered_ms == INVISIBLE_S * 1_000
            assert one.attempt == 1
        (one,) = (await described(wire, deliveries=9, topic="t", queue_id=0, offset=1)).deliveries
        assert one.offset == 1
        assert len((await described(wire, deliveries=2)).deliveries) == 2


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_push_consumer_is_named(tmp_path: Path, fifo: bool) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=1, message_type=v2.FIFO if fifo else v2.NORMAL)
        one.group("g", orderly=fifo)
        await one.sent("t", b"a", **({"message_group": "x"} if fifo else {}))
        await one.receive("t", "g", one.context("pusher"), auto_renew=True)
        (held,) = one.node.pop.deliveries("g")
        assert (held.topic, held.offset, held.attempt) == ("t", 0, 1)
        assert held.client_id == "pusher"
