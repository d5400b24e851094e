"""Workload of a drill through the unmodified official Python client, in threads.

`python official_load.py --endpoints A;B --topic T --history FILE` runs until SIGTERM. The client
retries inside one call; an exception it finally raises is recorded as `unknown`, and the message
is sent again with the same identity. Imports the installed `rocketmq` package and, of the project,
only the history, because two copies of the protobuf modules cannot share a process.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

from .history import History

RETRY_S = 0.05
RESOLVE_S = 20.0


class Load:
    """Threads that share one producer, and one consumer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._history = History(options.history, f"official-{options.run}")
        self._stop = threading.Event()
        self._configuration = ClientConfiguration(options.endpoints, Credentials())
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Run until SIGTERM."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        if self._options.senders:  # in a thread: the start may hang, and SIGTERM must end it
            self._start(self._start_producer)
        if self._options.group:
            threading.Thread(target=self._consume, daemon=True).start()
        parent = os.getppid()
        while not self._stop.wait(0.2) and os.getppid() == parent:
            pass  # until SIGTERM, or the end of the parent
        self._stop.set()
        end = time.monotonic() + RESOLVE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._history.close()
        os._exit(0)  # the client's threads are not daemons

    def _start_producer(self) -> None:
        producer = Producer(self._configuration, [self._options.topic])
        self._patiently(producer.startup)
        for number in range(self._options.senders):
            self._start(self._send_all, producer, number)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _patiently(self, start: Any) -> None:
        """Retry the start: the client gives up if the first route query fails."""
        while not self._stop.is_set():
            try:
                start()
                return
            except Exception as error:
                print(f"start: {error}", file=sys.stderr, flush=True)
                time.sleep(RETRY_S)

    def _send_all(self, producer: Any, number: int) -> None:
        group, seq = f"{self._options.run}o{number}", 0
        while not self._stop.is_set():
            seq += 1
            self._send(producer, group, seq)
            if self._options.pause:
                time.sleep(self._options.pause)

    def _send(self, producer: Any, group: str, seq: int) -> None:
        identity = f"{group}-{seq}"
        message = Message()
        message.topic = self._options.topic
        message.body = f"{identity}|official".encode()
        message.message_group = group
        while True:
            self._history.write("invoke", identity, group=group, seq=seq)
            try:
                receipt = producer.send(message)
            except Exception as error:  # any exception leaves the outcome unknown
                why = f"{type(error).__name__} {error}"[:200]
                self._history.write("unknown", identity, why=why)
                time.sleep(RETRY_S)
            else:
                self._history.write(
                    "ok", identity, group=group, seq=seq, offset=getattr(receipt, "offset", None)
                )
                return

    def _consume(self) -> None:
        wanted = {self._options.topic: FilterExpression("*")}
        consumer = SimpleConsumer(self._configuration, self._options.group, wanted, 2)
        self._patiently(consumer.startup)
        while not self._stop.is_set():
            try:
                for message in consumer.receive(32, 15) or []:
                    identity = bytes(message.body).split(b"|")[0].decode()
                    self._history.write("got", identity)
                    consumer.ack(message)
                    self._history.write("done", identity)
            except Exception as error:
                self._history.write("silent", "", why=f"{type(error).__name__} {error}"[:200])
                time.sleep(RETRY_S)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--run", default="a")
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="of a sender between messages")
    parser.add_argument("--group", default="")
    Load(parser.parse_args()).run()


if __name__ == "__main__":
    main()
