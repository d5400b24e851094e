"""Recorded requests of real clients, replayed: the answers equal those of Apache RocketMQ 5.5.0.

Requests are sent in the recorded order, on connections that end where they ended. What differs is
listed here: `VARIES` (addresses, positions, times) and the functions `expected_*` (deliberate
differences, docs/compatibility.md). A pull that found nothing in its time waits for 20 ms only.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.remoting.bare_json import loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import Record, decode
from cometmq.tests.broker.live import create_group, create_topic, running, settings
from cometmq.tests.remoting.client import WAIT_S, RemotingClient
from cometmq.tests.remoting.recordings import Closed, Recorded, events, frames

#: Fields whose values are positions in the log or times of this run.
VARIES = {"msgId", "timestamp", "recallHandle"}
#: Asynchronous sends of one client are stored in the order in which the server's threads take them.
VARIES_IN_SENDS = VARIES | {"queueOffset"}
SENDS = (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)
PULLS = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)
TEMPLATE = "TBW102"
#: Address of the recorded broker.
RECORDED_BROKER = "127.0.0.2:10911"
#: Recordings whose requests can be repeated. Not the others: they use codes that are not offered
#: (mqadmin, setup, transactions, pop, recall, request-reply), read what earlier recordings left in
#: their topics, search a time of the past, wait for delays, or depend on the order of parallel
#: requests.
REPLAYED = (
    *("broadcast", "filter-tag", "lite-pull", "offsets-and-time", "offsets-survive-restart"),
    *("order", "pull", "push", "two-groups-and-latest"),
    *("client-4.9.8-filter-tag", "client-4.9.8-lite-pull", "client-4.9.8-offsets-and-time"),
    *("client-4.9.8-offsets-survive-restart", "client-4.9.8-order", "client-4.9.8-pull"),
    *("client-4.9.8-push", "client-4.9.8-queue-selector", "client-4.9.8-send-async"),
    *("client-4.9.8-send-batch", "client-4.9.8-send-oneway", "client-4.9.8-send-sync"),
    *("client-4.9.8-two-groups-and-latest", "binary-header", "vip-channel"),
)


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
        self.compared = 0

    async def run(self, scenario: str) -> None:
        recorded = list(events(scenario))
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
            await client.__aenter__()
        sent = event.command
        command = Command(sent.code, dict(sent.fields), sent.body, sent.flag, binary=sent.binary)
        command.version = sent.version
        if quiet:
            command.fields["suspendTimeoutMillis"] = "20"
        if command.code == Request.CONSUMER_SEND_MSG_BACK:
            command.fields["offset"] = str(self._positions[int(command.fields["offset"])])
        if sent.is_oneway:
            client.oneway(command.code, command.body, **command.fields)
            # Answered after it, on any connection.
            await client.call(Request.GET_MAX_OFFSET, topic="none", queueId=0)
            return
        future = client.post(command)
        self._posted[event_key(event)] = sent, future
        if sent.code not in PULLS:  # one after another, whatever the order of the answers was
            await asyncio.wait([future], timeout=WAIT_S)

    async def _compare(self, event: Recorded) -> None:
        found = self._posted.pop(event_key(event), None)
        if found is None:  # the request came on a connection that was open before the recording
            return
        sent, future = found
        answer = await asyncio.wait_for(future, WAIT_S)
        wanted = event.command
        if is_expected_difference(sent, wanted, answer):
            return
        where = f"request {sent.code} {sent.fields}"
        assert answer.code == wanted.code, f"{where}: {answer.remark}"
        assert (answer.remark or None) == (wanted.remark or None), where
        assert answer.fields.keys() == wanted.fields.keys(), where
        varies = VARIES_IN_SENDS if sent.code in SENDS else VARIES
        for name in wanted.fields.keys() - varies:
            assert answer.fields[name] == wanted.fields[name], f"{where}: {name}"
        self._compare_bodies(sent, wanted.body, answer.body)
        self.compared += 1

    def _compare_bodies(self, sent: Command, wanted: bytes, found: bytes) -> None:
        if sent.code in PULLS:
            wanted_records, found_records = records(wanted), records(found)
            assert list(map(visible, found_records)) == list(map(visible, wanted_records))
            for one, other in zip(wanted_records, found_records, strict=True):
                self._positions[one.physical_offset] = other.physical_offset
        elif wanted:
            text = found.replace(self._address.encode(), RECORDED_BROKER.encode())
            assert in_any_order(loads(text)) == in_any_order(loads(wanted))
        else:
            assert not found

    async def _expect_notice(self, event: Recorded) -> None:
        """Members are told of a change at least once; several changes may be one notice."""
        assert event.command.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
        if event.connection not in self._told:
            notice = await self._clients[event.connection].next_request()
            assert (notice.code, notice.fields) == (event.command.code, event.command.fields)
            self._told.add(event.connection)


def event_key(event: Recorded) -> tuple[int, int]:
    return event.connection, event.command.opaque


def quiet_pulls(recorded: list[Recorded | Closed]) -> set[tuple[int, int]]:
    """Return the pulls that found nothing until their time was over."""
    return {
        event_key(event)
        for event in recorded
        if isinstance(event, Recorded)
        and not event.from_client
        and event.command.is_response
        and event.command.code == Reply.PULL_NOT_FOUND
    }


def is_expected_difference(sent: Command, wanted: Command, answer: Command) -> bool:
    """Return whether the answers differ on purpose."""
    if wanted.code in (Reply.SUBSCRIPTION_NOT_EXIST, Reply.SUBSCRIPTION_NOT_LATEST):
        # The heartbeat on another connection came later there.
        return answer.code in (Reply.SUCCESS, wanted.code)
    if sent.code == Request.GET_ROUTEINFO_BY_TOPIC and wanted.code == Reply.TOPIC_NOT_EXIST:
        # A retry topic has a route before it exists.
        return sent.fields["topic"].startswith("%RETRY%") and answer.code == Reply.SUCCESS
    if sent.fields.get("topic") == TEMPLATE and sent.code == Request.GET_ROUTEINFO_BY_TOPIC:
        # No topic is created by a send (autoCreateTopicEnable=false): there is no template.
        return answer.code == Reply.TOPIC_NOT_EXIST
    return False


def records(body: bytes) -> list[Record]:
    found = []
    while body:
        record = decode(body)
        found.append(record)
        body = body[record.size :]
    return found


def visible(record: Record) -> tuple[Any, ...]:
    """Return what a client sees of a record, apart from positions, hosts and times."""
    properties = dict(record.properties_dict)
    for name in ("ORIGIN_MESSAGE_ID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"):
        properties.pop(name, None)
    return (
        *(record.topic, record.queue_id, record.queue_offset, record.body, record.flag),
        *(record.sys_flag, record.born_timestamp_ms, record.reconsume_times, properties),
    )


def in_any_order(document: Any) -> Any:
    """Sort lists: members of groups and queues of locks have no order."""
    if isinstance(document, dict):
        return {key: in_any_order(value) for key, value in document.items()}
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
            document = json.loads(event.command.body) if not topic.startswith("%") else {}
            for queues in document.get("queueDatas", ()):
                found[topic] = queues["writeQueueNums"]
    found.pop(TEMPLATE, None)
    return found


def groups_of(scenario: str) -> set[str]:
    """Return the consumer groups of the recorded requests: they existed before."""
    names = {event.command.fields.get("consumerGroup", "") for event in frames(scenario)}
    return names - {""}


async def has_route(client: RemotingClient, topic: str) -> bool:
    return not (await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic=topic)).code


@pytest.mark.parametrize("scenario", REPLAYED)
async def test_the_answers_equal_the_recorded_ones(scenario: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nameserver = NameserverServer(
            NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
        )
        address = await nameserver.start()
        stack.push_async_callback(nameserver.stop, 0)
        chosen = settings(tmp_path, remoting_listen_port=-1, namesrv_addr=address)
        live = await stack.enter_async_context(running(chosen))
        async with live.client() as wire:
            for topic, queues in topics_of(scenario).items():
                await create_topic(wire, topic, queues=queues)
            for group in groups_of(scenario):
                await create_group(wire, group)
        port = int(live.bound.remoting.rpartition(":")[2])
        async with RemotingClient(nameserver.remoting_port) as client:
            async with asyncio.timeout(WAIT_S):
                for topic in topics_of(scenario):
                    while not await has_route(client, topic):  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0.01)
        replay = Replay(nameserver.remoting_port, port, live.bound.remoting)
        stack.push_async_callback(replay.close)
        await replay.run(scenario)
        assert replay.compared
