"""Headers that a node could not pass on to another node."""

from __future__ import annotations

import pytest

from cometmq.front.admission import forwarded_by_nodes_only
from cometmq.front.context import CLIENT_ID, RequestContext
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto.errors import INVALID_ARGUMENT, RpcFailure


@pytest.mark.parametrize("value", ["\udcff\udc80", "клиент", "a\tb", "ÿ"])
def test_a_call_with_an_odd_header_is_refused_where_it_arrives(value: str) -> None:
    admit = forwarded_by_nodes_only(NodeLinks(""), None)
    for forwarded in (False, True):
        ctx = RequestContext(peer="127.0.0.1:1", forwarded=forwarded)
        ctx.metadata = ((CLIENT_ID, "c"), ("authorization", value))
        with pytest.raises(RpcFailure, match="authorization holds more than printable") as found:
            admit(ctx)
        assert found.value.grpc_code == INVALID_ARGUMENT
