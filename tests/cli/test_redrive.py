"""`cometmq dlq redrive`: each dead letter is reported, and none stops the others."""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cometmq.broker.metadata.tables import Group, Topic
from cometmq.cli.dlq.letters import Selection
from cometmq.cli.dlq.letters import dead_letters as letters
from cometmq.operations.broker_groups import BrokerGroups, group_names
from cometmq.operations.connection import Connection
from cometmq.operations.errors import CliError
from cometmq.operations.links import Links
from cometmq.operations.redrive import Copy, plan, send
from cometmq.proto import v2
from cometmq.store.format.properties import encode_properties
from cometmq.store.format.record import Message
from cometmq.tests.broker.live import Live, running, settings

GROUP = "g"
DLQ = (sys.executable, "-P", "-m", "cometmq.cli.main", "dlq")


async def redrive(live: Live, *ids: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    chosen = [word for message_id in ids for word in ("--id", message_id)]
    return await run(live, "redrive", GROUP, "--yes", *chosen)


async def run(live: Live, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command about dead letters."""
    arguments = [*DLQ, *words, "--endpoint", live.bound.client]
    return await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, text=True, timeout=60, check=False
    )


def dead_letters(live: Live, **origins: str) -> None:
    """Store a dead letter for each message id, of its topic."""
    node = live.node
    node.meta_log.write_group(Group(GROUP))
    node.meta_log.write_topic(Topic(f"%DLQ%{GROUP}", 1, 1))
    node.meta_log.write_topic(Topic("plain", 1, 1))
    node.meta_log.write_topic(Topic("ordered", 1, 1, message_type=v2.FIFO))
    for message_id, topic in origins.items():
        properties = {"UNIQ_KEY": message_id, "DLQ_ORIGIN_TOPIC": topic}
        encoded = encode_properties({name: text for name, text in properties.items() if text})
        node.sender.append(Message(f"%DLQ%{GROUP}", 0, message_id.encode(), encoded))
    node.pump.run()


async def test_each_dead_letter_is_reported_and_none_stops_the_others(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live:
        dead_letters(live, A="gone", B="ordered", C="", D="plain", E="plain")
        done = await redrive(live)
        assert done.returncode == 1, done.stderr
        assert "Sent 2 of 4 messages again." in done.stdout
        said = [line.split(":")[0] for line in done.stderr.splitlines()]
        assert said.count("A") == said.count("B") == said.count("C") == 1
        assert not {"D", "E"} & set(said)
        done = await redrive(live, "D", "missing")
        assert done.returncode == 1
        assert "missing: no such dead letter" in done.stderr
        # What is left can be sent when its cause is gone.
        live.node.meta_log.write_topic(Topic("gone", 1, 1))
        done = await redrive(live, "A", "D")
        assert done.returncode == 0, done.stderr
        assert "Sent 1 of 1 messages again." in done.stdout


def twice(endpoint: str) -> tuple[list[CliError | bool], list[CliError | bool]]:
    """Send the copies of two redrives that were planned before either has sent."""
    links = Links()
    with Connection(endpoint, links) as connection:
        groups = BrokerGroups(connection, group_names(connection))

        def planned() -> list[Copy]:
            return plan(groups, letters(groups, connection, Selection(GROUP)), "").copies

        first, second = planned(), planned()
        with ThreadPoolExecutor() as pool:
            sent = [pool.submit(list, send(groups, connection, each)) for each in (first, second)]
            return sent[0].result(), sent[1].result()


async def test_two_redrives_at_the_same_time_send_each_dead_letter_once(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live:
        dead_letters(live, **{f"L{n}": "plain" for n in range(50)})
        first, second = await asyncio.to_thread(twice, live.bound.client)
        assert [{*pair} for pair in zip(first, second, strict=True)] == [{True, False}] * 50
        while live.node.store.max_offset("plain", 0) < 50:
            live.node.pump.run()
        assert live.node.store.max_offset("plain", 0) == 50
        listed = await run(live, "ls", GROUP, "--id", "L7", "-o", "json")
        (letter,) = json.loads(listed.stdout)
        assert letter["sent_again_ms"] >= letter["stored_ms"]
        assert letter["sent_again_by"] == f"{getpass.getuser()}@{socket.gethostname()}"
        assert len(letter["sent_again_as"]) == 32
