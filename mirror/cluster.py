"""One of the two clusters: its brokers, and the requests of the mirror to them.

Source of codes and layouts: docs/formats/remoting.md. Apache RocketMQ 4 and 5 and CometMQ with a
remoting port answer alike.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..remoting.admin_codes import Admin
from ..remoting.bare_json import BareJsonError, loads
from ..remoting.codes import Reply, Request
from ..remoting.command import Command
from ..store.format.errors import RecordFormatError
from ..store.format.record import Record, decode
from .link import Access, Link, LinkError, RefusedError

#: Records of one pull: a broker returns at most 32 and, beyond one record, 256 KiB.
PULL_MAX = 32
#: A group that exists on every broker, for tools.
_GROUP = "TOOLS_CONSUMER"
_PRODUCERS = "cometmq-mirror"
_SUBSCRIPTION = 4
_LEADER = "0"
#: A topic whose route names every broker group of a CometMQ nameserver.
_EVERYWHERE = f"%RETRY%{_GROUP}"


class UnexpectedError(Exception):
    """A server's answer cannot be read."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull found: records, and the offset to continue at."""

    records: list[Record]
    following: int
    low: int
    high: int


class Broker:
    """The leader of a broker group."""

    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self.link = link

    async def topics(self) -> dict[str, dict[str, Any]]:
        """Return the configuration of each topic, without the system's."""
        answer = await self.link.done("the topics", Admin.GET_ALL_TOPIC_CONFIG)
        topics: dict[str, dict[str, Any]] = document(answer)["topicConfigTable"]
        listed = await self.link.done("the topics", Admin.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        system = set(document(listed)["topicList"])
        return {name: bean for name, bean in topics.items() if name not in system}

    async def groups(self) -> dict[str, dict[str, Any]]:
        """Return the configuration of each consumer group."""
        answer = await self.link.done("the groups", Admin.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        groups: dict[str, dict[str, Any]] = document(answer)["subscriptionGroupTable"]
        return groups

    async def ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return first and last offset by queue; none for a topic that does not exist."""
        answer = await self.link.call(Admin.GET_TOPIC_STATS_INFO, topic=topic)
        if answer.code == Reply.TOPIC_NOT_EXIST:
            return {}
        _check(f"the queues of {topic}", self.link, answer)
        table = document(answer)["offsetTable"]
        return {
            key.queue_id: (int(row["minOffset"]), int(row["maxOffset"]))
            for key, row in table.items()
        }

    async def pull(self, topic: str, queue_id: int, offset: int, most: int = PULL_MAX) -> Pulled:
        """Read a queue from an offset. Raises LinkError, RefusedError, UnexpectedError."""
        answer = await self.link.call(
            Request.PULL_MESSAGE,
            consumerGroup=_GROUP,
            topic=topic,
            queueId=queue_id,
            queueOffset=offset,
            maxMsgNums=most,
            sysFlag=_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subVersion=0,
            subscription="*",
            expressionType="TAG",
        )
        empty = (Reply.PULL_NOT_FOUND, Reply.PULL_RETRY_IMMEDIATELY, Reply.PULL_OFFSET_MOVED)
        if answer.code not in empty:
            _check(f"queue {queue_id} of {topic}", self.link, answer)
        try:
            return Pulled(
                list(_records(answer.body)) if answer.code == Reply.SUCCESS else [],
                int(answer.fields["nextBeginOffset"]),
                int(answer.fields["minOffset"]),
                int(answer.fields["maxOffset"]),
            )
        except (KeyError, ValueError, RecordFormatError) as error:
            raise UnexpectedError(f"a pull of {topic}/{queue_id} at {offset}: {error}") from None

    def send(self, record: Record, topic: str, queue_id: int, properties: str) -> Command:
        """Return the request that appends a record's message to a queue."""
        fields = {"a": _PRODUCERS, "b": topic, "c": "TBW102", "d": "4", "e": queue_id}
        fields |= {"f": record.sys_flag, "g": record.born_timestamp_ms, "h": record.flag}
        fields |= {"i": properties, "j": record.reconsume_times}
        texts = {name: str(value) for name, value in fields.items()}
        return Command(Request.SEND_MESSAGE_V2, texts, record.body)

    async def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group by topic and queue; 0 may stand for none."""
        answer = await self.link.done(
            f"the offsets of {group}", Admin.GET_CONSUME_STATS, consumerGroup=group
        )
        found = {}
        for key, row in document(answer)["offsetTable"].items():
            found[key.topic, key.queue_id] = int(row["consumerOffset"])
        return found

    async def has_offset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether the group has committed an offset in a queue."""
        queue = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = await self.link.call(
            Request.QUERY_CONSUMER_OFFSET, **queue, setZeroIfNotFound="false"
        )
        return answer.code == Reply.SUCCESS

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset of a group. Raises LinkError, RefusedError."""
        queue = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        what = f"the offset {offset} of {group} in {topic}/{queue_id}"
        await self.link.done(what, Request.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=offset)

    async def consumers(self, group: str) -> int:
        """Return the number of connected consumers of a group."""
        answer = await self.link.call(Admin.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        if answer.code == Reply.CONSUMER_NOT_ONLINE:
            return 0
        _check(f"the consumers of {group}", self.link, answer)
        return len(document(answer)["connectionSet"])

    async def put_topic(self, bean: dict[str, Any], queues: int) -> None:
        """Create or change a topic. Raises LinkError, RefusedError."""
        attributes = ",".join(f"+{key}={value}" for key, value in bean["attributes"].items())
        await self.link.done(
            f"topic {bean['topicName']}",
            Admin.UPDATE_AND_CREATE_TOPIC,
            topic=bean["topicName"],
            defaultTopic="TBW102",
            readQueueNums=queues,
            writeQueueNums=queues,
            perm=bean["perm"],
            topicFilterType="SINGLE_TAG",
            topicSysFlag=bean.get("topicSysFlag", 0),
            order=str(bean.get("order", False)).lower(),
            attributes=attributes,
        )

    async def put_group(self, bean: dict[str, Any]) -> None:
        """Create a consumer group. Raises LinkError, RefusedError."""
        body = json.dumps(bean).encode()
        what = f"group {bean['groupName']}"
        await self.link.done(what, Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


@dataclass(slots=True)
class Cluster:
    """A cluster behind its nameservers (their remoting ports)."""

    nameservers: list[str]
    access: Access
    name: str = ""
    brokers: dict[str, Broker] = field(default_factory=dict)

    async def refresh(self) -> None:
        """Ask for the leaders. Raises LinkError, RefusedError, UnexpectedError."""
        rows = await self._ask()
        leaders = {}
        for row in rows:
            addresses = {str(number): address for number, address in row["brokerAddrs"].items()}
            if _LEADER in addresses:
                leaders[row["brokerName"]] = addresses[_LEADER]
        if not leaders:
            raise UnexpectedError(f"no broker has a leader: {';'.join(self.nameservers)}")
        self.name = min(row["cluster"] for row in rows)
        for name, address in leaders.items():
            known = self.brokers.get(name)
            if known is None:
                self.brokers[name] = Broker(name, Link(address, self.access))
            elif known.link.address != address:
                known.link.close("the leader has changed")
                known.link = Link(address, self.access)

    async def _ask(self) -> list[dict[str, Any]]:
        """Return the brokers that the first nameserver that answers knows. Raises LinkError."""
        reasons = []
        for address in self.nameservers:
            link = Link(address, self.access)
            try:
                return await _brokers(link)
            except LinkError as error:
                reasons.append(str(error))
            finally:
                link.close()
        raise LinkError("; ".join(reasons))

    def broker(self, name: str) -> Broker:
        """Return the leader of a broker group. Raises LinkError."""
        if name not in self.brokers:
            raise LinkError(f"cluster {self.name}: broker group {name} has no leader")
        return self.brokers[name]

    async def consumers(self, group: str) -> int:
        """Return the number of connected consumers of a group on all brokers."""
        return sum(await asyncio.gather(*(b.consumers(group) for b in self.brokers.values())))

    def close(self) -> None:
        """Close all connections."""
        for broker in self.brokers.values():
            broker.link.close()


async def _brokers(link: Link) -> list[dict[str, Any]]:
    """Ask a nameserver for its brokers: name, cluster and addresses of each group."""
    answer = await link.call(Request.GET_BROKER_CLUSTER_INFO)
    if answer.code == Reply.REQUEST_CODE_NOT_SUPPORTED:
        # CometMQ's nameserver with authenticationEnabled only answers routes.
        answer = await link.done("the brokers", Request.GET_ROUTEINFO_BY_TOPIC, topic=_EVERYWHERE)
        rows: list[dict[str, Any]] = document(answer)["brokerDatas"]
        return rows
    _check("the brokers", link, answer)
    return list(document(answer)["brokerAddrTable"].values())


def document(answer: Command) -> dict[str, Any]:
    """Return the body of an answer. Raises UnexpectedError."""
    try:
        parsed = loads(answer.body)
    except BareJsonError as error:
        raise UnexpectedError(f"an answer is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise UnexpectedError("an answer is not a JSON object")
    return parsed


def _check(what: str, link: Link, answer: Command) -> None:
    if answer.code != Reply.SUCCESS:
        raise RefusedError(f"{what} at {link.address}", answer)


def _records(body: bytes) -> Iterable[Record]:
    view = memoryview(body)
    while view:
        record = decode(view)
        yield record
        view = view[record.size :]
