"""`cometmq dlq redrive`: each dead letter is reported, and none stops the others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from cometmq.broker.metadata.tables import Group, Topic
from cometmq.proto import v2
from cometmq.store.format.properties import encode_properties
from cometmq.store.format.record import Message
from cometmq.tests.broker.live import Live, running, settings

GROUP = "g"
REDRIVE = (sys.executable, "-P", "-m", "cometmq.cli.main", "dlq", "redrive", GROUP, "--yes")


async def redrive(live: Live, *ids: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    chosen = [word for message_id in ids for word in ("--id", message_id)]
    arguments = [*REDRIVE, *chosen, "--endpoint", live.bound.client]
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
