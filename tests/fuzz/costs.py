"""Fuzz target of costs: the processor time and the memory of requests that are made large.

Each input is the start of a random sequence, which makes one request of each protocol
(`costly.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from cometmq.tests.auth.comparison import world
from cometmq.tests.fuzz.costly import GRPC_SIZES, Costs
from cometmq.tests.fuzz.services import serve
from cometmq.tests.fuzz.target import Check, target


@target
def costs(directory: Path) -> Iterator[Check]:
    """Large requests of a user of type Super, and of one with a few rights."""

    async def open_world(stack: AsyncExitStack, path: Path) -> Any:
        made = Costs(await stack.enter_async_context(world(path)))
        for code in made.codes:
            await made.learn(code)
        changes = {code: list(made.changes(code)) for code in made.codes}

        async def handle(data: bytes) -> None:
            chance = Random(data)
            user = chance.choice(("admin", "c"))
            code = chance.choice(made.codes)
            chosen = [chance.choice(changes[code]) for _ in range(chance.randrange(1, 4))]
            what = f"request {code} of {user}: {[name for name, _ in chosen]}"
            request = made.frame(code, user, *(each for _, each in chosen))
            for cost in (await made.timed(what, request), await made.traced(what, request)):
                assert not cost.excess(), cost.excess()
            at = chance.choice(made.paths)
            name, raw = chance.choice(list(made.requests(at, chance.choice(GRPC_SIZES))))
            what, request = f"{at} of {user}: {name}", made.call(at, raw, user)
            for cost in (await made.timed(what, request), await made.traced(what, request)):
                assert not cost.excess(), cost.excess()

        return handle

    return serve(open_world, directory)
