"""The life of a server process: start, say so, serve until asked to stop, drain.

Whoever started the process may pass two ends of pipes, as `cometmq up` does:

    stdin        (--supervised) its first line is a JSON object of further flags, known only after
                 other processes have started (an ephemeral port of the nameserver); later lines are
                 news ({"exited": ...}); the end of file means that the supervisor is gone, and the
                 process stops
    --report-fd  takes JSON lines: {"bound": {...}} when it serves, or {"error": "a sentence"};
                 afterwards {"state": {...}} whenever what the banner shows has changed
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Protocol

from ..errors import CliError, Exit

logger = logging.getLogger(__name__)

STDIN = 0
# Ten files of 10 MiB: weeks of state changes, and never a full disk.
_LOG_FILE_BYTES = 10 << 20
_LOG_FILES = 9
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
# What the banner shows changes rarely; half a second is soon enough for eyes.
_STATE_PERIOD_S = 0.5
# Until it serves for a moment: the supervisor waits for a leader, and users wait for the supervisor.
_STATE_FIRST_PERIOD_S = 0.02
_STATE_FIRST_S = 5.0
_LIFELINE_CHUNK = 4096
# The line is written by our own supervisor: flags, not data.
_START_LINE_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Supervision:
    """How this process talks to whoever started it."""

    supervised: bool = False
    report_fd: int | None = None

    def late_flags(self) -> dict[str, str]:
        """Wait for the supervisor's first line; {} without a supervisor."""
        if not self.supervised:
            return {}
        line = b""
        while not line.endswith(b"\n") and len(line) < _START_LINE_BYTES_MAX:
            # One byte at a time: what follows the line is not ours to take.
            byte = os.read(STDIN, 1)
            if not byte:
                raise CliError("The supervisor has gone before this process could start.")
            line += byte
        flags: dict[str, str] = json.loads(line)
        return flags

    def report(self, kind: str, content: object) -> None:
        """One line to the supervisor; one that is gone needs none."""
        if self.report_fd is None:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self.report_fd, json.dumps({kind: content}).encode() + b"\n")


class Server(Protocol):
    """What is run: a nameserver, a broker, or both."""

    async def start(self) -> Mapping[str, Any]:
        """Open for requests; returns what it bound."""

    async def stop(self, grace_s: float) -> None:
        """Drain within the grace time, and close."""

    def state(self) -> Mapping[str, Any] | None:
        """What the banner shows of it, or None."""


def configure_logging(directory: Path | None, name: str, level: str) -> None:
    """Named events to `directory`/`name`.log with bounded rotation, or to stderr."""
    handler: logging.Handler = logging.StreamHandler()
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(
                directory / f"{name}.log",
                maxBytes=_LOG_FILE_BYTES,
                backupCount=_LOG_FILES,
                encoding="utf-8",
            )
        except OSError as error:
            raise CliError(f"Cannot write logs to {directory}: {error.strerror}.") from None
    logging.basicConfig(level=level, format=_LOG_FORMAT, handlers=[handler], force=True)


def run_server(server: Server, supervision: Supervision, grace_s: float) -> None:
    """Run until a signal, or until the supervisor is gone. Raises CliError when it cannot start."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(server, supervision, grace_s))


async def _serve(server: Server, supervision: Supervision, grace_s: float) -> None:
    stopping = asyncio.Event()
    _stop_on_signals(stopping)
    if supervision.supervised:
        lifeline = _Lifeline(stopping, server)
        asyncio.get_running_loop().add_reader(STDIN, lifeline.read)
    bound = await server.start()
    supervision.report("bound", bound)
    watch = asyncio.create_task(_watch_state(server, supervision))
    try:
        await stopping.wait()
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        logger.info("process.stopping grace_s=%g", grace_s)
        await server.stop(grace_s)


def _stop_on_signals(stopping: asyncio.Event) -> None:
    """The first signal drains; a second one leaves at once, because somebody insists."""

    def on_signal() -> None:
        if stopping.is_set():
            logging.shutdown()
            os._exit(130)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


class _Lifeline:
    """stdin after its first line: news for the server, a JSON object a line; its end is the supervisor's."""

    def __init__(self, stopping: asyncio.Event, server: Server) -> None:
        self._stopping = stopping
        self._told: Callable[[Any], Coroutine[Any, Any, None]] | None = getattr(
            server, "told", None
        )
        self._buffer = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def read(self) -> None:
        """Something came, or nothing will come any more."""
        data = os.read(STDIN, _LIFELINE_CHUNK)
        if not data:
            asyncio.get_running_loop().remove_reader(STDIN)
            self._stopping.set()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if line.strip() and self._told is not None:
                task = asyncio.get_running_loop().create_task(self._told(json.loads(line)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


async def _watch_state(server: Server, supervision: Supervision) -> None:
    """Tell the supervisor what has changed of what the banner shows."""
    if supervision.report_fd is None:
        return
    last: Mapping[str, Any] | None = None
    loop = asyncio.get_running_loop()
    first_until_s = loop.time() + _STATE_FIRST_S
    while True:
        state = server.state()
        if state is not None and state != last:
            supervision.report("state", state)
            last = state
        waits = loop.time() < first_until_s and not _is_settled(last)
        await asyncio.sleep(_STATE_FIRST_PERIOD_S if waits else _STATE_PERIOD_S)


def _is_settled(state: Mapping[str, Any] | None) -> bool:
    """Whether it leads and takes writes: nobody waits for anything of it any more."""
    return state is not None and state.get("role") == "leader" and not state.get("write_refusal")


def start_or_explain(
    name: str,
    supervision: Supervision,
    body: Callable[[], None],
    expected: Callable[[], tuple[type[Exception], ...]],
) -> None:
    """Run `body`; a failure to start becomes one sentence for the supervisor, the log and stderr.

    `expected` names the errors whose text is already such a sentence; it is a callable because their
    modules are imported late.
    """
    try:
        body()
    except Exception as error:
        sentence = _sentence(name, error, expected())
        supervision.report("error", sentence)
        if supervision.report_fd is not None:
            logger.error("process.failed reason=%s", sentence)
            # The supervisor says the sentence; a second time on stderr would only repeat it.
            sys.exit(1)
        code = error.code if isinstance(error, CliError) else Exit.FAILED
        raise CliError(sentence, code) from error


def _sentence(name: str, error: Exception, expected: tuple[type[Exception], ...]) -> str:
    if isinstance(error, (CliError, ValueError, *expected)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"The {name} cannot run: {error.strerror} ({error.filename})."
        # A full disk met by a write to an open file: only the traceback knows which.
        logger.exception("process.crashed")
        return f"The {name} cannot run: {error.strerror}. Its log says where."
    logger.exception("process.crashed")
    return (
        f"The {name} failed: {type(error).__name__}: {str(error).rstrip('.')}. Its log says where."
    )
