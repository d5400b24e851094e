"""Records the turns of the event loop that take long: PYTHONPATH with this folder imports it.

Python imports a module of this name at the start of a process. If COMETMQ_TURNS names a file, each
turn of an asyncio loop of at least LEAST_MS of processor time is appended to it, one JSON object a
line: `cpu_ms`, `wall_ms`, and the callback that took the most. The process runs on asyncio's own
loop, because turns of uvloop are not visible from outside. Nothing of the product is involved, so
that revisions can be compared.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.events
import json
import os
import sys
import time
from typing import Any

LEAST_MS = 5.0


def _install(path: str) -> None:
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # an import of it fails
    loop_class: Any = asyncio.base_events.BaseEventLoop
    handle_class: Any = asyncio.events.Handle
    run_turn, run_callback = loop_class._run_once, handle_class._run
    longest: list[Any] = [0.0, None, None]  # of this turn; its first callback begins the time
    began_s = 0.0

    def callback(handle: Any) -> None:
        nonlocal began_s
        before_s = time.thread_time()
        if longest[1] is None:
            began_s = time.perf_counter()
        run_callback(handle)
        taken_s = time.thread_time() - before_s
        if longest[1] is None or taken_s > longest[0]:
            longest[:] = [taken_s, True, handle]

    def turn(loop: Any) -> None:
        longest[:] = [0.0, None, None]
        before_s = time.thread_time()
        run_turn(loop)
        cpu_ms = 1000 * (time.thread_time() - before_s)
        if cpu_ms < LEAST_MS:
            return
        line = {
            "cpu_ms": round(cpu_ms, 1),
            "wall_ms": round(1000 * (time.perf_counter() - began_s), 1),
            "callback_ms": round(1000 * longest[0], 1),
            "callback": repr(longest[2])[:300],
        }
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")

    loop_class._run_once, handle_class._run = turn, callback


if _path := os.environ.get("COMETMQ_TURNS"):
    _install(_path)
