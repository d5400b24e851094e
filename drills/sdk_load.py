"""Workload of a drill through the project's Python SDK: one producer, a few concurrent senders.

`python -m cometmq.drills.sdk_load --endpoints A;B --topic T --history FILE` sends until
SIGTERM. The SDK retries inside one call; an error it finally raises is recorded as `unknown`, and
the message is sent again with the same identity.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path

from ..client.errors import CometError
from ..client.producer import Producer
from .history import History

RETRY_S = 0.05
RESOLVE_S = 20.0


async def send_all(
    producer: Producer,
    options: argparse.Namespace,
    history: History,
    group: str,
    stopping: asyncio.Event,
) -> None:
    """Send one message after the other until `stopping`."""
    topic = options.topic
    seq = 0
    while not stopping.is_set():
        seq += 1
        identity = f"{group}-{seq}"
        facts = {"group": group, "seq": seq}
        while True:
            history.write("invoke", identity, **facts)
            try:
                receipt = await producer.send(topic, f"{identity}|sdk".encode(), group=group)
            except CometError as error:
                history.write("unknown", identity, why=f"{type(error).__name__} {error}"[:200])
                await asyncio.sleep(RETRY_S)
            else:
                history.write("ok", identity, offset=receipt.offset, **facts)
                break
        await asyncio.sleep(options.pause)


async def main() -> None:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--run", default="a")
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="of a sender between messages")
    options = parser.parse_args()
    history = History(options.history, f"sdk-{options.run}")
    stopping, parent = asyncio.Event(), os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with Producer(options.endpoints) as producer:
        tasks = [
            asyncio.create_task(
                send_all(producer, options, history, f"{options.run}k{number}", stopping)
            )
            for number in range(options.senders)
        ]
        while not stopping.is_set() and os.getppid() == parent:
            try:
                await asyncio.wait_for(stopping.wait(), 1.0)
            except TimeoutError:
                continue
        stopping.set()
        _, late = await asyncio.wait(tasks, timeout=RESOLVE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    history.close()


if __name__ == "__main__":
    asyncio.run(main())
