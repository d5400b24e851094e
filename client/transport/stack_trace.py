"""The stack of this process for a tool: its threads, and the tasks of the running event loop."""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator

#: Characters of an answer, and frames of a thread or task.
STACK_MAX, _FRAMES_MAX = 128 << 10, 50
_TASKS_MAX = 200


def stack_trace() -> str:
    """Return the stacks of all threads and of the tasks of the running loop, cut to STACK_MAX."""
    return "\n".join([*_threads(), *_tasks()])[:STACK_MAX]


def _threads() -> Iterator[str]:
    names = {one.ident: one.name for one in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        lines = traceback.format_list(traceback.extract_stack(frame)[-_FRAMES_MAX:])
        yield f"Thread {names.get(ident, 'unknown')} ({ident})\n{''.join(lines)}"


def _tasks() -> Iterator[str]:
    for task in list(asyncio.all_tasks())[:_TASKS_MAX]:
        frames = [(one, one.f_lineno) for one in task.get_stack(limit=_FRAMES_MAX)]
        lines = traceback.StackSummary.extract(iter(frames)).format()
        yield f"Task {task.get_name()}\n{''.join(lines)}"
