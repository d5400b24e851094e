"""The audit log: a line for each administrative call, served or refused; no secrets."""

import json
from pathlib import Path
from typing import Any

from cometmq.auth.signature import authorization
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.live import Live, create_topic, running, settings
from cometmq.tests.harness.wire import Wire

TIME = "20261123T060428Z"


def signed(live: Live, user: str, secret: str) -> Wire:
    wire = live.client(f"{user}@1")
    header = authorization(user, secret, TIME)
    wire.metadata = (*wire.metadata, ("x-mq-date-time", TIME), ("authorization", header))
    return wire


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_each_administrative_call_has_a_line(tmp_path: Path) -> None:
    file = tmp_path / "log" / "audit.log"
    chosen = settings(
        tmp_path / "store",
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"admin","password":"admin-secret"}',
        audit_log_file=str(file),
    )
    async with running(chosen) as live:
        async with signed(live, "admin", "admin-secret") as wire:
            assert (await create_topic(wire, "orders")).code == v2.OK
            gone = v1.DeleteTopicRequest(name="missing")
            await wire.call(paths.DELETE_TOPIC, gone, v1.DeleteTopicResponse)
            looked = v1.DeleteTopicRequest(name="orders", dry_run=True)
            await wire.call(paths.DELETE_TOPIC, looked, v1.DeleteTopicResponse)
            user = v1.PutUserRequest(name="orders", secret="orders-secret")
            await wire.call(paths.PUT_USER, user, v1.UserResponse)
            await wire.call(paths.LIST_USERS, v1.ListUsersRequest(), v1.ListUsersResponse)
        async with signed(live, "orders", "orders-secret") as wire:
            assert (await create_topic(wire, "more")).code == v2.UNAUTHORIZED
    assert file.stat().st_mode & 0o777 == 0o600
    assert "orders-secret" not in file.read_text()
    rows = [(row["user"], row["call"], row["target"], row["code"]) for row in lines(file)]
    assert rows == [
        ("admin", "CreateTopic", "orders", v2.OK),
        ("admin", "DeleteTopic", "missing", v2.TOPIC_NOT_FOUND),
        ("admin", "PutUser", "orders", v2.OK),
        ("orders", "CreateTopic", "more", v2.UNAUTHORIZED),
    ]
    assert all(row["from"].startswith("127.0.0.1:") for row in lines(file))
    assert all(row["time"].endswith("Z") for row in lines(file))
