"""One client process of the SDK benchmark: `sdk_worker.py ENDPOINT TOPIC GROUP WHAT SECONDS`."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import cometmq

BODY = b"x" * 1024
IN_FLIGHT = 64
ROUND = 32 * 16


async def batched(endpoint: str, topic: str, _group: str, seconds: float) -> int:
    """Run rounds of `send_many`, two in flight."""
    async with cometmq.Producer(endpoint) as producer:
        bodies = [BODY] * ROUND
        end = time.monotonic() + seconds

        async def rounds() -> int:
            sent = 0
            while time.monotonic() < end:
                results = await producer.send_many(topic, bodies)
                sent += sum(isinstance(result, cometmq.Receipt) for result in results)
            return sent

        return sum(await asyncio.gather(rounds(), rounds()))


async def single(endpoint: str, topic: str, _group: str, seconds: float) -> int:
    """Run 64 senders with one message in flight each."""
    async with cometmq.Producer(endpoint) as producer:
        end = time.monotonic() + seconds

        async def sender() -> int:
            sent = 0
            while time.monotonic() < end:
                await producer.send(topic, BODY)
                sent += 1
            return sent

        return sum(await asyncio.gather(*(sender() for _ in range(IN_FLIGHT))))


async def receive(endpoint: str, topic: str, group: str, seconds: float) -> int:
    """Run eight receivers that acknowledge each batch together."""
    async with cometmq.SimpleConsumer(endpoint, group=group, topics=topic) as consumer:
        end = time.monotonic() + seconds

        async def receiver() -> int:
            got = 0
            while time.monotonic() < end:
                messages = await consumer.receive(wait=1)
                await consumer.ack_all(messages)
                got += len(messages)
            return got

        return sum(await asyncio.gather(*(receiver() for _ in range(8))))


def main() -> None:
    """Run one load and print its figures."""
    endpoint, topic, group, what, seconds = sys.argv[1:]
    work = {"batched": batched, "single": single, "receive": receive}[what]
    begin, cpu = time.monotonic(), time.process_time()
    messages = asyncio.run(work(endpoint, topic, group, float(seconds)))
    took, used = time.monotonic() - begin, time.process_time() - cpu
    print(json.dumps({"messages": messages, "seconds": took, "cpu_s": used}))


if __name__ == "__main__":
    main()
