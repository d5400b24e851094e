"""Agent that holds the official Python client and executes actions of `official.py`.

Imports the installed `rocketmq` package and nothing of this project but the pipe: two copies of the
protobuf modules cannot share the default descriptor pool (docs/formats/client-wire.md, section 1,
finding 9).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

from cometmq.tests.harness.agent_pipe import serve

SETTINGS_S = 30.0
#: Of one request; the client's default of 3 s is too short for a machine that runs many tests.
REQUEST_S = 30


def shown(message: Message) -> dict[str, Any]:
    """Return the fields of a message for tests."""
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": bytes(message.body).decode("utf-8", "replace"),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
        "corrupted": message.corrupted,
        "born": message.born_timestamp,
        "handle": message.receipt_handle,
        "group": message.message_group,
        "lite": message.lite_topic,
        "priority": message.priority,
        "deliver": message.delivery_timestamp,
    }


def expressions(topics: dict[str, Any]) -> dict[str, FilterExpression]:
    """Return filter expressions by topic: tags as text, SQL as {"sql": text}."""
    return {
        topic: FilterExpression(wanted["sql"], FilterType.SQL)
        if isinstance(wanted, dict)
        else FilterExpression(wanted)
        for topic, wanted in topics.items()
    }


def subscribe_lite(consumer: Any, names: list[str]) -> None:
    """Subscribe after the settings have arrived: before that the client's quota is 0."""
    until = time.monotonic() + SETTINGS_S
    for name in names:
        while True:
            try:
                consumer.subscribe_lite(name)
                break
            except LiteSubscriptionQuotaExceededException:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)


class Checker(TransactionChecker):  # type: ignore[misc]
    """Records the transactions it is asked about; always returns the same outcome."""

    def __init__(self, answer: str) -> None:
        self.answer = TransactionResolution.Value(answer)
        self.asked: list[dict[str, Any]] = []

    def check(self, message: Message) -> TransactionResolution:
        """Called by the client's thread."""
        self.asked.append(shown(message))
        return self.answer


class Listener(MessageListener):  # type: ignore[misc]
    """Records every delivery; the first `failures` deliveries of each message fail."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.seen: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        """Called by the client's threads."""
        with self.lock:
            count = self.counts[message.message_id] = self.counts.get(message.message_id, 0) + 1
            ok = count > self.failures
            self.seen.append({**shown(message), "ok": ok, "time": time.monotonic()})
        return ConsumeResult.SUCCESS if ok else ConsumeResult.FAILURE


class Agent:
    """The clients of this process by name."""

    def __init__(self, endpoints: str) -> None:
        self.configuration = ClientConfiguration(
            endpoints, Credentials(), request_timeout=REQUEST_S
        )
        self.tls = {"tls_enable": bool(os.environ.get("OFFICIAL_TLS"))}
        self.clients: dict[str, Any] = {}
        self.listeners: dict[str, Listener] = {}
        self.held: dict[str, Message] = {}
        self.checkers: dict[str, Checker] = {}

    def producer(
        self, name: str = "p", topics: tuple[str, ...] = (), checks: str = "UNSPECIFIED"
    ) -> str:
        """Start a producer; it answers transaction checks with `checks`."""
        if checks == "UNSPECIFIED":
            checks = "TRANSACTION_RESOLUTION_UNSPECIFIED"
        self.checkers[name] = Checker(checks)
        self.clients[name] = Producer(
            self.configuration, list(topics), self.checkers[name], **self.tls
        )
        self.clients[name].startup()
        return str(self.clients[name].client_id)

    def simple(self, group: str, topics: dict[str, Any], name: str = "c", await_s: int = 5) -> str:
        """Start a SimpleConsumer with filters by topic."""
        wanted = expressions(topics)
        self.clients[name] = SimpleConsumer(self.configuration, group, wanted, await_s, **self.tls)
        self.clients[name].startup()
        return str(self.clients[name].client_id)

    def push(
        self, group: str, topics: dict[str, Any], name: str = "push", failures: int = 0
    ) -> str:
        """Start a PushConsumer whose listener fails the first `failures` deliveries."""
        wanted = expressions(topics)
        self.listeners[name] = Listener(failures)
        self.clients[name] = PushConsumer(
            self.configuration, group, self.listeners[name], wanted, **self.tls
        )
        self.clients[name].startup()
        return str(self.clients[name].client_id)

    def lite_simple(self, group: str, topic: str, lites: list[str], await_s: int = 5) -> bool:
        """Start a LiteSimpleConsumer of some lite topics, as `c`."""
        consumer = LiteSimpleConsumer(topic, self.configuration, group, await_s, **self.tls)
        self.clients["c"] = consumer
        consumer.startup()
        subscribe_lite(consumer, lites)
        return True

    def lite_push(self, group: str, topic: str, lites: list[str], failures: int = 0) -> bool:
        """Start a LitePushConsumer of some lite topics, as `push`."""
        self.listeners["push"] = listener = Listener(failures)
        consumer = LitePushConsumer(self.configuration, group, topic, listener, **self.tls)
        self.clients["push"] = consumer
        consumer.startup()
        subscribe_lite(consumer, lites)
        return True

    def pushed(self, name: str = "push") -> list[dict[str, Any]]:
        """Return the deliveries so far."""
        with self.listeners[name].lock:
            return list(self.listeners[name].seen)

    def message(self, topic: str, body: str, **more: Any) -> Message:
        """Build a message as a user does."""
        message = Message()
        message.topic, message.body = topic, body.encode()
        if "tag" in more:
            message.tag = more["tag"]
        for key in more.get("keys", ()):
            message.keys = key
        for key, value in more.get("properties", {}).items():
            message.add_property(key, value)
        if "group" in more:
            message.message_group = more["group"]
        if (
            "deliver_s" in more
        ):  # whole seconds since 1970, whatever the client's documentation says
            message.delivery_timestamp = more["deliver_s"]
        if "priority" in more:
            message.priority = more["priority"]
        if "lite" in more:
            message.lite_topic = more["lite"]
        return message

    def send(self, name: str = "p", **fields: Any) -> str:
        """Send one message and wait; return its id."""
        return str(self.clients[name].send(self.message(**fields)).message_id)

    def delay(self, name: str = "p", **fields: Any) -> dict[str, str]:
        """Send one delayed message; return its id and recall handle."""
        receipt = self.clients[name].send(self.message(**fields))
        return {"id": str(receipt.message_id), "handle": str(receipt.recall_handle)}

    def recall(self, topic: str, handle: str, name: str = "p") -> str:
        """Recall a delayed message; return its id."""
        return str(self.clients[name].recall_message(topic, handle))

    def transact(self, end: str, name: str = "p", **fields: Any) -> str:
        """Send a half message and `commit`, `rollback` or `leave` it; return its id."""
        transaction = self.clients[name].begin_transaction()
        receipt = self.clients[name].send(self.message(**fields), transaction)
        if end != "leave":
            getattr(transaction, end)()
        return str(receipt.message_id)

    def asked(self, name: str = "p") -> list[dict[str, Any]]:
        """Return the checks that the producer received."""
        return list(self.checkers[name].asked)

    def send_many(self, topic: str, bodies: list[str], name: str = "p") -> list[str]:
        """Send all with the asynchronous call; return the ids in order."""
        futures = [self.clients[name].send_async(self.message(topic, body)) for body in bodies]
        return [str(future.result(30).message_id) for future in futures]

    def receive(
        self, name: str = "c", count: int = 32, invisible_s: int = 15
    ) -> list[dict[str, Any]]:
        """Call receive once; keep the messages for ack and change."""
        found = self.clients[name].receive(count, invisible_s) or []
        for message in found:
            self.held[message.message_id] = message
        return [shown(message) for message in found]

    def receive_async(
        self, name: str = "c", count: int = 32, invisible_s: int = 15
    ) -> list[dict[str, Any]]:
        """Do the same with the asynchronous call."""
        found = self.clients[name].receive_async(count, invisible_s).result(60) or []
        for message in found:
            self.held[message.message_id] = message
        return [shown(message) for message in found]

    def ack(self, ids: list[str], name: str = "c") -> int:
        """Acknowledge held messages; return their number."""
        for one in ids:
            self.clients[name].ack(self.held[one])
        return len(ids)

    def change(self, id: str, seconds: int, name: str = "c") -> str:
        """Change the invisible time of a held message; return its new handle."""
        self.clients[name].change_invisible_duration(self.held[id], seconds)
        return str(self.held[id].receipt_handle)

    def stop(self, name: str) -> bool:
        """Shut one client down."""
        self.clients.pop(name).shutdown()
        return True


if __name__ == "__main__":
    serve(Agent(sys.argv[1]))
