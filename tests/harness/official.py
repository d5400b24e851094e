"""The official Python client, or the SDK, in a separate process driven over pipes.

The client registers protobuf modules and log files that no other process should share, so it runs
with its own home directory. `official_agent.py` holds it unmodified and executes one action per
line of JSON; `sdk_agent.py` does the same with the SDK. `close` ends the process. An exception in
the client is raised here as `OfficialError` with its name and code.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

#: What Python runs. The SDK's agent is a module of this package, so that it can be forked
#: (`forked.py`); the official client's must not see the package's protobuf modules.
AGENT = (str(Path(__file__).with_name("official_agent.py")),)
SDK_AGENT = ("-m", "cometmq.tests.harness.sdk_agent")
CALL_S = 60.0
CLOSE_S = 10.0


class OfficialError(AssertionError):
    """An exception that the client raised."""

    def __init__(self, name: str, code: int | None, message: str) -> None:
        super().__init__(f"{name}({code}): {message}")
        self.name, self.code = name, code


class Official:
    """One process with any number of named clients."""

    def __init__(
        self,
        endpoints: str,
        home: Path,
        inside: tuple[str, ...] = (),
        agent: tuple[str, ...] = AGENT,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._errors = (home / "stderr.txt").open("ab")
        self._process = subprocess.Popen(
            [*inside, sys.executable, *agent, endpoints],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "HOME": str(home)},
            cwd=home,
        )
        self._home, self._rest = home, b""

    def call(self, action: str, **arguments: Any) -> Any:
        """Execute one action in the process; return its answer."""
        assert self._process.stdin is not None
        line = json.dumps({"do": action, **arguments}).encode() + b"\n"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        answer = json.loads(self._read_line(action))
        if "error" in answer:
            raise OfficialError(answer["error"], answer.get("code"), answer.get("message", ""))
        return answer["ok"]

    def _read_line(self, action: str) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], CALL_S)
            if not ready:
                raise AssertionError(f"the client did not answer {action} in {CALL_S:g} s")
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            if not data:
                raise AssertionError(f"the client's process ended:\n{self.errors()}")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def errors(self) -> str:
        """Return the process's standard error."""
        return (self._home / "stderr.txt").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
