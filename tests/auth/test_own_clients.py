"""The SDK and the Spark source sign their calls, and report a refusal with its code."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import cometmq
from cometmq.client.errors import Unauthorized
from cometmq.client.transport.credentials import Credentials
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.source.channel import Channel
from cometmq.pipeline.source.options import Access
from cometmq.proto import paths, v1
from cometmq.tests.broker.live import Live, running, settings

ADMIN = Credentials("admin", "admin-secret")
SECRET = "orders-secret"


async def prepare(live: Live) -> None:
    """Create a topic, a group and users as an administrator."""

    def call() -> None:
        access = Access(live.bound.client, ADMIN.access_key, ADMIN.secret_key)
        with Channel(access) as channel:
            topic = v1.CreateTopicRequest(name="orders", queues=1)
            channel.call(paths.CREATE_TOPIC, topic, v1.CreateTopicResponse)
            for name in ("orders", "spark"):
                user = v1.PutUserRequest(name=name, secret=SECRET)
                channel.call(paths.PUT_USER, user, v1.UserResponse)
            for user_name, resource, actions in (
                ("orders", "Topic:orders", 3),
                ("orders", "Group:orders", 2),
                ("spark", "Cluster:*", 2),
            ):
                policy = v1.AclPolicy(resource=resource, actions=actions, allow=True)
                request = v1.PutPolicyRequest(user=user_name, policy=policy)
                channel.call(paths.PUT_POLICY, request, v1.UserResponse)

    await asyncio.to_thread(call)


async def test_the_sdk_and_the_spark_source_do_what_their_users_may_do(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path,
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"admin","password":"admin-secret"}',
    )
    async with running(chosen) as live:
        await prepare(live)
        at = live.bound.client
        keys = Credentials("orders", SECRET)
        async with cometmq.Producer(at, credentials=keys) as producer:
            sent = await producer.send("orders", b"signed")
        async with cometmq.SimpleConsumer(
            at, group="orders", topics="orders", credentials=keys
        ) as consumer:
            (got,) = await consumer.receive()
            await consumer.ack(got)
            assert got.message_id == sent.message_id
        wrong = Credentials("orders", "wrong-secret")
        with pytest.raises(Unauthorized, match="check signature failed"):
            async with cometmq.Producer(at, credentials=wrong) as producer:
                await producer.send("orders", b"refused")
        await asyncio.to_thread(read_log, at)


def read_log(at: str) -> None:
    """Read the log as the Spark source does: with the right on the cluster, and without."""
    request = v1.ReadLogRequest()
    with Channel(Access(at, "spark", SECRET)) as channel:
        frames = list(channel.stream(paths.READ_LOG, request, v1.LogFrames))
        assert any(b"signed" in part.frames for part in frames)
    with (
        Channel(Access(at, "orders", SECRET)) as channel,
        pytest.raises(PipelineError, match="no permission to access Cluster:DefaultCluster"),
    ):
        list(channel.stream(paths.READ_LOG, request, v1.LogFrames))
