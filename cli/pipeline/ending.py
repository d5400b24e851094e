"""How a job ends that is told to: Ctrl-C and SIGTERM, at any moment, also while the JVM starts.

Spark's JVM ignores Ctrl-C and notices the end of its driver only when it has started; until then it was
left behind, and a job that was killed in the middle of its work printed the JVM's stack traces. Here both
signals raise in the main thread; the session is then stopped without a word, and whatever processes were
started since are ended. Codes: 130 for Ctrl-C, 143 for SIGTERM. A signal that was ignored stays ignored.
(pipeline note, section 5)
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

#: For processes that were told to end; then they are killed.
_END_S: Final = 10.0
_TERMINATED: Final = 128 + signal.SIGTERM


class _Terminated(KeyboardInterrupt):
    """SIGTERM; what passes Ctrl-C on (py4j closes the connection then) does the same with it."""


class Ending:
    """Around the life of a session. Only in the main thread; elsewhere it does nothing."""

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
        """Take the signals; again once Spark has set its own handler for Ctrl-C."""
        for number, before in self._handlers.items():
            ignored = before is signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else _raise)

    def mute(self, spark: "SparkSession") -> None:
        """What the JVM says of a job that is being ended is no news."""
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
    """Ask them, wait, kill what is left."""
    import psutil

    for ask in ("terminate", "kill"):
        for one in processes:
            try:
                getattr(one, ask)()
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, _END_S)
