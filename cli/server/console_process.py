"""The web console that a broker or a proxy runs with `console=true`: a process of its own.

A process, so that pages cost the server's event loop nothing, and a failure of the console leaves
the server alone. It asks the server that started it, ends with it (its standard input is a pipe of
the server), and starts again after a pause if it ends by itself. It gets the environment of the
server: with authentication it signs its calls with COMETMQ_ACCESS_KEY and COMETMQ_SECRET_KEY.
"""

import asyncio
import logging
import os
import sys

from .console_config import ConsoleConfig

logger = logging.getLogger(__name__)

#: Pause before a console that has ended starts again: its port may be another program's.
_PAUSE_S = 10.0
# A console ends within its own limit for open streams.
_STOP_S = 5.0


class ConsoleProcess:
    """The console of one server; nothing without `console=true`."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._config = config
        self._child: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, endpoint: str) -> None:
        """Start the console of the server at HOST:PORT, and again whenever it ends."""
        if self._config.console:
            self._task = asyncio.get_running_loop().create_task(self._run(endpoint))

    async def stop(self) -> None:
        """End the console."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        child = self._child
        if child is None or child.returncode is not None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), _STOP_S)
        except TimeoutError:
            child.kill()
            await child.wait()

    async def _run(self, endpoint: str) -> None:
        while True:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command(endpoint), stdin=asyncio.subprocess.PIPE, env=_environment()
            )
            logger.info("console.started pid=%d", child.pid)
            code = await child.wait()
            logger.error("console.ended code=%d: see its message above", code)
            await asyncio.sleep(_PAUSE_S)

    def _command(self, endpoint: str) -> list[str]:
        changes = ["--allow-changes"] if self._config.console_allow_changes else []
        return [
            *(sys.executable, "-P", "-m", "cometmq.cli.main", "console", "--supervised"),
            *("--port", str(self._config.console_port), "--endpoint", endpoint),
            *changes,
            *(["--login"] if self._config.console_login else []),
        ]


def _environment() -> dict[str, str]:
    """Return the environment without the server's settings, which the command also reads."""
    return {name: text for name, text in os.environ.items() if name != "COMETMQ_CONTEXT"}
