"""The output of Spark's JVM and workers, kept out of the output of the command.

Spark prints warnings of Java and Hadoop, and two stacks for each failed task. The JVM inherits
stdout and stderr when it starts, so both lead to a file meanwhile. The file of `--spark-log` stays;
without the option it is temporary, and stays only if a job fails for a reason outside of CometMQ.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ...operations.errors import CliError

#: Value of `--spark-log` for stderr.
STDERR = "-"
_KEY = "cometmq.spark-log"
_STANDARD = (1, 2)
# One line of a reason; Spark's messages contain whole stacks and plans.
_REASON_MAX = 300
_FAILED = re.compile(r"^.*(?:Exception|Error)\b.*$", re.MULTILINE)
_CALL = "An error occurred while calling "


def keep_place(ctx: click.Context, _parameter: click.Parameter, place: str) -> None:
    """Keep the value of `--spark-log`."""
    ctx.meta[_KEY] = place


class SparkLog:
    """The log of one session; a context manager, which deletes a temporary file."""

    def __init__(self, place: str) -> None:
        """`place`: a file, `STDERR`, or "" for a temporary file. Raises CliError."""
        self._fd = -1
        self._path: Path | None = None
        self._is_temporary = not place
        try:
            if not place:
                self._fd, name = tempfile.mkstemp(prefix="cometmq-spark-", suffix=".log")
                self._path = Path(name)
            elif place != STDERR:
                self._path = Path(place)
                self._fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise CliError(f"Cannot write Spark's log: {error}.") from None

    @classmethod
    def of_command(cls) -> "SparkLog":
        """Return the log that the running command asks for. Raises CliError."""
        ctx = click.get_current_context(silent=True)
        return cls(ctx.meta.get(_KEY, "") if ctx is not None else STDERR)

    def __enter__(self) -> "SparkLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        if self._is_temporary and self._path is not None:
            self._path.unlink(missing_ok=True)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Give the log to processes that are started meanwhile."""
        if self._fd < 0:
            yield
            return
        sys.stdout.flush()
        sys.stderr.flush()
        copies = [os.dup(number) for number in _STANDARD]
        try:
            for number in _STANDARD:
                os.dup2(self._fd, number)
            yield
        finally:
            for number, copy in zip(_STANDARD, copies, strict=True):
                os.dup2(copy, number)
                os.close(copy)

    def not_started(self, error: Exception) -> CliError:
        """Return the error of a Spark that did not start, with the reason in its log."""
        text = self._path.read_text(errors="replace") if self._path is not None else ""
        found = _FAILED.search(text)
        return self._keep("Spark did not start", found[0] if found else text or str(error))

    def failed(self, error: Exception) -> CliError:
        """Return the error of a job that failed inside Spark."""
        return self._keep("The Spark job failed", str(error))

    def _keep(self, what: str, reason: str) -> CliError:
        self._is_temporary = False
        lines = [line.strip(" :") for line in reason.splitlines() if line.strip(" :")]
        line = next((line for line in lines if not line.startswith(_CALL)), "")
        place = f" Spark's log: {self._path}" if self._path is not None else ""
        return CliError(f"{what}: {line[:_REASON_MAX]}.{place}")


def is_of_spark(error: Any) -> bool:
    """Return True for an exception of PySpark or of its connection to the JVM."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))
