"""A running Apache RocketMQ 5.5.0 nameserver and broker in a process of its own.

`ApacheStore.java --serve` holds both, from the published jars. `stop` ends it as an operator does:
the directory is closed cleanly. Topics, groups, sends and commits go over the remoting protocol.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import encode_properties
from cometmq.tests.interop.apache import oracle
from cometmq.tests.remoting.client import RemotingClient

STOP_S = 60.0
UPDATE_AND_CREATE_TOPIC, UPDATE_AND_CREATE_GROUP = 17, 200


class ApacheBroker:
    """The process; `with ApacheBroker(store, work, conf)` starts and stops it."""

    def __init__(
        self, store: Path, work: Path, conf: dict[str, str], options: Sequence[str] = ()
    ) -> None:
        """`options` are those of java."""
        work.mkdir(parents=True, exist_ok=True)
        command = ["java", *oracle.JAVA_OPTIONS, *options, "-cp", oracle.classpath()]
        command.append("ApacheStore")
        command += ["--store", str(store), "--serve", str(work)]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        self._errors = (work / "stderr.txt").open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        ports = self._answer()
        self.nameserver, self.broker = int(ports["nameserver"]), int(ports["broker"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def consume(self, *wanted: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """Run official push consumers, as `ApacheStore.java` documents; return what each got."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"consume": wanted}) + "\n")
        self._process.stdin.flush()
        found: list[list[dict[str, Any]]] = self._answer()
        return found

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise AssertionError(f"Apache's process ended with {self._process.wait(STOP_S)}")

    def stop(self) -> None:
        """Stop cleanly."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise
        self._errors.close()


async def done(client: RemotingClient, code: int, body: bytes = b"", /, **fields: Any) -> Command:
    """Send a request that must succeed; return the response."""
    answer = await client.call(code, body, **fields)
    assert answer.code == Reply.SUCCESS, answer
    return answer


async def create_topic(
    client: RemotingClient, name: str, *, queues: int, kind: str = "NORMAL"
) -> None:
    """Create a topic, as mqadmin does."""
    await done(
        client,
        UPDATE_AND_CREATE_TOPIC,
        topic=name,
        defaultTopic="TBW102",
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order="false",
        attributes=f"+message.type={kind}",
    )


async def create_group(client: RemotingClient, name: str, **more: Any) -> None:
    """Create a consumer group, as mqadmin does."""
    body = json.dumps({"groupName": name, "consumeEnable": True, **more}).encode()
    await done(client, UPDATE_AND_CREATE_GROUP, body)


async def send(
    client: RemotingClient, topic: str, queue_id: int, body: bytes, born_ms: int, **properties: str
) -> Command:
    """Send a message to a queue, with these properties."""
    text = encode_properties(properties).decode()
    fields = {"a": "live", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": str(born_ms), "h": "0", "i": text, "j": "0"}
    return await done(client, Request.SEND_MESSAGE_V2, body, **fields)


async def commit(
    client: RemotingClient, topic: str, group: str, queue_id: int, offset: int
) -> None:
    """Commit the offset of a group, as a push consumer does."""
    queue = {"topic": topic, "consumerGroup": group, "queueId": queue_id}
    await done(client, Request.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=offset)
