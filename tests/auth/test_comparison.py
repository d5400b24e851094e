"""The guard and the handlers understand every request in the same way (`comparison.py`).

`scripts/fuzz rights` compares more of them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from cometmq.tests.auth.comparison import world

_EACH = 1_000


async def test_no_spelling_of_a_request_reaches_what_its_user_has_no_right_on(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as made:
        for number in range(_EACH):
            await made.classic(Random(number))
            await made.call(Random(number))
