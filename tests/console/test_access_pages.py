"""Users, policies and audit entries, against a real cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest

from cometmq.console.pages.users import audit_rows, user_rows
from cometmq.proto import v1
from cometmq.tests.console.served import Served, serve, told
from cometmq.tests.harness.cluster import Cluster, wait_until


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a console of a broker that writes audit entries to the log."""
    folder = tmp_path_factory.mktemp("access")
    env = {"COMETMQ_AUDIT_TOPIC_ENABLE": "true"}
    cluster = Cluster(folder / "data", "--single", env=env)
    try:
        cluster.start()
        with serve(folder, cluster.endpoints, "--allow-changes") as found:
            yield found
    finally:
        cluster.stop()


def test_a_user_that_a_broker_group_lacks_or_has_otherwise_differs() -> None:
    a, b = v1.UserConfig(name="a"), v1.UserConfig(name="b")
    other = v1.UserConfig(name="b", disabled=True)
    first = ("one", v1.ListUsersResponse(users=[a, b]))
    rows = user_rows([first, ("two", v1.ListUsersResponse(users=[other]))])
    assert [(row.config.name, row.differs) for row in rows] == [("a", True), ("b", True)]
    assert not any(row.differs for row in user_rows([first]))


def test_audit_entries_are_read_and_foreign_lines_kept() -> None:
    line = (
        '{"time": "2026-11-24T10:00:00.000Z", "user": "admin", "from": "127.0.0.1:5", '
        '"call": "DeleteTopic", "target": "orders", "code": 20000, "message": "OK"}'
    )
    refused = line.replace("20000", "40100").replace("10:00:00", "11:00:00")
    rows = audit_rows([line.encode(), refused.encode(), b"\xff not an entry"])
    assert [row["is_ok"] for row in rows] == [False, True, False]
    assert (rows[1]["call"], rows[1]["target"]) == ("DeleteTopic", "orders")
    assert "not an entry" in rows[2]["message"]


def test_a_user_is_created_allowed_checked_rotated_disabled_and_deleted(console: Served) -> None:
    assert console.act("/users", {"name": "boss", "is_super": "1"}).status == 200
    assert "boss Super enabled" in told(console.get("/users"))
    done = console.act("/users", {"name": "clerk"})
    assert done.headers["cache-control"] == "no-store"
    first = secret_of(done.text)
    assert console.act("/users", {"name": "clerk"}).status == 502  # it exists
    assert first not in console.get("/users/clerk")
    assert "None: every action is denied." in told(console.get("/users/clerk"))

    ask = "/users/clerk?action=Pub&resource=Topic:orders"
    assert "Denied : Pub on Topic:orders, because no policy matches." in told(console.get(ask))
    wanted: dict[str, str | list[str]] = {
        "resource": "Topic:ord*",
        "actions": ["Pub", "Sub"],
        "decision": "allow",
    }
    assert console.act("/users/clerk/policy", wanted).headers["location"].endswith("done=policy")
    assert "Allowed : Pub on Topic:orders, because the most specific policy" in told(
        console.get(ask)
    )
    denied = {"resource": "Topic:orders", "actions": "Pub", "decision": "deny"}
    denied["sources"] = "10.0.0.0/8, 192.168.1.7"
    assert console.act("/users/clerk/policy", denied).status == 303
    assert "Denied" in told(console.get(f"{ask}&source=10.1.2.3"))
    assert "Allowed" in told(console.get(f"{ask}&source=127.0.0.1"))
    assert "clerk" in told(console.get("/users?q=topic:ord"))
    assert console.act("/users/clerk/policy", {"resource": "Topic:x"}).status == 400
    assert console.act("/users/clerk/policy", {**wanted, "resource": "Odd:x"}).status == 400
    assert "is not" in told(console.get("/users/clerk?action=Pub&resource=Topic:x*"))

    plan = console.get("/users/clerk/policy/delete?resource=Topic:orders&decision=deny")
    assert "would deny actions on Topic:orders is removed" in told(plan)
    removed = {"resource": "Topic:orders", "decision": "deny"}
    assert console.act("/users/clerk/policy/delete", removed).status == 303
    assert "10.0.0.0/8" not in console.get("/users/clerk")

    assert "invalid at once" in told(console.get("/users/clerk/rotate"))
    assert secret_of(console.act("/users/clerk/rotate", {}).text) != first
    assert console.act("/users/clerk/disable", {}).status == 303
    assert "State disabled" in told(console.get("/users/clerk"))
    assert console.act("/users/clerk/enable", {}).status == 303
    assert console.act("/users/clerk/delete", {"typed": "clark"}).status == 400
    assert console.act("/users/clerk/delete", {"typed": "clerk"}).status == 303
    assert console.ask("GET", "/users/clerk").status == 404
    assert console.ask("GET", "/users/boss/odd").status == 404


def secret_of(page: str) -> str:
    """Return the secret key that a page shows."""
    found = re.search(r'id="secret">([^<]+)<', page)
    assert found, told(page)
    return unescape(found[1])


def test_administrative_calls_are_audit_entries(console: Served) -> None:
    fields = {"name": "audited", "kind": "normal", "queues": "1", "permission": "rw"}
    assert console.act("/topics/new", fields).status == 303
    page = "/audit?q=audited&begin=-1h"
    wait_until("the entry is indexed", lambda: "CreateTopic audited" in told(console.get(page)))
    assert "done" in told(console.get(page))
    assert "No audit entry found" in told(console.get("/audit?q=nothing-like-it"))
    assert console.ask("GET", "/audit?begin=soon").status == 400
