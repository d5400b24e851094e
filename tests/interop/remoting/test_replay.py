"""Recorded requests of real clients, replayed: the answers equal those of Apache RocketMQ 5.5.0.

Requests are sent one after another, in the recorded order but for those that the server took in
another one (`recorded_order.py`), on connections that end where they ended. What differs is listed
here: `VARIES` and the sets after it (addresses, positions, times), and `is_expected_difference`
(deliberate differences, docs/compatibility.md). A pull that found nothing in its time waits for
20 ms only. Positions and handles in requests are replaced by those of this run; a delivery time is
as far in the future as it was.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.bare_json import loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.properties import decode_properties, encode_properties
from cometmq.store.format.record import Record, decode
from cometmq.tests.broker.live import create_group, create_topic, running, settings
from cometmq.tests.interop.remoting.recorded_order import (
    PULLS,
    SENDS,
    Event,
    as_answered,
    event_key,
    is_ordinary,
    is_request,
    properties_field,
    topic_of,
)
from cometmq.tests.remoting.client import WAIT_S, RemotingClient, wait_for_routes
from cometmq.tests.remoting.recordings import Closed, Recorded, events, frames, scenarios

#: Fields whose values are positions in the log or times of this run.
VARIES = {
    *("timestamp", "recallHandle", "popTime", "startOffsetInfo", "msgOffsetInfo", "reviveQid"),
    *("indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"),
    # Numbers of all topics and groups; the version of the settings.
    *("wipeTopicCount", "addTopicCount", "totalGroupNum", "version"),
}
#: Names of values in JSON bodies that are positions, times, addresses or rates of this run.
VARIES_IN_BODIES = {
    *("lastUpdateTimestamp", "lastTimestamp", "physicOffset", "masterCommitLogMaxOffset"),
    *("clientAddr", "remoteIP", "consumeTps", "topicPutTps", "avgpt", "sum", "tps"),
    *("dataVersion", "totalDiff", "totalInflightDiff"),
    # Not used here: always the default (docs/mqadmin.md).
    *("consumeBroadcastEnable", "consumeFromMinEnable"),
}
#: Asynchronous sends of one client are stored in the order in which the server's threads take them.
VARIES_IN_SENDS = VARIES | {"msgId", "queueOffset"}
#: Fields of requests of the server.
VARIES_IN_NOTICES = {
    *("commitLogOffset", "tranStateTableOffset", "offsetMsgId"),
    *("bornHost", "storeHost", "storeTimestamp", "properties"),
}
#: The default of Apache's answers that set no remark.
NO_REMARK = "not set any response code"
WAITING = (*PULLS, Request.POP_MESSAGE)
#: The answers have records.
READS = (*WAITING, Request.QUERY_MESSAGE, Request.VIEW_MESSAGE_BY_ID)
TEMPLATE = "TBW102"
#: Retries and delayed messages come after a second, not after five or ten.
DELAY_LEVELS = "1s 1s 1s"
#: Flags of half messages and of committed ones.
PREPARED, COMMIT = 4, 8
#: Address of the recorded broker.
RECORDED_BROKER = "127.0.0.2:10911"
#: Recordings whose requests are all repeated.
REPLAYED = (
    *("broadcast", "filter-tag", "lite-pull", "offsets-and-time", "offsets-survive-restart"),
    *("order", "pull", "push", "two-groups-and-latest", "delay-level", "send"),
    *("transaction-commit", "transaction-rollback", "transaction-check", "request-reply"),
    *("pop-mode", "unknown-topic", "setup", "setup4"),
    *("client-4.9.8-filter-tag", "client-4.9.8-lite-pull", "client-4.9.8-offsets-and-time"),
    *("client-4.9.8-offsets-survive-restart", "client-4.9.8-order", "client-4.9.8-pull"),
    *("client-4.9.8-push", "client-4.9.8-queue-selector", "client-4.9.8-send-async"),
    *("client-4.9.8-send-batch", "client-4.9.8-send-oneway", "client-4.9.8-send-sync"),
    *("client-4.9.8-two-groups-and-latest", "binary-header", "vip-channel"),
    *("client-4.9.8-delay-level", "client-4.9.8-transaction-commit"),
    *("client-4.9.8-transaction-rollback", "client-4.9.8-transaction-check"),
    *("client-4.9.8-request-reply", "client-4.9.8-unknown-topic"),
    *("rebalance", "client-4.9.8-rebalance", "client-4.9.8-broadcast"),
    *("dead-letter", "client-4.9.8-dead-letter", "retry-count", "client-4.9.8-retry-count"),
    *("filter-sql", "client-4.9.8-filter-sql"),
)
#: Recordings that continue what earlier ones left in their topics: as many messages, and the same
#: offsets of groups, are there before they are repeated.
CONTINUED = (
    *("query-by-key", "view-by-id", "client-4.9.8-query-by-key", "client-4.9.8-view-by-id"),
    *("client-4.9.8-compressed-body", "heartbeat-v2"),
    *("delay-any-time", "client-4.9.8-delay-any-time", "client-go", "recall"),
)
#: Names of topics and groups that the recording with mqadmin creates.
MADE_BY_MQADMIN = "SmokeAdmin"
#: Answers with what earlier recordings left, too; only what this one made is compared.
COLLECTIONS: dict[int, str] = {
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "topicList",
    Admin.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroupTable",
    Admin.GET_BROKER_CONSUME_STATS: "consumeStatsList",
    Admin.GET_ALL_PRODUCER_INFO: "data",
}
#: Settings and figures under the server's own names; `docs/mqadmin.md` and its tests have them.
OWN_NAMES = (Admin.GET_BROKER_CONFIG, Admin.GET_BROKER_RUNTIME_INFO, Admin.GET_NAMESRV_CONFIG)


def is_of_mqadmin(command: Command) -> bool:
    if command.code in (Request.HEART_BEAT, Request.UNREGISTER_CLIENT):
        return True
    names = ("topic", "b", "consumerGroup", "producerGroup", "group", "groupName")
    named = next((command.fields[name] for name in names if name in command.fields), None)
    return named is None or MADE_BY_MQADMIN in named


#: Recordings of which only these requests are repeated: others read what earlier recordings left in
#: the topics.
PARTS = {"mqadmin": is_of_mqadmin}


class Replay:
    """One recording against one nameserver and broker."""

    def __init__(self, nameserver: int, broker: int, address: str) -> None:
        self._ports = {"namesrv": nameserver, "broker": broker, "vip": broker}
        self._address = address
        self._clients: dict[int, RemotingClient] = {}
        self._posted: dict[tuple[int, int], tuple[Command, asyncio.Future[Command]]] = {}
        self._told: set[int] = set()
        #: Recorded position of a message to its position here.
        self._positions: dict[int, int] = {}
        #: Handles of popped messages, by queue id and offset.
        self._handles: dict[tuple[str, str], str] = {}
        self._recall_handle = ""
        #: Offset ids of messages, by the recorded ones.
        self._offset_ids: dict[str, str] = {}
        #: Recorded position of a half message to its queue offset here.
        self._halves: dict[str, str] = {}
        self.compared = 0

    async def run(self, scenario: str) -> None:
        recorded = as_answered(chosen(list(events(scenario)), PARTS.get(scenario)))
        self._answers = answers_in(recorded)
        self._given = given_by_clients(recorded)
        self._requests = {event_key(event) for event in recorded if is_request(event)}
        quiet = quiet_pulls(recorded)
        for event in recorded:
            if isinstance(event, Closed):
                client = self._clients.pop(event.connection, None)
                if client is not None:
                    await client.__aexit__()
            elif event.from_client and not event.command.is_response:
                await self._send(event, event_key(event) in quiet)
            elif not event.from_client and event.command.is_response:
                await self._compare(event)
            elif not event.from_client:
                await self._expect_notice(event)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.__aexit__()

    async def _send(self, event: Recorded, quiet: bool) -> None:
        client = self._clients.get(event.connection)
        if client is None:
            client = self._clients[event.connection] = RemotingClient(self._ports[event.server])
            client.on_request = partial(self._answer_as_recorded, event.connection)
            await client.__aenter__()
        sent = event.command
        await self._wait_before(client, sent, self._answers.get(event_key(event)))
        fields = self._translated(dict(sent.fields))
        command = Command(sent.code, fields, sent.body, sent.flag, binary=sent.binary)
        command.version = sent.version
        if quiet:
            command.fields["suspendTimeoutMillis" if sent.code in PULLS else "pollTime"] = "20"
        if sent.code == Request.END_TRANSACTION:
            # With an answer, which comes when the message can be read.
            command.flag = 0
            await asyncio.wait_for(client.post(command), WAIT_S)
            return
        if sent.is_oneway:
            client.oneway(command.code, command.body, **command.fields)
            # Answered after it, on any connection.
            await client.call(Request.GET_MAX_OFFSET, topic="none", queueId=0)
            return
        future = client.post(command)
        self._posted[event_key(event)] = sent, future
        if sent.code not in WAITING:  # one after another, whatever the order of the answers was
            await asyncio.wait([future], timeout=WAIT_S)

    def _answer_as_recorded(self, connection: int, command: Command) -> Command | None:
        given = self._given.get((connection, command.code))
        return replace(given.popleft()) if given else None

    async def _wait_before(
        self, client: RemotingClient, sent: Command, wanted: Command | None
    ) -> None:
        """Wait for what the recorded answers tell was done before this request."""
        fields = sent.fields
        if wanted is None:
            return
        if sent.code in SENDS and "queueOffset" in wanted.fields and is_ordinary(sent):
            queue = topic_of(fields), wanted.fields["queueId"]
            await self._wait_for_pulls(queue, int(wanted.fields["queueOffset"]))
        topic = fields.get("topic", "")
        if sent.code == Request.GET_ROUTEINFO_BY_TOPIC:
            if wanted.body and topic != TEMPLATE:
                await wait_for_routes(self._ports["namesrv"], [topic])
        elif sent.code == Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            await self._wait_for_topics(client, only_made(loads(wanted.body), "topicList"))
        elif topic.startswith("%"):
            count = stored_at(sent, wanted)
            await wait_for_messages(client, topic, fields.get("queueId", 0), count)

    async def _wait_for_pulls(self, queue: tuple[str, str], end: int) -> None:
        """Wait for the answers to pulls that have not seen messages from this offset on."""
        for key, (sent, future) in self._posted.items():
            pulled = sent.fields.get("topic"), sent.fields.get("queueId")
            seen = self._answers[key].fields.get("maxOffset") if key in self._answers else None
            if sent.code in PULLS and pulled == queue and seen is not None and int(seen) <= end:
                await asyncio.wait([future], timeout=WAIT_S)

    async def _wait_for_topics(self, client: RemotingClient, made: dict[str, Any]) -> None:
        """Wait until the nameserver knows the topics."""
        found: set[str] = set()
        async with asyncio.timeout(WAIT_S):
            while not found.issuperset(made["topicList"]):
                answer = await client.call(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                found = set(loads(answer.body)["topicList"])

    def _translated(self, fields: dict[str, str]) -> dict[str, str]:
        """Replace positions, handles and times of the recording."""
        if "tranStateTableOffset" in fields:
            fields["tranStateTableOffset"] = self._halves[fields["commitLogOffset"]]
        for name in ("offset", "commitLogOffset"):
            known = self._positions.get(int(fields.get(name, -1)))
            if known is not None:
                fields[name] = str(known)
        if "extraInfo" in fields:
            fields["extraInfo"] = self._handles[fields["queueId"], fields["offset"]]
        if fields.get("msgId") in self._offset_ids:
            fields["msgId"] = self._offset_ids[fields["msgId"]]
        if "recallHandle" in fields:
            fields["recallHandle"] = self._recall_handle
        if fields.keys() >= {"key", "endTimestamp"}:
            # The messages are stored now.
            fields["endTimestamp"] = str((1 << 63) - 1)
        if "TIMER_DELIVER_MS" in fields.get("i", ""):
            properties = decode_properties(fields["i"].encode())
            distance = int(properties["TIMER_DELIVER_MS"]) - int(fields["g"])
            properties["TIMER_DELIVER_MS"] = str(int(time.time() * 1000) + distance)
            fields["i"] = encode_properties(properties).decode()
        return fields

    def _remember(self, sent: Command, wanted: Command, answer: Command) -> None:
        """Note the positions and handles of an answer."""
        if sent.code in SENDS:
            pairs = zip(ids(wanted), ids(answer), strict=True)
            self._positions.update((offset_of(one), offset_of(other)) for one, other in pairs)
            self._offset_ids.update(zip(ids(wanted), ids(answer), strict=True))
            self._recall_handle = answer.fields.get("recallHandle", "")
            if "TRAN_MSG" in sent.fields[properties_field(sent)]:
                self._halves[str(offset_of(*ids(wanted)))] = answer.fields["queueOffset"]
        if sent.code == Request.POP_MESSAGE:
            for record in records(answer.body):
                place = str(record.queue_id), str(record.queue_offset)
                self._handles[place] = record.properties_dict["POP_CK"]

    async def _compare(self, event: Recorded) -> None:
        found = self._posted.pop(event_key(event), None)
        if found is None:  # the request came on a connection that was open before the recording
            assert event_key(event) not in self._requests
            return
        sent, future = found
        answer = await asyncio.wait_for(future, WAIT_S)
        wanted = event.command
        self._remember(sent, wanted, answer)
        if is_expected_difference(sent, wanted, answer):
            return
        where = f"request {sent.code} {sent.fields}"
        assert answer.code == wanted.code, f"{where}: {answer.remark}"
        assert remark_of(answer) == remark_of(wanted), where
        assert answer.fields.keys() == wanted.fields.keys(), where
        varies = VARIES_IN_SENDS if sent.code in SENDS else VARIES
        for name in wanted.fields.keys() - varies:
            assert answer.fields[name] == wanted.fields[name], f"{where}: {name}"
        self._compare_bodies(sent, wanted.body, answer.body)
        self.compared += 1

    def _compare_bodies(self, sent: Command, wanted: bytes, found: bytes) -> None:
        if sent.code in READS:
            wanted_records, found_records = records(wanted), records(found)
            if sent.code == Request.POP_MESSAGE:  # queues in any order
                wanted_records.sort(key=place_of)
                found_records.sort(key=place_of)
            assert list(map(visible, found_records)) == list(map(visible, wanted_records))
            for one, other in zip(wanted_records, found_records, strict=True):
                self._positions[one.physical_offset] = other.physical_offset
        elif sent.code in OWN_NAMES:
            assert found
        elif wanted:
            text = found.replace(self._address.encode(), RECORDED_BROKER.encode())
            document, wanted_document = loads(text), loads(wanted)
            if name := COLLECTIONS.get(sent.code):
                document = only_made(document, name)
                wanted_document = only_made(wanted_document, name)
            assert in_any_order(document) == in_any_order(wanted_document), sent
        else:
            assert not found

    async def _expect_notice(self, event: Recorded) -> None:
        """Expect a request of the server. A change of members is sent at least once; several
        changes may be one notice."""
        code = event.command.code
        if code == Request.NOTIFY_CONSUMER_IDS_CHANGED and event.connection in self._told:
            return
        self._told.add(event.connection)
        found = await self._clients[event.connection].next_request()
        while found.code != code:
            assert found.code == Request.NOTIFY_CONSUMER_IDS_CHANGED, found
            found = await self._clients[event.connection].next_request()
        wanted = event.command
        for name in wanted.fields.keys() - VARIES_IN_NOTICES - is_left_out(code):
            assert found.fields[name] == wanted.fields[name], f"{code}: {name}"
        if code == Request.CHECK_TRANSACTION_STATE:
            place = wanted.fields["commitLogOffset"]
            self._positions[int(place)] = int(found.fields["commitLogOffset"])
            self._halves[place] = found.fields["tranStateTableOffset"]
            assert decode(found.body).body == decode(wanted.body).body
        elif code == Request.CONSUME_MESSAGE_DIRECTLY:
            assert visible(decode(found.body)) == visible(decode(wanted.body))
        else:
            assert found.body == wanted.body


def chosen(recorded: list[Event], is_chosen: Callable[[Command], bool] | None) -> list[Event]:
    """Return the chosen requests, of both ends, with their answers, and the ends of connections."""
    if is_chosen is None:
        return recorded
    left_out = {
        (event_key(event), event.from_client)
        for event in recorded
        if isinstance(event, Recorded)
        and not event.command.is_response
        and not is_chosen(event.command)
    }
    return [
        event
        for event in recorded
        if not isinstance(event, Recorded)
        or (event_key(event), event.from_client != event.command.is_response) not in left_out
    ]


def given_by_clients(recorded: list[Event]) -> dict[tuple[int, int], deque[Command]]:
    """Return the answers of clients to requests of the server, by connection and code."""
    asked = {
        event_key(event): event.command.code
        for event in recorded
        if isinstance(event, Recorded) and not event.from_client and not event.command.is_response
    }
    given: dict[tuple[int, int], deque[Command]] = defaultdict(deque)
    for event in recorded:
        if isinstance(event, Recorded) and event.from_client and event.command.is_response:
            given[event.connection, asked[event_key(event)]].append(event.command)
    return given


def answers_in(recorded: list[Event]) -> dict[tuple[int, int], Command]:
    return {
        event_key(event): event.command
        for event in recorded
        if isinstance(event, Recorded) and not event.from_client and event.command.is_response
    }


def stored_at(read: Command, wanted: Command) -> int:
    """Return how many messages a queue had at least, as the answer of a read tells; a pull may wait
    for one."""
    if read.code in PULLS and not wanted.code:
        return int(wanted.fields["maxOffset"]) - 1
    if read.code == Request.QUERY_CONSUMER_OFFSET and not wanted.code:
        return 1
    return 0


def remark_of(answer: Command) -> str:
    return "" if answer.remark in (None, NO_REMARK) else answer.remark


def ids(answer: Command) -> list[str]:
    """Return the offset ids of the messages that a send has stored."""
    return [each for each in answer.fields.get("msgId", "").split(",") if each]


def offset_of(offset_id: str) -> int:
    """Return the position that an offset id names."""
    return int(offset_id[-16:], 16)


def is_left_out(code: int) -> set[str]:
    """Return fields of a request of the server that are left out on purpose."""
    left_out: dict[int, set[str]] = {
        # The name of a half message is its own, not that of the queue of half messages.
        Request.CHECK_TRANSACTION_STATE: {"topic"},
        # An offset id.
        Request.CONSUME_MESSAGE_DIRECTLY: {"msgId"},
    }
    return left_out.get(code, set())


def quiet_pulls(recorded: list[Event]) -> set[tuple[int, int]]:
    """Return the pulls that found nothing until their time was over."""
    return {
        event_key(event)
        for event in recorded
        if isinstance(event, Recorded)
        and not event.from_client
        and event.command.is_response
        and event.command.code
        in (
            *(Reply.PULL_NOT_FOUND, Reply.PULL_RETRY_IMMEDIATELY, Reply.PULL_OFFSET_MOVED),
            Reply.POLLING_TIMEOUT,
            *(Reply.SUBSCRIPTION_NOT_EXIST, Reply.SUBSCRIPTION_NOT_LATEST),
        )
    }


def is_expected_difference(sent: Command, wanted: Command, answer: Command) -> bool:
    """Return whether the answers differ on purpose."""
    if wanted.code in (Reply.SUBSCRIPTION_NOT_EXIST, Reply.SUBSCRIPTION_NOT_LATEST):
        # The heartbeat on another connection came later there.
        return answer.code in (Reply.SUCCESS, Reply.PULL_NOT_FOUND, wanted.code)
    if wanted.code == Reply.PULL_RETRY_IMMEDIATELY and sent.fields["sysFlag"] in ("2", "3"):
        # A pull that skips messages and reaches the end waits there.
        return answer.fields["nextBeginOffset"] == wanted.fields["nextBeginOffset"]
    if sent.code == Request.GET_ROUTEINFO_BY_TOPIC and wanted.code == Reply.TOPIC_NOT_EXIST:
        # A retry topic has a route before it exists.
        return sent.fields["topic"].startswith("%RETRY%") and answer.code == Reply.SUCCESS
    if wanted.code == Reply.PULL_OFFSET_MOVED and wanted.remark == "OFFSET_RESET":
        # The broker tells connected consumers of a reset.
        return answer.code == Reply.PULL_NOT_FOUND
    if answer.code == Reply.SUBSCRIPTION_GROUP_NOT_EXIST != wanted.code:
        # The mode belongs to a group.
        return sent.code == Request.SET_MESSAGE_REQUEST_MODE
    if sent.code == Admin.UPDATE_BROKER_CONFIG:
        # A setting that is read at start.
        return answer.code == Reply.INVALID_PARAMETER
    if sent.code == Request.UPDATE_CONSUMER_OFFSET and sent.fields["commitOffset"] == "-1":
        # An offset outside of the queue is refused. The Go client commits it if it has none.
        return answer.code == Reply.INVALID_PARAMETER
    if wanted.code == Reply.SUBSCRIPTION_PARSE_FAILED:
        # The remark is that of another parser.
        return answer.code == wanted.code and bool(answer.remark)
    if sent.fields.get("topic") == TEMPLATE and sent.code == Request.GET_ROUTEINFO_BY_TOPIC:
        # No topic is created by a send (autoCreateTopicEnable=false): there is no template.
        return answer.code == Reply.TOPIC_NOT_EXIST
    if sent.code == Request.HEART_BEAT:
        # Clients are asked for their whole subscription every time.
        return answer.fields.keys() == wanted.fields.keys()
    if wanted.code == Reply.TOPIC_NOT_EXIST and sent.code in SENDS:
        # A refused send names no region.
        return (answer.code, answer.remark) == (wanted.code, wanted.remark)
    if sent.code == Request.SEND_REPLY_MESSAGE_V2:
        # Replies are passed on, not stored.
        return answer.code == wanted.code and answer.fields["msgId"] == "0"
    return False


def records(body: bytes) -> list[Record]:
    found = []
    while body:
        record = decode(body)
        found.append(record)
        body = body[record.size :]
    return found


def place_of(record: Record) -> tuple[int, int]:
    return record.queue_id, record.queue_offset


def visible(record: Record) -> tuple[Any, ...]:
    """Return what a client sees of a record, apart from positions, hosts and times."""
    properties = dict(record.properties_dict)
    # The handle of a pop is in the records here; there the client makes it. The number of checks
    # depends on the speed of the machine.
    varies = (
        *("ORIGIN_MESSAGE_ID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "POP_CK", "1ST_POP_TIME"),
        *("TRANSACTION_CHECK_TIMES", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        # Written here, not there.
        *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
    )
    for name in varies:
        properties.pop(name, None)
    return (
        *(record.topic, record.queue_id, record.queue_offset, record.body, record.flag),
        *(record.sys_flag, record.born_timestamp_ms, record.reconsume_times, properties),
    )


def only_made(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Keep those items of a collection that the recording has made."""
    items = document[name]
    kept = [item for item in items if MADE_BY_MQADMIN in str(item)]
    return {
        **document,
        name: {key: items[key] for key in kept} if isinstance(items, dict) else kept,
    }


def in_any_order(document: Any) -> Any:
    """Sort lists: members of groups and queues of locks have no order. Leave out what varies."""
    if isinstance(document, dict):
        return {
            key: None if key in VARIES_IN_BODIES else in_any_order(value)
            for key, value in document.items()
        }
    if isinstance(document, list):
        return sorted(map(in_any_order, document), key=repr)
    return document


def topics_of(scenario: str) -> dict[str, int]:
    """Return the topics of the recorded routes with their numbers of queues."""
    asked: dict[tuple[int, int], str] = {}
    found = {}
    for event in frames(scenario):
        if event.server != "namesrv":
            continue
        if event.from_client and event.command.code == Request.GET_ROUTEINFO_BY_TOPIC:
            asked[event_key(event)] = event.command.fields["topic"]
        elif not event.from_client and event.command.body:
            topic = asked.get(event_key(event), "%")
            document = loads(event.command.body) if not topic.startswith("%") else {}
            for queues in document.get("queueDatas", ()):
                found[topic] = queues["writeQueueNums"]
    found.pop(TEMPLATE, None)
    return found


def groups_of(scenario: str) -> set[str]:
    """Return the consumer groups of the recorded requests: they existed before."""
    names = {event.command.fields.get("consumerGroup", "") for event in frames(scenario)}
    return names - {""}


def left_by_others(scenario: str) -> dict[tuple[str, int], int]:
    """Return how many messages each queue had before: the first one that is sent there follows
    them, or the first pull that finds none tells."""
    found: dict[tuple[str, int], int] = {}
    for asked, answer in exchanges(scenario):
        fields = answer.fields
        if asked.code in SENDS and fields and is_ordinary(asked):
            queue = topic_of(asked.fields), int(fields["queueId"])
            found.setdefault(queue, int(fields["queueOffset"]))
        elif asked.code in PULLS and answer.code and "maxOffset" in fields:
            queue = asked.fields["topic"], int(asked.fields["queueId"])
            found.setdefault(queue, int(fields["maxOffset"]))
    return found


def committed_by_others(scenario: str) -> list[dict[str, str]]:
    """Return the offsets that the groups had before: those asked for before the first commit."""
    found = []
    for asked, answer in exchanges(scenario):
        commits = asked.code in PULLS and int(asked.fields["sysFlag"]) & 1
        if commits or asked.code == Request.UPDATE_CONSUMER_OFFSET:
            break
        if asked.code == Request.QUERY_CONSUMER_OFFSET and not answer.code:
            queue = {name: asked.fields[name] for name in ("consumerGroup", "topic", "queueId")}
            found.append({**queue, "commitOffset": answer.fields["offset"]})
    return [each for each in found if each["commitOffset"] != "0"]


def messages_of_others(scenario: str) -> list[Record]:
    """Return the messages in the answers to pulls that were stored before."""
    sent = {unique_id(asked) for asked, _ in exchanges(scenario) if asked.code in SENDS}
    found = {
        (record.topic, record.queue_id, record.queue_offset): record
        for asked, answer in exchanges(scenario)
        if asked.code in PULLS
        for record in records(answer.body)
        if record.properties_dict["UNIQ_KEY"] not in sent
    }
    return [found[place] for place in sorted(found)]


def unique_id(sent: Command) -> str:
    properties = decode_properties(sent.fields[properties_field(sent)].encode())
    return properties.get("UNIQ_KEY", "")


async def store(client: RemotingClient, record: Record) -> None:
    """Store a message, in a transaction if it was in one."""
    properties = dict(record.properties_dict)
    if "TIMER_DELIVER_MS" in properties:  # still to come, as it was
        properties["TIMER_DELIVER_MS"] = str(int(time.time() * 1000) + 1_000)
    group = properties.get("PGROUP", "earlier")
    fields: dict[str, Any] = {
        **{"a": group, "b": record.topic, "c": TEMPLATE, "d": 4, "e": record.queue_id},
        **{"f": PREPARED if record.sys_flag == COMMIT else record.sys_flag},
        **{"g": record.born_timestamp_ms, "h": record.flag},
        "i": encode_properties(properties).decode(),
    }
    sent = await client.call(Request.SEND_MESSAGE_V2, record.body, **fields)
    assert sent.code == Reply.SUCCESS, sent
    if record.sys_flag == COMMIT:
        name = properties["UNIQ_KEY"]
        ended = await client.call(
            Request.END_TRANSACTION,
            producerGroup=group,
            commitLogOffset=offset_of(*ids(sent)),
            tranStateTableOffset=sent.fields["queueOffset"],
            commitOrRollback=COMMIT,
            msgId=name,
            transactionId=name,
        )
        assert ended.code == Reply.SUCCESS, ended
    await wait_for_messages(client, record.topic, record.queue_id, record.queue_offset + 1)


async def wait_for_messages(
    client: RemotingClient, topic: str, queue_id: int | str, count: int
) -> None:
    """Wait until a queue has this many messages: they may be delayed."""
    found = 0
    async with asyncio.timeout(WAIT_S):
        while found < count:
            answer = await client.call(Request.GET_MAX_OFFSET, topic=topic, queueId=queue_id)
            found = int(answer.fields["offset"])
            await asyncio.sleep(0.01 if found < count else 0)


def exchanges(scenario: str) -> Iterator[tuple[Command, Command]]:
    """Yield the requests of clients with their answers, in the order of the requests."""
    answers = {
        event_key(event): event.command
        for event in frames(scenario)
        if not event.from_client and event.command.is_response
    }
    for event in frames(scenario):
        if event.from_client and not event.command.is_response:
            nothing = Command(0) if event.command.is_oneway else None
            answer = answers.get(event_key(event), nothing)
            if answer is not None:
                yield event.command, answer


async def prepare(port: int, scenario: str) -> None:
    """Leave what the earlier recordings left."""
    async with RemotingClient(port) as client:
        known = messages_of_others(scenario)
        queues = Counter((record.topic, record.queue_id) for record in known)
        for (topic, queue_id), count in left_by_others(scenario).items():
            for number in range(count - queues[topic, queue_id]):
                fields = {
                    **{"a": "earlier", "b": topic, "c": TEMPLATE, "d": 4, "e": queue_id, "f": 0},
                    **{"g": 1, "h": 0, "i": f"UNIQ_KEY\x01{queue_id}-{number}\x02"},
                }
                sent = await client.call(Request.SEND_MESSAGE_V2, b"earlier", **fields)
                assert sent.code == Reply.SUCCESS, sent
        for record in known:
            await store(client, record)
        for offset in committed_by_others(scenario):
            done = await client.call(Request.UPDATE_CONSUMER_OFFSET, **offset)
            assert done.code == Reply.SUCCESS, (done, offset)


async def pop_mode(port: int, topic: str, group: str) -> None:
    """Let a group pop, as `setup` does."""
    mode = {"consumerGroup": group, "topic": topic, "mode": "POP"}
    async with RemotingClient(port) as client:
        done = await client.call(Request.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode())
    assert done.code == Reply.SUCCESS, done


def test_every_recording_is_repeated() -> None:
    assert sorted([*REPLAYED, *CONTINUED, *PARTS]) == scenarios()


@pytest.mark.parametrize("scenario", [*REPLAYED, *CONTINUED, *PARTS])
async def test_the_answers_equal_the_recorded_ones(scenario: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nameserver = NameserverServer(
            NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
        )
        address = await nameserver.start()
        stack.push_async_callback(nameserver.stop, 0)
        configured = settings(
            tmp_path,
            remoting_listen_port=-1,
            namesrv_addr=address,
            recall_message_enable=True,
            transaction_time_out=1_000,
            transaction_check_interval=1_000,
            # Only these groups' checks were recorded: others commit with the first answer.
            transaction_check_max=15,
        )
        topics, groups = topics_of(scenario), groups_of(scenario)
        if scenario == "mqadmin":  # it creates them itself
            topics, groups = {}, set()
        store = replace(configured.store, message_delay_level=DELAY_LEVELS)
        live = await stack.enter_async_context(running(replace(configured, store=store)))
        async with live.client() as wire:
            for topic, queues in topics.items():
                await create_topic(wire, topic, queues=queues)
            for group in groups:
                await create_group(wire, group)
        port = int(live.bound.remoting.rpartition(":")[2])
        await wait_for_routes(nameserver.remoting_port, topics)
        if scenario in CONTINUED:
            await prepare(port, scenario)
        if scenario == "pop-mode":
            await pop_mode(port, "SmokePop-rec", "SmokeGroupPop-rec")
        replay = Replay(nameserver.remoting_port, port, live.bound.remoting)
        stack.push_async_callback(replay.close)
        await replay.run(scenario)
        assert replay.compared
