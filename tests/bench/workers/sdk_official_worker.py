"""The official Python client with the load of `sdk_worker.py single`; imports nothing of ours."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time

BODY = b"x" * 1024
IN_FLIGHT = 64


def main() -> None:
    """Keep 64 asynchronous sends in flight for some seconds; print the figures."""
    endpoint, topic, _group, _what, seconds = sys.argv[1:]
    os.environ["HOME"] = tempfile.mkdtemp()  # the client writes its log there
    from rocketmq import ClientConfiguration, Credentials, Message, Producer

    producer = Producer(ClientConfiguration(endpoint, Credentials()), [topic])
    producer.startup()
    room, sent = threading.Semaphore(IN_FLIGHT), [0]

    def done(future: object) -> None:
        sent[0] += future.exception() is None  # type: ignore[attr-defined]
        room.release()

    begin, cpu = time.monotonic(), time.process_time()
    end = begin + float(seconds)
    while time.monotonic() < end:
        room.acquire()
        message = Message()
        message.topic, message.body = topic, BODY
        producer.send_async(message).add_done_callback(done)
    for _ in range(IN_FLIGHT):
        room.acquire()
    took, used = time.monotonic() - begin, time.process_time() - cpu
    print(json.dumps({"messages": sent[0], "seconds": took, "cpu_s": used}), flush=True)
    os._exit(0)  # the client's threads are not daemons


if __name__ == "__main__":
    main()
