"""Workload of a drill through raw stubs: senders and consumers that record every answer.

`python -m cometmq.drills.load --endpoints A;B --topic T --history FILE` sends until SIGTERM,
then resolves unknown outcomes within --resolve seconds, and ends. Every sender has its own message
group and sends one message at a time, so that its order must be kept. A message with an unknown
outcome is sent again with the same identity (at-least-once), as is a refused one (nothing was
written). Senders differ in the addresses they dial: all replicas, as official clients do, or one
of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import grpc

from ..proto import v2
from .history import History
from .wire import Wire, normal_message, receive_request

#: A send without an answer is repeated after it.
SEND_S = 3.0
PAD = bytes(range(97, 123)) * 4096
#: Nothing was written: another attempt is not a repeat.
REFUSED = (v2.HA_NOT_AVAILABLE, v2.TOO_MANY_REQUESTS, v2.TOPIC_NOT_FOUND, v2.FORBIDDEN)


class Sender:
    """A sender of one message group, one message at a time."""

    def __init__(self, options: argparse.Namespace, history: History, number: int) -> None:
        self._topic, self._history = options.topic, history
        self._group = f"{options.run}s{number}"
        self._pause_s, self._retry_s = options.pause, options.retry
        self._size = options.size
        self._number = number
        self._run = sum(ord(letter) << 8 * at for at, letter in enumerate(options.run[:4]))

    async def work(self, wire: Wire, stopping: asyncio.Event) -> None:
        """Send until `stopping`; the caller resolves open sends by a late cancellation."""
        seq = 0
        while not stopping.is_set():
            seq += 1
            await self._until_acknowledged(wire, seq)
            if self._pause_s:
                await asyncio.sleep(self._pause_s)

    async def _until_acknowledged(self, wire: Wire, seq: int) -> None:
        identity = f"{self._group}-{seq}"
        unique = f"01{self._run & 0xFFFFFFFF:012X}{self._number:04X}{0:08X}{seq:08X}"
        body = identity.encode() + b"|" + PAD[: self._size]
        message = normal_message(self._topic, unique, body)
        message.system_properties.message_type = v2.FIFO
        message.system_properties.message_group = self._group
        facts = {"group": self._group, "seq": seq, "broker": wire.endpoints}
        while True:
            self._history.write("invoke", identity, **facts)
            try:
                answer = await wire.send([message], SEND_S)
            except grpc.aio.AioRpcError as error:
                self._history.write("unknown", identity, why=error.code().name)
            else:
                code = answer.status.code
                if code == v2.OK:
                    offset = answer.entries[0].offset
                    self._history.write("ok", identity, offset=offset, **facts)
                    return
                event = "fail" if code in REFUSED else "unknown"
                self._history.write(event, identity, why=f"{code} {answer.status.message}"[:200])
            await asyncio.sleep(self._retry_s)


class Reader:
    """A consumer that receives and acknowledges."""

    def __init__(self, options: argparse.Namespace, history: History) -> None:
        self._topic, self._group, self._history = options.topic, options.group, history
        self._retry_s = options.retry

    async def work(self, wire: Wire, stopping: asyncio.Event) -> None:
        """Receive until `stopping`."""
        while not stopping.is_set():
            try:
                request = receive_request(self._topic, self._group, await_s=0.5)
                request.invisible_duration.seconds = 10
                _, messages = await wire.receive(request, 5.0)
            except grpc.aio.AioRpcError as error:
                self._history.write("silent", "", why=error.code().name)
                await asyncio.sleep(self._retry_s)
                continue
            for message in messages:
                self._history.write("got", message.body.split(b"|")[0].decode())
            if not messages:
                await asyncio.sleep(self._retry_s)
                continue
            with suppress(grpc.aio.AioRpcError):
                answer = await wire.ack(self._topic, self._group, messages, 5.0)
                if answer.status.code == v2.OK:
                    for message in messages:
                        self._history.write("done", message.body.split(b"|")[0].decode())


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--run", default="a", help="tells the identities of several loads apart")
    parser.add_argument("--senders", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.0, help="of a sender between messages")
    parser.add_argument("--retry", type=float, default=0.03, help="pause after a failed call")
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--readers", type=int, default=0)
    parser.add_argument("--group", default="")
    parser.add_argument("--resolve", type=float, default=20.0)
    return parser.parse_args()


async def main() -> None:
    """Run until SIGTERM."""
    options = parse()
    history = History(options.history, f"raw-{options.run}")
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    brokers = options.endpoints.split(";")
    aims = [options.endpoints, options.endpoints, *brokers]
    wires = [Wire(aim, f"drill-{options.run}@{at}") for at, aim in enumerate(aims)]
    senders = [
        asyncio.create_task(
            Sender(options, history, number).work(wires[number % len(wires)], stopping)
        )
        for number in range(options.senders)
    ]
    readers = [
        asyncio.create_task(Reader(options, history).work(wires[0], stopping))
        for _ in range(options.readers)
    ]
    parent = os.getppid()
    while not stopping.is_set() and os.getppid() == parent:
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), 1.0)
    stopping.set()
    _, late = await asyncio.wait([*senders, *readers], timeout=options.resolve)
    for task in late:
        task.cancel()
    finished = await asyncio.gather(*senders, *readers, return_exceptions=True)
    for wire in wires:
        await wire.close()
    for outcome in finished:
        if isinstance(outcome, Exception):
            raise outcome


if __name__ == "__main__":
    asyncio.run(main())
