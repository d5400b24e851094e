"""Calls to several nodes at once: what is said of one that cannot be reached."""

from __future__ import annotations

import pytest

from cometmq.cli.ha.parallel import Calls
from cometmq.operations import ports
from cometmq.proto import paths, v1


def test_a_dead_node_is_not_examined_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[str] = []

    def kind_of_port(endpoint: str, _: object) -> str:
        examined.append(endpoint)
        return ""

    monkeypatch.setattr(ports, "kind_of_port", kind_of_port)
    address = "127.0.0.1:1"
    with Calls([address], paths.GET_GROUPS, v1.GetGroupRequest(), v1.GroupsResponse) as calls:
        calls.wait(10)
        text = str(calls.errors[address])
    assert "name a running nameserver with --namesrv" in text
    assert examined == []
