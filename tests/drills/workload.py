"""Workload of the kill -9 drill: senders that retry without limit, and a journal.

`python -m cometmq.tests.drills.workload --endpoints A;B --owner A --topic T --journal FILE` sends
until SIGTERM, then resolves every unknown outcome, and ends. Half of the senders use only the
owner and see its death as an error; half use both alternatives, as official clients do.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

import grpc

from cometmq.proto import v2

from ..harness.journal import Journal
from ..harness.wire import Wire, normal_message

BODY = bytes(range(256)) * 2  # 512 bytes: many records per segment, and every byte value
RETRY_S = 0.05
SEND_S = 3.0  # a send without an answer is repeated after it
TAGS = ("red", "green", "blue", "")


class Workload:
    """Senders over a few connections."""

    def __init__(self, topic: str, journal: Journal, run: int) -> None:
        self._topic, self._journal, self._run = topic, journal, run
        self.stopping = False

    async def send_all(self, wire: Wire, sender: int) -> None:
        """Run one sender: a message at a time, each until it is acknowledged."""
        number = 0
        while not self.stopping:
            number += 1
            identity = f"01{self._run:012X}{sender:04X}{0:08X}{number:08X}"
            await self._send_until_acknowledged(wire, identity, number)

    async def _send_until_acknowledged(self, wire: Wire, identity: str, number: int) -> None:
        tag = TAGS[number % len(TAGS)]
        message = normal_message(self._topic, identity, BODY[: 64 + number % 448], tag, identity)
        while True:
            self._journal.attempt(identity)
            try:
                answer = await wire.send([message], SEND_S)
            except grpc.aio.AioRpcError as error:
                self._journal.unknown(identity, error.code().name)
            else:
                if answer.status.code == v2.OK:
                    self._journal.acknowledged(identity, answer.entries[0].offset)
                    return
                self._journal.unknown(identity, str(answer.status.code))
            await asyncio.sleep(RETRY_S)


async def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--senders", type=int, default=32)
    parser.add_argument("--run", type=int, default=1)
    options = parser.parse_args()
    workload = Workload(options.topic, Journal(options.journal), options.run)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, workload, "stopping", True)
    async with (
        Wire(options.owner, "drill-owner@1") as owner,
        Wire(options.endpoints, "drill-both@1") as both,
    ):
        await asyncio.gather(
            *(
                workload.send_all(owner if sender % 2 else both, sender)
                for sender in range(options.senders)
            )
        )


if __name__ == "__main__":
    asyncio.run(main())
