"""Interruption of a job: Ctrl-C and SIGTERM at any time, also while the JVM starts.

Spark's JVM ignores Ctrl-C and detects the end of its driver only after it has started; without this
module it would be left running, and an interrupted job would print the JVM's stack traces. Both
signals raise in the main thread; the session is stopped silently, and all processes started since
are ended. Exit codes: 130 for Ctrl-C, 143 for SIGTERM. A signal that was ignored stays ignored.
"""

import logging
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Wait after SIGTERM to child processes; then they are killed.
_END_S: Final = 10.0
_TERMINATED: Final = 128 + signal.SIGTERM


class _Terminated(KeyboardInterrupt):
    """SIGTERM. Handled like Ctrl-C by py4j, which then closes its connection."""


class Interruption:
    """Signal handling for one session. Does nothing outside the main thread."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._before: set[int] = set()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {one.pid for one in _children()}
            self._handlers = {
                number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
            }
        self.install()
        return self

    def install(self) -> None:
        """Install the handlers; called again after Spark has set its own handler for Ctrl-C."""
        for number, before in self._handlers.items():
            ignored = before is signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else _raise)

    def mute(self, spark: "SparkSession") -> None:
        """Switch off the JVM's log while the job is being stopped."""
        try:
            spark.sparkContext.setLogLevel("OFF")
        except Exception:  # the JVM may be gone
            logging.getLogger(__name__).debug("pipeline.not_muted")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._handlers.items():
            signal.signal(number, before)
        if self._handlers and isinstance(error, KeyboardInterrupt):
            _end([one for one in _children() if one.pid not in self._before])
        if isinstance(error, _Terminated):
            sys.exit(_TERMINATED)


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    logging.disable(logging.CRITICAL)  # py4j logs the stack of the call that ends
    raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _children() -> list[Any]:
    import psutil

    return list(psutil.Process(os.getpid()).children(recursive=True))


def _end(processes: list[Any]) -> None:
    """Terminate, wait, then kill."""
    import psutil

    for ask in ("terminate", "kill"):
        for one in processes:
            try:
                getattr(one, ask)()
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, _END_S)
