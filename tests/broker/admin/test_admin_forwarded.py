"""Administration through a follower: the follower forwards the command, every replica applies
it.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.live import create_group, create_topic, until
from cometmq.tests.broker.test_replicas import pair
from cometmq.tests.harness.wire import normal_message, receive_request


async def test_every_command_reaches_the_leader(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _), follower.client() as wire:
        assert (await create_topic(wire, "t", queues=1)).created
        assert (await create_group(wire, "g", max_attempts=3)).created
        await wire.send([normal_message("t", "1", b"a"), normal_message("t", "2", b"b")])
        code, got = await wire.receive(receive_request("t", "g"))
        assert (code, len(got)) == (v2.OK, 2)
        assert (await wire.ack("t", "g", got)).status.code == v2.OK
        await until(lambda: follower.node.offsets.get("t", "g", 0) == 2)
        reset = v1.ResetOffsetsRequest(group="g", topic="t", offset=1)
        answer = await wire.call(paths.RESET_OFFSETS, reset, v1.ResetOffsetsResponse)
        assert [(c.before, c.after) for c in answer.changes] == [(2, 1)]
        nodes = (leader.node, follower.node)
        await until(lambda: [node.offsets.get("t", "g", 0) for node in nodes] == [1, 1])
        described = await wire.call(
            paths.DESCRIBE_GROUP, v1.DescribeGroupRequest(name="g"), v1.DescribeGroupResponse
        )
        assert (described.progress.lag, described.group.max_attempts) == (1, 3)
        gone = v1.DeleteTopicRequest(name="t", accept_loss=True)
        deleted = await wire.call(paths.DELETE_TOPIC, gone, v1.DeleteTopicResponse)
        assert deleted.code == v2.OK
        ended = await wire.call(
            paths.DELETE_GROUP, v1.DeleteGroupRequest(name="g", force=True), v1.DeleteGroupResponse
        )
        assert ended.code == v2.OK
        await until(lambda: not any(node.metadata.group("g") for node in nodes))
        for node in nodes:
            assert node.metadata.topic("t") is None
            assert node.offsets.get("t", "g", 0) is None
