"""A producer or a consumer with the official client as a program of its own, and its events.

The program is `scripts/quickstart_client.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

CLIENT = Path(__file__).parents[2] / "scripts" / "quickstart_client.py"


class OfficialProgram:
    """A running program, ended by the end of a `with` block; its events are kept."""

    def __init__(self, home: Path, *words: str, inside: Sequence[str] = ()) -> None:
        """`inside` is a command that runs the program, for instance in a network namespace."""
        home.mkdir()
        self._errors = (home / "stderr.txt").open("wb")
        self._process = subprocess.Popen(
            [*inside, sys.executable, str(CLIENT), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "HOME": str(home), "GRPC_VERBOSITY": "NONE"},
            cwd=home,
        )
        self.events: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def seen(self, event: str) -> set[int]:
        """The identities of an event."""
        return {one[event] for one in list(self.events) if event in one}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
