"""Fuzz target of rights: what the guard and the handlers understand of requests (both protocols).

Each input is the start of a random sequence, which makes some requests of each protocol
(`tests/auth/comparison.py`): `--inputs 100000` are a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from cometmq.tests.auth.comparison import world
from cometmq.tests.fuzz.services import serve
from cometmq.tests.fuzz.target import Check, target

#: Requests of each protocol for one input.
EACH = 5


@target
def rights(directory: Path) -> Iterator[Check]:
    """Requests of users without the rights on what they name."""

    async def open_world(stack: AsyncExitStack, path: Path) -> Any:
        made = await stack.enter_async_context(world(path))

        async def handle(data: bytes) -> None:
            chance = Random(data)
            for _ in range(EACH):
                await made.classic(chance)
                await made.call(chance)

        return handle

    return serve(open_world, directory)
