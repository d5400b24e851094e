"""Agent that holds the Python SDK and executes actions of `official.py`, like `official_agent.py`.

Uses `cometmq.sync`, so that the blocking clients and the asynchronous clients below them both pass
the tests of the official client. Actions and answers are the same.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import cometmq
from cometmq.tests.harness.agent_pipe import serve

#: As long as the official client's caller waits: it survives the restart of a broker.
SEND_S = 60.0


def shown(message: cometmq.Message) -> dict[str, Any]:
    """Return the fields of a message for tests."""
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode("utf-8", "replace"),
        "tag": message.tag or None,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "attempt": message.attempt,
        "corrupted": message.corrupted,
        "born": message.born_ms,
        "handle": message.receipt_handle,
        "group": message.group or None,
        "lite": message.lite_topic or None,
        "priority": message.priority,
        "deliver": message.deliver_ms or None,
    }


def filters(topics: Mapping[str, Any]) -> dict[str, str | cometmq.Filter]:
    """Return filters by topic: tags as text, SQL as {"sql": text}."""
    return {
        topic: cometmq.sql(wanted["sql"]) if isinstance(wanted, dict) else wanted
        for topic, wanted in topics.items()
    }


class Checker:
    """Records the transactions it is asked about; always returns the same outcome."""

    def __init__(self, answer: str) -> None:
        known = {each.name: each for each in cometmq.Resolution}
        self.answer = known.get(answer, cometmq.Resolution.UNKNOWN)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, message: cometmq.Message) -> cometmq.Resolution:
        self.asked.append(shown(message))
        return self.answer


class Handler:
    """Records every delivery; the first `failures` deliveries of each message fail."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.seen: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()

    def __call__(self, message: cometmq.Message) -> None:
        """Called by the SDK's threads."""
        with self.lock:
            count = self.counts[message.message_id] = self.counts.get(message.message_id, 0) + 1
            ok = count > self.failures
            self.seen.append({**shown(message), "ok": ok, "time": time.monotonic()})
        if not ok:
            raise RuntimeError(f"delivery {count} is to fail")


class Agent:
    """The clients of this process by name."""

    def __init__(self, endpoints: str) -> None:
        self.endpoints = endpoints
        self.options: dict[str, Any] = {"tls": bool(os.environ.get("OFFICIAL_TLS"))}
        self.clients: dict[str, Any] = {}
        self.handlers: dict[str, Handler] = {}
        self.held: dict[str, cometmq.Message] = {}
        self.checkers: dict[str, Checker] = {}

    def producer(
        self, name: str = "p", topics: tuple[str, ...] = (), checks: str = "UNSPECIFIED"
    ) -> str:
        """Start a producer; it answers transaction checks with `checks`."""
        self.checkers[name] = Checker(checks)
        return self._start(
            name,
            cometmq.sync.TransactionProducer(
                self.endpoints,
                topics=list(topics),
                checker=self.checkers[name],
                timeout=SEND_S,
                **self.options,
            ),
        )

    def simple(self, group: str, topics: dict[str, Any], name: str = "c", await_s: int = 5) -> str:
        """Start a SimpleConsumer with filters by topic."""
        return self._start(
            name,
            cometmq.sync.SimpleConsumer(
                self.endpoints, group=group, topics=filters(topics), wait=await_s, **self.options
            ),
        )

    def push(
        self, group: str, topics: dict[str, Any], name: str = "push", failures: int = 0
    ) -> str:
        """Start a PushConsumer whose handler fails the first `failures` deliveries."""
        self.handlers[name] = handler = Handler(failures)
        return self._start(
            name,
            cometmq.sync.PushConsumer(
                self.endpoints, handler, group=group, topics=filters(topics), **self.options
            ),
        )

    def lite_simple(self, group: str, topic: str, lites: list[str]) -> str:
        """Start a SimpleConsumer of some lite topics, as `c`."""
        return self._start(
            "c",
            cometmq.sync.SimpleConsumer(
                self.endpoints, group=group, topics=topic, lite_topics=lites, **self.options
            ),
        )

    def lite_push(self, group: str, topic: str, lites: list[str]) -> str:
        """Start a PushConsumer of some lite topics, as `push`."""
        self.handlers["push"] = handler = Handler(0)
        options = {"lite_topics": lites, **self.options}
        return self._start(
            "push",
            cometmq.sync.PushConsumer(
                self.endpoints, handler, group=group, topics=topic, **options
            ),
        )

    def pushed(self, name: str = "push") -> list[dict[str, Any]]:
        """Return the deliveries so far."""
        with self.handlers[name].lock:
            return list(self.handlers[name].seen)

    def send(self, name: str = "p", **fields: Any) -> str:
        """Send one message and wait; return its id."""
        return str(self._send(name, fields).message_id)

    def delay(self, name: str = "p", **fields: Any) -> dict[str, str]:
        """Send one delayed message; return its id and recall handle."""
        receipt = self._send(name, fields)
        return {"id": receipt.message_id, "handle": receipt.recall_handle}

    def recall(self, topic: str, handle: str, name: str = "p") -> str:
        """Recall a delayed message; return its id."""
        receipt = cometmq.Receipt("", topic, "", 0, recall_handle=handle)
        return str(self.clients[name].recall(receipt))

    def transact(self, end: str, topic: str, body: str, name: str = "p", **fields: Any) -> str:
        """Send a half message and `commit`, `rollback` or `leave` it; return its id."""
        transaction = self.clients[name].transaction(topic, body.encode(), **fields)
        if end != "leave":
            getattr(transaction, end)()
        return str(transaction.receipt.message_id)

    def asked(self, name: str = "p") -> list[dict[str, Any]]:
        """Return the checks that the producer received."""
        return list(self.checkers[name].asked)

    def send_many(self, topic: str, bodies: list[str], name: str = "p") -> list[str]:
        """Send all together; return the ids in order."""
        results = self.clients[name].send_many(topic, [body.encode() for body in bodies])
        for result in results:
            if isinstance(result, cometmq.CometError):
                raise result
        return [result.message_id for result in results]

    def receive(
        self, name: str = "c", count: int = 32, invisible_s: int = 15
    ) -> list[dict[str, Any]]:
        """Call receive once; keep the messages for ack and change."""
        found = self.clients[name].receive(count, invisible_for=invisible_s)
        for message in found:
            self.held[message.message_id] = message
        return [shown(message) for message in found]

    receive_async = receive

    def ack(self, ids: list[str], name: str = "c") -> int:
        """Acknowledge held messages; return their number."""
        for one in ids:
            self.clients[name].ack(self.held[one])
        return len(ids)

    def change(self, id: str, seconds: int, name: str = "c") -> str:
        """Change the invisible time of a held message; return its new handle."""
        self.clients[name].change_invisible(self.held[id], seconds)
        return self.held[id].receipt_handle

    def stop(self, name: str) -> bool:
        """Close one client."""
        self.clients.pop(name).close()
        return True

    def _start(self, name: str, client: Any) -> str:
        client.start()
        self.clients[name] = client
        return str(client.client_id)

    def _send(self, name: str, fields: dict[str, Any]) -> cometmq.Receipt:
        topic, body = fields.pop("topic"), fields.pop("body").encode()
        if "deliver_s" in fields:
            fields["deliver_at"] = datetime.fromtimestamp(fields.pop("deliver_s"), UTC)
        if "lite" in fields:
            fields["lite_topic"] = fields.pop("lite")
        receipt: cometmq.Receipt = self.clients[name].send(topic, body, **fields)
        return receipt


if __name__ == "__main__":
    serve(Agent(sys.argv[1]))
