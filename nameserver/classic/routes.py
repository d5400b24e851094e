"""Remoting requests of the nameserver: routes, clusters, lists of topics.

Source: docs/formats/remoting.md, sections 8 and 9. Broker id 0 is the leader of a group, whatever
its configured id; its followers have ids from 1 on, and serve pulls. Only live replicas with a
remoting port are listed. Without a leader there is no id 0: producers leave the group out, and
consumers continue at a follower. The retry topic of any group has a route, one queue on each
broker, because heartbeats create it there; so has the topic of a cluster's replies, which the
brokers pass on and do not store. Codes that are not in the table are answered with
REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...proto.errors import absent_topic
from ...remoting.bare_json import dumps
from ...remoting.broker_ids import LEADER_ID, route_ids
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.header_fields import read
from ...remoting.headers import RouteOfTopic, TopicsOfCluster
from ..rows import Topic

if TYPE_CHECKING:
    from ...remoting.connection import Connection, Handler
    from ..routes import RouteTable
    from ..rows import Group
    from .kv import KvConfig

#: First version (4.9.4) that reads maps from numbers as standard JSON, with text keys.
_STANDARD_JSON_FROM = 401
_PERM_READ, _PERM_WRITE = 4, 2
_RETRY_TOPIC = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]{1,248}")
_ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_REPLY_SUFFIX = "_REPLY_TOPIC"
_FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class ClassicRoutes:
    """Handlers of the requests of clients and tools."""

    def __init__(
        self,
        table: Callable[[], RouteTable],
        steady_ns: Callable[[], int],
        ordered: KvConfig | None,
    ) -> None:
        """`table` returns the current tables: a start makes new ones. `ordered` has the queues of
        ordered topics; None: routes do not name them."""
        self._table = table
        self._steady_ns = steady_ns
        self._ordered = ordered

    def handlers(self, *, of_clients: bool = False) -> dict[int, Handler]:
        """Return the table of request codes, or only of those that producers and consumers use."""
        if of_clients:
            return {Request.GET_ROUTEINFO_BY_TOPIC: self.route}
        return {
            Request.GET_ROUTEINFO_BY_TOPIC: self.route,
            Request.GET_BROKER_CLUSTER_INFO: self.clusters,
            Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            Request.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
        }

    def route(self, command: Command, _: Connection) -> Command:
        """Answer GET_ROUTEINFO_BY_TOPIC."""
        header = read(RouteOfTopic, command.fields)
        table = self._table()
        routes = [each for each in table.routes(header.topic) if _addresses(each[0])]
        if not routes and _RETRY_TOPIC.fullmatch(header.topic):
            # A consumer asks before its first heartbeat creates the topic, and would ask again half
            # a minute later: then the first retries wait for that long.
            routes = _everywhere(header.topic, table.groups())
        if not routes and header.topic.endswith(_REPLY_SUFFIX):
            cluster = header.topic.removesuffix(_REPLY_SUFFIX)
            own = (group for group in table.groups() if group.cluster == cluster)
            routes = _everywhere(header.topic, own)
        if not routes:
            if not table.ready(self._steady_ns()):
                return reply(Reply.SYSTEM_ERROR, "name server not ready")
            if absent := table.absent():
                return reply(Reply.SYSTEM_ERROR, absent_topic(header.topic, absent).message)
            remark = f"No topic route info in name server for the topic: {header.topic}\n{_FAQ}"
            return reply(Reply.TOPIC_NOT_EXIST, remark)
        document = {
            **self._order(header.topic),
            "brokerDatas": [_broker(group) for group, _ in routes],
            "filterServerTable": {},
            "queueDatas": [_queues(group, topic) for group, topic in routes],
        }
        if header.standard_json_only or command.version >= _STANDARD_JSON_FROM:
            return reply(Reply.SUCCESS, body=json.dumps(document, separators=(",", ":")).encode())
        return reply(Reply.SUCCESS, body=dumps(document))

    def _order(self, topic: str) -> dict[str, Any]:
        queues = None if self._ordered is None else self._ordered.get(_ORDER_NAMESPACE, topic)
        return {} if queues is None else {"orderTopicConf": queues}

    def clusters(self, command: Command, _: Connection) -> Command:
        """Answer GET_BROKER_CLUSTER_INFO."""
        brokers: dict[str, Any] = {}
        clusters: dict[str, list[str]] = {}
        for group in self._table().groups():
            if _addresses(group):
                brokers[group.name] = _broker(group)
                clusters.setdefault(group.cluster, []).append(group.name)
        return _document({"brokerAddrTable": brokers, "clusterAddrTable": clusters})

    def topics(self, command: Command, _: Connection) -> Command:
        """Answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        return _topic_list(self._table().groups())

    def topics_of_cluster(self, command: Command, _: Connection) -> Command:
        """Answer GET_TOPICS_BY_CLUSTER."""
        cluster = read(TopicsOfCluster, command.fields).cluster
        return _topic_list(group for group in self._table().groups() if group.cluster == cluster)

    def system_topics(self, command: Command, _: Connection) -> Command:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_NS: names of clusters and brokers, one address."""
        names: dict[str, None] = {}
        address = ""
        for group in self._table().groups():
            names[group.cluster] = names[group.name] = None
            address = address or _addresses(group).get(LEADER_ID, "")
        document: dict[str, Any] = {"brokerAddr": address} if address else {}
        return _document({**document, "topicList": list(names)})


def _everywhere(name: str, groups: Iterable[Group]) -> list[tuple[Group, Topic]]:
    """Return the route of a topic with one queue in each group."""
    topic = Topic(name, 1, 1, _PERM_READ | _PERM_WRITE, 0)
    return [(group, topic) for group in groups if _addresses(group)]


def _addresses(group: Group) -> dict[int, str]:
    """Return the live replicas' addresses for classic clients by broker id; 0 is the leader."""
    leader = group.leader()
    ids = route_ids(group.members, leader.replica.broker_id if leader is not None else None)
    addresses = {
        ids[broker_id]: member.addresses.remoting_advertised or member.addresses.remoting
        for broker_id, member in group.members.items()
        if member.alive and member.addresses.remoting
    }
    return dict(sorted(addresses.items()))


def _broker(group: Group) -> dict[str, Any]:
    return {
        "brokerAddrs": _addresses(group),
        "brokerName": group.name,
        "cluster": group.cluster,
        "enableActingMaster": False,
    }


def _queues(group: Group, topic: Topic) -> dict[str, Any]:
    perm = topic.perm & ~_PERM_WRITE if group.why_read_only() else topic.perm
    return {
        "brokerName": group.name,
        "perm": perm,
        "readQueueNums": topic.read_queues,
        "topicSysFlag": 0,
        "writeQueueNums": topic.write_queues,
    }


def _topic_list(groups: Iterable[Group]) -> Command:
    names = {name: None for group in groups for name in group.topics()}
    return _document({"topicList": list(names)})


def _document(document: dict[str, Any]) -> Command:
    return reply(Reply.SUCCESS, body=dumps(document))
