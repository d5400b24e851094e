"""Answers of a nameserver, with the proxy's address in place of every broker's. Pure.

A group keeps its name and one entry: the id 0 while it has a leader, so that clients send to it,
else the id of a follower, so that they only read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....remoting.bare_json import dumps, loads
from ....remoting.codes import Reply, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....remoting.command import Command


_WITH_ADDRESSES = (
    Request.GET_ROUTEINFO_BY_TOPIC,
    Request.GET_BROKER_CLUSTER_INFO,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_NS,
)


def rewritten(code: int, answer: Command, address: str) -> list[str]:
    """Set the address in the answer to a request; return the names of its groups.

    Raises BareJsonError.
    """
    if code not in _WITH_ADDRESSES or answer.code != Reply.SUCCESS or not answer.body:
        return []
    document = loads(answer.body)
    names = []
    if code == Request.GET_SYSTEM_TOPIC_LIST_FROM_NS and "brokerAddr" in document:
        document["brokerAddr"] = address
    for broker in _brokers(code, document):
        addresses = broker["brokerAddrs"]
        broker["brokerAddrs"] = dict.fromkeys(sorted(addresses, key=int)[:1], address)
        names.append(broker["brokerName"])
    answer.body = dumps(document)
    return names


def _brokers(code: int, document: Any) -> Iterator[dict[str, Any]]:
    if code == Request.GET_ROUTEINFO_BY_TOPIC:
        yield from document["brokerDatas"]
    elif code == Request.GET_BROKER_CLUSTER_INFO:
        yield from document["brokerAddrTable"].values()
