"""The quickstart's two programs of the official Python client: one that sends, one that reads.

Each runs in a process of its own and prints one line of JSON per event; `scripts/quickstart` counts
them. Nothing of this project is imported: this is what a user's program looks like.

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
RETRY_S = 0.2  # between two tries of a send whose outcome is unknown
BATCH, INVISIBLE_S, AWAIT_S = 32, 20, 5

_printing = threading.Lock()
_out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the client prints goes to standard error


def tell(**event: Any) -> None:
    """One event, one line."""
    with _printing:
        _out.write(json.dumps(event) + "\n")


def send_until_acknowledged(producer: Producer, topic: str, identity: int) -> None:
    """Send one message; an exception means that its outcome is unknown, and it is sent again."""
    message = Message()
    message.topic, message.body = topic, f"message {identity}".encode()
    message.tag = "even" if identity % 2 == 0 else "odd"
    message.keys = str(identity)
    while True:
        try:
            receipt = producer.send(message)
        except Exception as error:  # any error: the send was not acknowledged
            tell(unknown=identity, why=type(error).__name__)
            time.sleep(RETRY_S)
        else:
            tell(acknowledged=identity, id=receipt.message_id)
            return


def run_producer(endpoints: str, topic: str, first: str, last: str) -> None:
    """Send every identity of the range."""
    producer = Producer(ClientConfiguration(endpoints, Credentials()), [topic])
    producer.startup()
    with ThreadPoolExecutor(SENDERS) as pool:
        for identity in range(int(first), int(last)):
            pool.submit(send_until_acknowledged, producer, topic, identity)
    tell(done=True)


def read(consumer: SimpleConsumer, stop: threading.Event) -> None:
    """Receive and acknowledge until told to stop; a failed call is tried again."""
    while not stop.is_set():
        try:
            messages = consumer.receive(BATCH, INVISIBLE_S) or []
        except Exception as error:
            tell(failed="receive", why=type(error).__name__)
            time.sleep(RETRY_S)
            continue
        for message in messages:
            tell(received=int(next(iter(message.keys))), id=message.message_id)
            try:
                consumer.ack(message)
            except Exception as error:  # it will be delivered again, which is counted
                tell(failed="ack", why=type(error).__name__)


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
    """Run the program that the command line names."""
    if sys.argv[1] == "producer":
        run_producer(*sys.argv[2:])
    else:
        run_consumer(*sys.argv[2:])
    os._exit(0)  # the client's threads are not daemons


if __name__ == "__main__":
    main()
