"""The other end of `official.py`: a process that does one thing for each line of JSON.

Promises: an answer for every line, in order; whatever an action raises is the answer's error; what a
client prints goes to standard error; the process ends at once when its input does, whatever threads it
has. It imports nothing, so that every kind of agent may use it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def serve(agent: Any) -> None:
    """Call the agent's methods by name until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the client prints goes to standard error
    for line in sys.stdin:
        request = json.loads(line)
        action = request.pop("do")
        try:
            answer = {"ok": getattr(agent, action)(**request)}
        except Exception as error:  # the whole point: whatever the client raised goes to the test
            code = getattr(error, "code", None)
            answer = {
                "error": type(error).__name__,
                "code": code if isinstance(code, int) else None,
                "message": str(error),
            }
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)  # the client's threads are not daemons
