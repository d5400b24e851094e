"""Holds long polls: `waiting_client.py ENDPOINT TOPIC GROUP GROUPS POLLS_EACH SECONDS`.

Prints `waiting` when every poll has been sent, and renews polls that end, until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

import grpc
import grpc.aio

from cometmq.proto import paths, v2

CONNECTIONS = 20
SETTLE_S = 3.0


async def hold(channel: grpc.aio.Channel, request: bytes, seconds: float, number: int) -> None:
    """Poll repeatedly."""
    metadata = (("x-mq-client-id", f"waiting-{number}"), ("x-mq-language", "PYTHON"))
    receive = channel.unary_stream(paths.RECEIVE_MESSAGE)
    while True:
        async for _ in receive(request, timeout=seconds + 5, metadata=metadata):
            pass


async def main() -> None:
    """See the module's docstring."""
    endpoint, topic, group = sys.argv[1:4]
    groups, polls_each, seconds = int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.insecure_channel(endpoint, options=options) for _ in range(CONNECTIONS)]
    tasks = []
    for number in range(groups * polls_each):
        request = v2.ReceiveMessageRequest(batch_size=32)
        request.group.name = f"{group}-{number % groups}"
        request.message_queue.topic.name = topic
        request.filter_expression.type = v2.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = 30
        request.long_polling_timeout.FromMilliseconds(int(seconds * 1000))
        channel = channels[number % CONNECTIONS]
        work = hold(channel, request.SerializeToString(), seconds, number)
        tasks.append(asyncio.create_task(work))
        if number % 100 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(SETTLE_S)
    print("waiting", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main())
