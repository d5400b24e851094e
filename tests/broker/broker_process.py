"""A broker in its own process, to be killed: `python -m cometmq.tests.broker.broker_process ORDER`.

ORDER is JSON: `directory` and the broker's settings. The process prints its client address and runs
until its standard input is closed. `BrokerProcess` starts and controls it.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any, Self

from cometmq.front.config import DoorConfig
from cometmq.front.metrics import process
from cometmq.tests.broker.live import running, settings
from cometmq.tests.harness.wire import Wire

START_S = 60.0


class BrokerProcess:
    """Started in the `async with`; killed or stopped at its end at the latest."""

    def __init__(self, directory: Path, **broker: Any) -> None:
        """`front_door`, `descriptors` (RLIMIT_NOFILE) and `version` (in its metrics, instead of
        the installed one) are settings of the process."""
        self._order = json.dumps({"directory": str(directory), **broker})
        self.address = self.ha = self.metrics = ""

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cometmq.tests.broker.broker_process",
            self._order,
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), START_S)
        self.address, _, rest = line.decode().strip().partition(" ")
        self.ha, _, self.metrics = rest.partition(" ")
        assert self.address, "the broker did not start"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert await self.process.wait() == 0

    async def kill(self) -> None:
        """Kill the process as a crash would; its page cache stays."""
        self.process.kill()
        await self.process.wait()

    def client(self, client_id: str = "wire@1") -> Wire:
        """Return a connection to it."""
        return Wire(self.address, client_id)


async def main() -> None:
    """Run the process."""
    order = json.loads(sys.argv[1])
    directory = Path(order.pop("directory"))
    door = DoorConfig(front_door=order.pop("front_door", "grpcio"))
    descriptors = order.pop("descriptors", None)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    version = order.pop("version", None)
    if version is not None:
        process.__version__ = version  # type: ignore[attr-defined]
    async with running(settings(directory, **order), door=door) as live:
        print(live.bound.client, live.bound.ha, live.bound.metrics, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
