"""The well-behaved neighbour: `python -m cometmq.tests.hostile.neighbour ADDRESS TOPIC GROUP`.

Runs in its own process, so that the load of an attacking client does not delay it. Sends a message,
receives one and acknowledges it, `RATE` times a second at most. Each line on standard input returns
one line of JSON: the figures since the line before. `Neighbour` starts and controls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

import grpc

from cometmq.operations.credentials import Credentials
from cometmq.proto import v2
from cometmq.tests.harness.wire import Wire, normal_message, receive_request

#: Cycles a second; below what one connection reaches, so that the rate shows stalls and not the
#: speed of the machine.
RATE = 40
CALL_S = 30.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The neighbour's calls in one period."""

    seconds: float
    cycles: int
    #: The longest call, one that is still open included.
    longest_ms: float
    failures: list[str]

    def joined(self, next_: Figures) -> Figures:
        """Return the figures of this period and the one after it."""
        return Figures(
            self.seconds + next_.seconds,
            self.cycles + next_.cycles,
            max(self.longest_ms, next_.longest_ms),
            self.failures + next_.failures,
        )

    @property
    def rate(self) -> float:
        """Cycles a second."""
        return self.cycles / self.seconds


class Neighbour:
    """The process, from outside."""

    def __init__(self, address: str, topic: str, group: str, *keys: str) -> None:
        """`keys`: name and secret key of the user that signs."""
        words = (address, topic, group, *keys)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cometmq.tests.hostile.neighbour", *words],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def figures(self) -> Figures:
        """Return the figures since the call before."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Figures(**json.loads(self._process.stdout.readline()))

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(CALL_S)


class _Counting:
    """Counts the calls of a period."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._open_since: float | None = None
        self.cycles = 0
        self._longest_s = 0.0
        self.failures: list[str] = []

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Time one call."""
        self._open_since = time.monotonic()
        try:
            yield
        finally:
            self._longest_s = max(self._longest_s, time.monotonic() - self._open_since)
            self._open_since = None

    def take(self) -> Figures:
        """Return the figures and begin another period."""
        now = time.monotonic()
        still_open_s = now - self._open_since if self._open_since is not None else 0.0
        found = Figures(
            now - self._began,
            self.cycles,
            1000 * max(self._longest_s, still_open_s),
            self.failures,
        )
        self._began, self.cycles, self._longest_s, self.failures = now, 0, 0.0, []
        return found


async def _cycle(wire: Wire, counting: _Counting, topic: str, group: str, number: int) -> None:
    with counting.call():
        sent = await wire.send([normal_message(topic, f"N{number}", b"neighbour")], CALL_S)
    _check(sent.status)
    with counting.call():
        code, found = await wire.receive(receive_request(topic, group, batch=1), CALL_S)
    _check(v2.Status(code=v2.Code.ValueType(code)))
    with counting.call():
        acked = await wire.ack(topic, group, found)
    _check(acked.status)
    counting.cycles += 1


def _check(status: v2.Status) -> None:
    if status.code != v2.OK:
        raise ConnectionError(f"{v2.Code.Name(status.code)} {status.message}")


async def _work(
    counting: _Counting, address: str, topic: str, group: str, user: Credentials | None
) -> None:
    number = 0
    async with Wire(address, "neighbour@1") as wire:
        own = wire.metadata
        while True:
            if user is not None:
                now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
                wire.metadata = (*own, *user.sign(now))
            next_s = time.monotonic() + 1 / RATE
            number += 1
            try:
                await _cycle(wire, counting, topic, group, number)
            except grpc.aio.AioRpcError as error:
                counting.failures.append(f"{error.code().name}: {error.details()}")
            except ConnectionError as error:
                counting.failures.append(str(error))
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))


async def main() -> None:
    """Run the process."""
    counting = _Counting()
    address, topic, group, *keys = sys.argv[1:]
    user = Credentials(*keys) if keys else None
    working = asyncio.ensure_future(_work(counting, address, topic, group, user))
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(asdict(counting.take())), flush=True)
    working.cancel()


if __name__ == "__main__":
    asyncio.run(main())
