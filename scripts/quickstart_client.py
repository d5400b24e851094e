"""The quickstart's two programs with the official Python client: a producer and a consumer.

Each runs in its own process and prints one line of JSON for each event; `scripts/quickstart` counts
them. Nothing of this project is imported, as in a user's program.

    producer ENDPOINTS TOPIC FIRST LAST     sends messages with the identities FIRST..LAST-1
    consumer ENDPOINTS TOPIC GROUP          receives and acknowledges until its input is closed
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

SENDERS = 16  # threads of one producer: enough to keep the connection busy
READERS = 6
RETRY_S = 0.2  # pause before a failed call is repeated
BATCH, INVISIBLE_S, AWAIT_S = 32, 10, 5

_printing = threading.Lock()
_out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # output of the client library goes to stderr


def report(**event: Any) -> None:
    """Print one event as a line of JSON."""
    with _printing:
        _out.write(json.dumps(event) + "\n")


def send_until_acknowledged(producer: Producer, topic: str, identity: int) -> None:
    """Send one message; after an exception (unknown outcome) send it again."""
    message = Message()
    message.topic, message.body = topic, f"message {identity}".encode()
    message.tag = "even" if identity % 2 == 0 else "odd"
    message.keys = str(identity)
    while True:
        try:
            receipt = producer.send(message)
        except Exception as error:  # any error: the send was not acknowledged
            report(unknown=identity, why=type(error).__name__)
            time.sleep(RETRY_S)
        else:
            report(acknowledged=identity, id=receipt.message_id)
            return


def run_producer(endpoints: str, topic: str, first: str, last: str) -> None:
    """Send every identity of the range."""
    producer = Producer(ClientConfiguration(endpoints, Credentials()), [topic])
    producer.startup()
    with ThreadPoolExecutor(SENDERS) as pool:
        for identity in range(int(first), int(last)):
            pool.submit(send_until_acknowledged, producer, topic, identity)
    report(done=True)


def read(consumer: SimpleConsumer, stop: threading.Event) -> None:
    """Receive and acknowledge until `stop` is set; failed calls are repeated."""
    while not stop.is_set():
        try:
            messages = consumer.receive(BATCH, INVISIBLE_S) or []
        except Exception as error:
            report(failed="receive", why=type(error).__name__)
            time.sleep(RETRY_S)
            continue
        for message in messages:
            report(received=int(next(iter(message.keys))), id=message.message_id)
            try:
                consumer.ack(message)
            except Exception as error:  # the message is delivered and counted again
                report(failed="ack", why=type(error).__name__)


def run_consumer(endpoints: str, topic: str, group: str) -> None:
    """Read until standard input is closed."""
    wanted = {topic: FilterExpression()}
    consumer = SimpleConsumer(ClientConfiguration(endpoints, Credentials()), group, wanted, AWAIT_S)
    consumer.startup()
    stop = threading.Event()
    for _ in range(READERS):
        threading.Thread(target=read, args=(consumer, stop), daemon=True).start()
    sys.stdin.read()
    stop.set()


def main() -> None:
    """Run the producer or the consumer."""
    if sys.argv[1] == "producer":
        run_producer(*sys.argv[2:])
    else:
        run_consumer(*sys.argv[2:])
    os._exit(0)  # the client's threads are not daemons


if __name__ == "__main__":
    main()
