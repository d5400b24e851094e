"""One replica as a process of its own, to be killed: `python -m cometmq.tests.ha.node_process
JSON`.

Prints JSON lines: {"port": n, "end": n} when it listens, {"confirm": n, "end": n} while it runs. A
leader appends random messages until its standard input ends; then, like a follower, it waits to be
killed.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from cometmq.tests.ha.live import Live


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def run(order: dict[str, Any]) -> None:
    settings = order.get("settings", {})
    live = Live(Path(order["directory"]), broker_id=order["broker_id"], **settings)
    await live.start()
    say(port=live.replication.port, end=live.log.log_end)
    chance = random.Random(time.time_ns())
    loop = asyncio.get_running_loop()
    stop = loop.run_in_executor(None, sys.stdin.read)
    while not stop.done():
        if not order["broker_id"]:
            sizes = [chance.randrange(1, order["size_max"]) for _ in range(chance.randrange(1, 20))]
            live.append(*(chance.randbytes(size) for size in sizes))
        say(confirm=live.replication.confirm, end=live.log.log_end)
        await asyncio.sleep(0.005)
    await live.stop()
    say(end=live.log.log_end)


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
