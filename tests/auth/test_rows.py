"""The native door takes sends of a signed client together; each topic needs its right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions
from cometmq.auth.signature import authorization
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.sending.grpc_send import GrpcRow
from cometmq.front.config import DoorConfig
from cometmq.proto import v2
from cometmq.tests.broker.live import Live, running, settings
from cometmq.tests.conftest import NATIVE_DOOR
from cometmq.tests.harness.wire import Wire, normal_message

pytestmark = pytest.mark.skipif(not NATIVE_DOOR, reason="requires the native crate")
TIME = "20261123T060428Z"
SECRET = "secret-key"


def signed(live: Live, user: str) -> Wire:
    wire = live.client(f"{user}@1")
    wire.metadata += (
        ("authorization", authorization(user, SECRET, TIME)),
        ("x-mq-date-time", TIME),
    )
    return wire


async def codes(wire: Wire, *topics: str) -> list[int]:
    sends = (wire.send([normal_message(topic, f"ID-{n}", b"x")]) for n, topic in enumerate(topics))
    return [answer.status.code for answer in await asyncio.gather(*sends)]


async def test_a_user_sends_in_rows_to_its_topics_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(
        tmp_path,
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"admin","password":"first-secret"}',
    )
    async with running(chosen, door=DoorConfig(front_door="native")) as live:
        node = live.node
        for topic in ("mine", "yours"):
            node.meta_log.write_topic(Topic(topic, 1, 1))
        sealed = node.keys.key.seal("me", SECRET)
        allowed = Policy(ResourcePattern.parse("Topic:mine"), parse_actions("Pub"), True)
        node.metadata.put_user(User("me", sealed, policies=(allowed,)))
        taken: list[int] = []
        add = GrpcRow.add

        def counted(row: GrpcRow, plan: Any) -> None:
            add(row, plan)
            taken.append(row.count)

        monkeypatch.setattr(GrpcRow, "add", counted)
        async with signed(live, "me") as wire, live.client("me@1") as stranger:
            assert await codes(wire, "mine") == [v2.OK], "creates the queue; its signature is new"
            for _ in range(50):  # calls that arrive one by one are no row
                assert await codes(wire, *["mine"] * 20) == [v2.OK] * 20
                if sum(taken):
                    break
            assert sum(taken) > 0
            both = await codes(wire, *["mine", "yours"] * 10)
            assert both == [v2.OK, v2.UNAUTHORIZED] * 10
            assert await codes(stranger, *["mine"] * 4) == [v2.UNAUTHORIZED] * 4
            node.metadata.put_user(User("me", sealed))
            assert await codes(wire, *["mine"] * 4) == [v2.UNAUTHORIZED] * 4
