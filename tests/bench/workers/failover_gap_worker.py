"""One Python client of `failover_gap.py`: `ENDPOINT TOPIC SECONDS official|sdk`.

Imports only that client.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any


def official(endpoint: str, topic: str) -> Callable[[bytes], str]:
    """Send with the official client and its default settings."""
    os.environ["HOME"] = tempfile.mkdtemp()  # the client writes its log there
    from rocketmq import ClientConfiguration, Credentials, Message, Producer

    producer = Producer(ClientConfiguration(endpoint, Credentials()), [topic])
    producer.startup()

    def send(body: bytes) -> str:
        message = Message()
        message.topic, message.body = topic, body
        return str(producer.send(message).message_id)

    return send


def sdk(endpoint: str, topic: str) -> Callable[[bytes], str]:
    """Send with the SDK."""
    import cometmq

    producer = cometmq.sync.Producer(endpoint)
    producer.__enter__()
    return lambda body: str(producer.send(topic, body).message_id)


def main() -> None:
    """Send one message after another; print the sends, the errors and the longest gap."""
    endpoint, topic, seconds, which = sys.argv[1:]
    send = {"official": official, "sdk": sdk}[which](endpoint, topic)
    sent: list[str] = []
    errors: list[str] = []
    begin = last = time.monotonic()
    gap, number = 0.0, 0
    while time.monotonic() - begin < float(seconds):
        try:
            sent.append(send(b"%d" % number))
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
        except Exception as error:  # any exception is what the user sees
            errors.append(f"{type(error).__name__}: {error}"[:200])
        number += 1
    gap = max(gap, time.monotonic() - last)  # no further OK
    answer: dict[str, Any] = {"sent": sent, "errors": errors, "gap_ms": int(gap * 1000)}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # the official client's threads are not daemons


if __name__ == "__main__":
    main()
