"""Submit jobs to the workers, and print the results: `python submit.py 91 221 10403`."""

import asyncio
import json
import os
import sys
import uuid

import cometmq

ENDPOINTS = os.environ.get("COMETMQ_ENDPOINT", "127.0.0.1:8081")


async def main(numbers: list[int]) -> None:
    request = uuid.uuid4().hex
    async with cometmq.Producer(ENDPOINTS, topics=["jobs"]) as producer:
        for number in numbers:
            await producer.send("jobs", str(number).encode(), keys=[request])
    # Each submitter reads all results without a group of its own, and takes those of its request.
    async with cometmq.PullConsumer(ENDPOINTS, group="submitters", topics="results") as results:
        await results.seek("results", cometmq.BEGINNING)
        missing = set(numbers)
        while missing:
            message = await results.poll(wait=5)
            if message is not None and request in message.keys:
                result = json.loads(message.body)
                missing.discard(result["number"])
                print(f"{result['number']}: {result['factor']}", flush=True)


if __name__ == "__main__":
    asyncio.run(main([int(word) for word in sys.argv[1:]]))
