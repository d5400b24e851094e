"""A peer whose address is not known is a remote one."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.front.admission import check_node, forwarded_by_nodes_only
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.front.grpcio_door import GrpcioDoor
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto.errors import RpcFailure

LOCAL = "127.0.0.1:5000"


def test_only_a_known_address_of_this_machine_is_a_node_without_a_token() -> None:
    links = NodeLinks("")
    check_node(links, RequestContext(peer=LOCAL))
    for peer in ("", "10.1.2.3:4", "unknown", ":5"):
        with pytest.raises(RpcFailure):
            check_node(links, RequestContext(peer=peer))


def test_a_forwarded_call_without_an_address_is_not_one_of_the_node_that_forwards_it() -> None:
    admit = forwarded_by_nodes_only(NodeLinks(""), None)
    for named, peer in (("10.1.2.3:4", "10.1.2.3:4"), ("", ""), ("1", "")):
        ctx = RequestContext(peer=LOCAL, forwarded=True, forwarded_for=named)
        admit(ctx)
        assert ctx.peer == peer


async def test_a_call_that_outlives_its_spliced_connection_has_no_address() -> None:
    services: dict[str, Any] = {}
    parts = (services, DoorConfig(), Clock(), None, NodeLinks(""))
    door = GrpcioDoor(*parts, represented=True)
    name = "ipv4:127.0.0.1:5000"
    door.represent(LOCAL, "10.1.2.3:4")
    assert door.peer(name) == "10.1.2.3:4"
    door.represent(LOCAL, "")
    assert door.peer(name) == ""
    assert door.peer("unix:/tmp/socket") == ""
    assert GrpcioDoor(*parts).peer(name) == LOCAL
