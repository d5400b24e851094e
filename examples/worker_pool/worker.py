"""Workers for jobs that need a processor: one consumer and a pool of processes.

Start as many of these as you like, on any machine: they share the jobs of the group. A job whose
worker dies is given to another one after its invisible time.
"""

import asyncio
import json
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

import cometmq

ENDPOINTS = os.environ.get("COMETMQ_ENDPOINT", "127.0.0.1:8081")
PROCESSES = os.cpu_count() or 1


def largest_factor(number: int) -> int:
    """Return the largest prime factor: work for a processor."""
    factor = 2
    while factor * factor <= number:
        if number % factor == 0:
            number //= factor
        else:
            factor += 1
    return number


async def main() -> None:
    # A client does not survive a fork: the processes are spawned.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)

        async with cometmq.Producer(ENDPOINTS, topics=["results"]) as producer:

            @cometmq.consumer(ENDPOINTS, group="workers", topics="jobs", concurrency=2 * PROCESSES)
            async def work(message: cometmq.Message) -> None:
                number = int(message.body)
                factor = await loop.run_in_executor(pool, largest_factor, number)
                body = json.dumps({"number": number, "factor": factor}).encode()
                await producer.send("results", body, keys=list(message.keys))

            async with work.open():
                await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
