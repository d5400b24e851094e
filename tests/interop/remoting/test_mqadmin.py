"""Apache's mqadmin 5.5.0, unmodified: each of its commands works, or is refused with the reason.

All commands run in one Java process, against one nameserver and one broker.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.remoting.bare_json import QueueKey, dumps
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command, reply
from cometmq.tests.broker.classic_wire import heartbeat, message, port_of
from cometmq.tests.broker.desk import message as traced
from cometmq.tests.broker.live import Live, create_group, create_topic, running, settings
from cometmq.tests.broker.proxy_classic_wire import classic_nameserver, classic_proxy, hidden
from cometmq.tests.harness.jvm import JAVA
from cometmq.tests.interop.programs import CACHE, compiled, fetched, require
from cometmq.tests.interop.remoting.mqadmin_commands import CASES, Case, through_a_proxy
from cometmq.tests.remoting.client import RemotingClient

HERE = Path(__file__).parent / "mqadmin"
TABLE = Path(__file__).parents[3] / "docs" / "mqadmin.md"
ROW = re.compile(r"\| `(\w+)` \| .* \| (?:yes|-) \| (yes|no: .+) \|")
COMMAND_S = 60
#: Times for a command that does not end to print what is expected: the next one if it did not.
ENDLESS_S = (4, 15, 60)
FAILURES = ("Exception", "not supported", "not exist", "Missing required option")
UNIQUE_ID = "7F000001" + "0" * 24
TRACED_ID = "7F000001" + "1" * 24


def java() -> list[str]:
    """Fetch mqadmin and build the program that runs it; return its command."""
    require("mvn", "java", "javac")
    jars = fetched(CACHE / "mqadmin-jars-5.5.0", HERE)
    classes = compiled(CACHE / "mqadmin-classes", jars, HERE, "Mqadmin.java")
    return [*JAVA, "-cp", f"{classes}:{jars}/*", "Mqadmin"]


class Mqadmin:
    """Runs commands, one after another."""

    def __init__(self, process: asyncio.subprocess.Process, namesrv: str) -> None:
        self._process = process
        self._namesrv = namesrv

    async def run(self, case: Case, values: dict[str, str]) -> str:
        """Return the output of a command."""
        if not case.endless:
            return await self._run(case, values, COMMAND_S)
        output = ""
        for seconds in ENDLESS_S:
            output = await self._run(case, values, seconds)
            if re.search(fill(case.output, values), output):
                break
        return output

    async def _run(self, case: Case, values: dict[str, str], seconds: int) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        arguments = [fill(each, values) for each in case.arguments]
        line = "\t".join((str(seconds), case.name, *arguments, "-n", self._namesrv))
        self._process.stdin.write(f"{line}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), 2 * COMMAND_S)
        state, _, output = answer.decode().strip().partition("\t")
        assert state == ("running" if case.endless else "done"), (case.name, state)
        return base64.b64decode(output).decode()

    async def help(self) -> set[str]:
        """Return the names of all commands."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{COMMAND_S}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), 2 * COMMAND_S)
        text = base64.b64decode(answer.decode().partition("\t")[2]).decode()
        return set(re.findall(r"^   (\w+) ", text, re.MULTILINE))


def fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def write_lists(files: Path) -> None:
    topic = {"topicName": "listed-topic", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    (files / "topics.json").write_text(json.dumps([topic]))
    (files / "groups.json").write_text(json.dumps([{"groupName": "listed-group"}]))


def answered(command: Command) -> Command | None:
    """Answer as a consumer does."""
    if command.code != Request.GET_CONSUMER_RUNNING_INFO:
        return None
    queue = {"commitOffset": 1, "cachedMsgCount": 0, "locked": False, "droped": False}
    document = {
        "mqTable": {QueueKey("broker-a", 0, "admin-topic"): queue},
        "properties": {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMER_START_TIMESTAMP": "1",
        },
        "statusTable": {},
        "subscriptionSet": [],
        "mqPopTable": {},
        "userConsumerInfo": {},
    }
    return reply(Reply.SUCCESS, body=dumps(document))


@asynccontextmanager
async def consumer(live: Any, values: dict[str, str]) -> AsyncIterator[RemotingClient]:
    """A connected producer and consumer, with a message and a committed offset."""
    async with RemotingClient(port_of(live)) as client:
        client.on_request = answered
        document = json.loads(heartbeat("admin-client", "admin-group", 1, **{"admin-topic": "*"}))
        document["producerDataSet"].append({"groupName": "admin-producers"})
        await leave(client, document)
        properties = f"KEYS\x01key-0\x02UNIQ_KEY\x01{UNIQUE_ID}\x02"
        sent = await client.post(message(properties=properties, b="admin-topic", e=0))
        assert sent.code == Reply.SUCCESS, sent
        values |= {"unique_id": UNIQUE_ID, "offset_id": sent.fields["msgId"]}
        await wait(client, values)
        fields = {"consumerGroup": "admin-group", "topic": "admin-topic", "queueId": 0}
        answer = await client.call(Request.UPDATE_CONSUMER_OFFSET, commitOffset=1, **fields)
        assert answer.code == Reply.SUCCESS, answer
        await trace(client)
        beating = asyncio.create_task(beat(client, document, for_ever=True))
        yield client
        beating.cancel()


async def leave(client: RemotingClient, document: Any) -> None:
    """Add a group to the heartbeats that has committed offsets of a topic and left it."""
    for topics in (("admin-topic", "traced-topic"), ("admin-topic",)):
        subscribed = dict.fromkeys(topics, "*")
        other = json.loads(heartbeat("admin-client", "left-group", 3 - len(topics), **subscribed))
        document["consumerDataSet"][1:] = other["consumerDataSet"]
        await beat(client, document)
        for topic in topics:
            fields = {"consumerGroup": "left-group", "topic": topic, "queueId": 0}
            answer = await client.call(Request.UPDATE_CONSUMER_OFFSET, commitOffset=0, **fields)
            assert answer.code == Reply.SUCCESS, answer


async def wait(client: RemotingClient, values: dict[str, str]) -> None:
    """Store messages that wait: of a transaction, of a delay level, of a timer."""
    for name, flag, kind in (
        ("half", 4, "TRAN_MSG\x01true\x02PGROUP\x01admin-producers\x02"),
        ("level", 0, "DELAY\x0118\x02"),
        ("timer", 0, "TIMER_DELAY_SEC\x01600\x02"),
    ):
        properties = f"{kind}KEYS\x01key-{name}\x02UNIQ_KEY\x01{UNIQUE_ID[:-5]}{name}\x02"
        sent = await client.post(message(properties=properties, b="admin-topic", e=0, f=flag))
        assert sent.code == Reply.SUCCESS, sent
        values[f"{name}_id"] = sent.fields["msgId"]


async def beat(client: RemotingClient, document: Any, *, for_ever: bool = False) -> None:
    """Send a heartbeat, or one every half minute: the commands may take minutes."""
    while True:
        answer = await client.call(Request.HEART_BEAT, json.dumps(document).encode())
        assert answer.code == Reply.SUCCESS, answer
        if not for_ever:
            return
        await asyncio.sleep(30)


async def trace(client: RemotingClient) -> None:
    """Store the trace of the message, as a producer with traces does."""
    fields = ("Pub", "1795389060489", "region", "admin-producers", "admin-topic", UNIQUE_ID)
    more = ("TagA", "key-0", "127.0.0.1:10911", "5", "1", "0", "offset-id", "true")
    body = "\x01".join((*fields, *more)) + "\x02"
    properties = f"KEYS\x01{UNIQUE_ID}\x02UNIQ_KEY\x01{'F' * 32}\x02"
    sent = await client.post(message(body.encode(), properties, b="trace-topic", e=0))
    assert sent.code == Reply.SUCCESS, sent


@asynccontextmanager
async def started(namesrv: str, home: Path, *options: str) -> AsyncIterator[Mqadmin]:
    """Run the program that runs commands."""
    command = await asyncio.to_thread(java)
    options = (f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", *options)
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home,
        env={**os.environ, "HOME": str(home), "JAVA_TOOL_OPTIONS": " ".join(options)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=4 << 20,
    )
    assert process.stdin is not None
    try:
        yield Mqadmin(process, namesrv)
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), COMMAND_S)


@asynccontextmanager
async def nameserver() -> AsyncIterator[tuple[str, str]]:
    """Run a nameserver; yield its address, and that for classic clients."""
    server = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    )
    address = await server.start()
    try:
        yield address, f"127.0.0.1:{server.remoting_port}"
    finally:
        await server.stop(0.5)


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Mqadmin, dict[str, str]]]:
    async with nameserver() as (address, namesrv):
        chosen = settings(
            tmp_path / "store",
            remoting_listen_port=-1,
            namesrv_addr=address,
            trace_topic_enable=True,
        )
        async with running(chosen) as live:
            values = {"broker": live.bound.remoting, "namesrv": namesrv}
            async with administered(live, values, tmp_path) as mqadmin:
                yield mqadmin, values


@asynccontextmanager
async def behind_a_proxy(tmp_path: Path) -> AsyncIterator[tuple[Mqadmin, dict[str, str]]]:
    """The same, with a proxy as the only address."""
    async with (
        classic_nameserver() as names,
        running(hidden(tmp_path / "store", names.grpc)) as live,
        classic_proxy(names) as (_, port),
    ):
        values = dict.fromkeys(("broker", "namesrv"), f"127.0.0.1:{port}")
        async with administered(live, values, tmp_path) as mqadmin:
            yield mqadmin, values


@asynccontextmanager
async def administered(
    live: Live, values: dict[str, str], tmp_path: Path
) -> AsyncIterator[Mqadmin]:
    """Create what the commands look for, and run mqadmin."""
    files, home = tmp_path / "files", tmp_path / "home"
    files.mkdir()
    home.mkdir()
    write_lists(files)
    values["files"] = str(files)
    values["traced_id"] = TRACED_ID
    async with live.client() as wire:
        await create_topic(wire, "admin-topic", queues=4)
        await create_topic(wire, "trace-topic", queues=1)
        await create_topic(wire, "traced-topic", queues=1)
        await create_group(wire, "admin-group")
        await wire.send([traced("traced-topic", message_id=TRACED_ID)])
    async with consumer(live, values), started(values["namesrv"], home) as mqadmin:
        yield mqadmin


def documented() -> dict[str, str]:
    """Return the last column of the table, by command."""
    found = map(ROW.fullmatch, TABLE.read_text(encoding="utf-8").splitlines())
    return {row[1]: row[2] for row in found if row}


def trouble(case: Case, output: str, values: dict[str, str]) -> str:
    """Return what is wrong with an output; empty: nothing."""
    if not re.search(fill(case.output, values), output):
        return f"{case.name}: no {case.output!r} in {output[-1_500:]!r}"
    failed = [each for each in FAILURES if each in output]
    if case.works and failed:
        return f"{case.name}: {failed[0]!r} in {output[-1_500:]!r}"
    return ""


@pytest.mark.timeout(600)  # the first run fetches mqadmin
async def test_every_command_works_or_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (mqadmin, values):
        assert await mqadmin.help() == {case.name for case in CASES}
        found = [trouble(case, await mqadmin.run(case, values), values) for case in CASES]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.timeout(600)  # the first run fetches mqadmin
async def test_commands_work_through_a_proxy_unless_they_change_a_nameserver(
    tmp_path: Path,
) -> None:
    cases = [
        through_a_proxy(case)
        for case in CASES
        # This broker writes no traces, and its address, which offset ids name, is hidden.
        if case.works and not re.search("{(traced|offset|half|level|timer)_id}", str(case))
    ]
    async with behind_a_proxy(tmp_path) as (mqadmin, values):
        found = [trouble(case, await mqadmin.run(case, values), values) for case in cases]
    assert not any(found), "\n".join(filter(None, found))


def test_the_table_of_the_documentation_is_what_the_commands_do() -> None:
    rows = documented()
    assert rows.keys() == {case.name for case in CASES}
    for case in CASES:
        assert (rows[case.name] == "yes") == case.works, case.name
