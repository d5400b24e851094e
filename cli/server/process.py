"""A server process from start to stop: start, report, serve until a signal, drain.

A supervisor (`cometmq up`) passes two pipes:

    stdin        (--supervised) the first line is a JSON object of further flags, known only after
                 other processes have started (an ephemeral port of the nameserver); later lines are
                 events ({"exited": ...}); end of file means that the supervisor has ended, and the
                 process stops
    --report-fd  receives JSON lines: {"bound": {...}} when the server is serving, or
                 {"error": "a sentence"}; then {"state": {...}} whenever the state for the banner
                 changes
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from msgspec import Struct

from ...front.errors import scarcity
from ...operations.errors import CliError, Exit
from ...store.format.disk import NO_SPACE, full_disk

logger = logging.getLogger(__name__)

STDIN = 0
# Period of state reports for the banner.
_STATE_PERIOD_S = 0.5
# Shorter period during the start: `cometmq up` waits for a leader that accepts writes.
_STATE_FIRST_PERIOD_S = 0.02
_STATE_FIRST_S = 5.0
_LIFELINE_CHUNK = 4096
# Bound of the supervisor's first line.
_START_LINE_BYTES_MAX = 64 << 10


class Supervision(Struct, frozen=True):
    """The pipes to the supervisor, if there is one."""

    supervised: bool = False
    report_fd: int | None = None

    def late_flags(self) -> dict[str, str]:
        """Wait for the supervisor's first line and return its flags; {} without a supervisor."""
        if not self.supervised:
            return {}
        line = b""
        while not line.endswith(b"\n") and len(line) < _START_LINE_BYTES_MAX:
            # One byte at a time: bytes after the line belong to the lifeline reader.
            byte = os.read(STDIN, 1)
            if not byte:
                raise CliError("The supervisor ended before this process could start.")
            line += byte
        flags: dict[str, str] = json.loads(line)
        return flags

    def report(self, kind: str, content: object) -> None:
        """Write one line to the supervisor; ignored if it has ended."""
        if self.report_fd is None:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self.report_fd, json.dumps({kind: content}).encode() + b"\n")


class Server(Protocol):
    """The server of a process: a nameserver, a broker, or both."""

    async def start(self) -> Mapping[str, Any]:
        """Start serving; returns the bound addresses."""

    async def stop(self, grace_s: float) -> None:
        """Drain within the grace time and close."""

    def state(self) -> Mapping[str, Any] | None:
        """Return the state for the banner, or None."""


def run_server(
    server: Server, supervision: Supervision, grace_s: float, reload: Callable[[], None] | None
) -> None:
    """Run until a signal or the end of the supervisor. Raises CliError if the start fails.

    `reload` is called on SIGHUP; None keeps its usual effect, the end of the process.
    """
    from ...front.process import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(server, supervision, grace_s, reload))


async def _serve(
    server: Server, supervision: Supervision, grace_s: float, reload: Callable[[], None] | None
) -> None:
    stopping = asyncio.Event()
    _stop_on_signals(stopping)
    if reload is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
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
    """Drain on the first signal; exit at once on the second."""

    def on_signal() -> None:
        if stopping.is_set():
            logging.shutdown()
            os._exit(130)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


class _Lifeline:
    """Reads stdin after its first line: one JSON event on each line, end of file to stop."""

    def __init__(self, stopping: asyncio.Event, server: Server) -> None:
        self._stopping = stopping
        self._notify: Callable[[Any], Coroutine[Any, Any, None]] | None = getattr(
            server, "notify", None
        )
        self._buffer = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def read(self) -> None:
        """Read what is available."""
        data = os.read(STDIN, _LIFELINE_CHUNK)
        if not data:
            asyncio.get_running_loop().remove_reader(STDIN)
            self._stopping.set()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if line.strip() and self._notify is not None:
                task = asyncio.get_running_loop().create_task(self._notify(json.loads(line)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


async def _watch_state(server: Server, supervision: Supervision) -> None:
    """Report changes of the server's state to the supervisor."""
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
    """Return True for a leader that accepts writes: the start is complete."""
    return state is not None and state.get("role") == "leader" and not state.get("write_refusal")


def start_or_explain(
    name: str,
    supervision: Supervision,
    body: Callable[[], None],
    expected: Callable[[], tuple[type[Exception], ...]],
) -> None:
    """Run `body`; report a failure as one sentence to the supervisor, the log and stderr.

    `expected` returns the errors whose text is such a sentence; it is a callable because their
    modules are imported late.
    """
    try:
        body()
    except Exception as error:
        sentence = _sentence(name, error, expected())
        supervision.report("error", sentence)
        if supervision.report_fd is not None:
            logger.error("process.failed reason=%s", sentence)
            # The supervisor prints the sentence; stderr would repeat it.
            sys.exit(1)
        code = error.code if isinstance(error, CliError) else Exit.FAILED
        raise CliError(sentence, code) from error


def _sentence(name: str, error: Exception, expected: tuple[type[Exception], ...]) -> str:
    if isinstance(error, (CliError, ValueError, *expected)):
        return str(error)
    if advice := scarcity(error):
        logger.exception("process.crashed")
        return f"The {name} cannot run: {advice}"
    if isinstance(error, OSError) and error.strerror:
        if error.filename and error.errno in NO_SPACE:
            return f"The {name} cannot run: {full_disk(error.filename, 'its files need some MiB')}"
        if error.filename:
            return f"The {name} cannot run: {error.strerror} ({error.filename})."
        # A full disk found by a write to an open file: only the traceback shows which.
        logger.exception("process.crashed")
        return f"The {name} cannot run: {error.strerror}. See its log."
    logger.exception("process.crashed")
    return f"The {name} failed: {type(error).__name__}: {str(error).rstrip('.')}. See its log."
