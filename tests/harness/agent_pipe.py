"""Agent side of `official.py`: a process that executes one action per line of JSON.

Returns one answer per line, in order; an exception of an action is the answer's error. Output of
the client goes to standard error. The process ends when its input does, whatever threads it has.
Imports nothing, so that every agent can use it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def serve(agent: Any) -> None:
    """Call the agent's methods by name until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of the client goes to standard error
    for line in sys.stdin:
        request = json.loads(line)
        action = request.pop("do")
        try:
            answer = {"ok": getattr(agent, action)(**request)}
        except Exception as error:  # every exception is returned to the test
            code = getattr(error, "code", None)
            answer = {
                "error": type(error).__name__,
                "code": code if isinstance(code, int) else None,
                "message": str(error),
            }
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)  # the client's threads are not daemons
