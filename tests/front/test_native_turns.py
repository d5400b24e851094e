"""The native door delivers requests in batches; slow ones are spread over turns of the loop."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from cometmq.front.service import Method
from cometmq.proto.native import is_available
from cometmq.tests.front.conftest import PREFIX

CALLS = 8


@pytest.mark.parametrize(
    "door_name",
    [
        pytest.param(
            "native",
            marks=pytest.mark.skipif(
                not is_available(),
                reason="the native door is not installed",
            ),
        )
    ],
)
async def test_slow_requests_of_one_batch_leave_the_loop_to_others_in_between(bench: Any) -> None:
    loop = asyncio.get_running_loop()
    turn = 0
    turns: list[int] = []
    ended = False

    def tick() -> None:
        nonlocal turn
        turn += 1
        if not ended:
            loop.call_soon(tick)

    def slow(_request: bytes, _ctx: Any) -> bytes:
        time.sleep(0.03)
        turns.append(turn)
        return str(len(turns)).encode()

    def wrap(table: dict[str, Method]) -> dict[str, Method]:
        return {**table, PREFIX + "Echo": replace(table[PREFIX + "Echo"], handler=slow)}

    async with await bench(wrap) as b:
        tick()
        answers = await asyncio.gather(*[b.client.unary("Echo") for _ in range(CALLS)])
        ended = True
    assert sorted(int(answer) for answer in answers) == list(range(1, CALLS + 1))
    assert len(set(turns)) == CALLS
