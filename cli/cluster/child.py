"""One supervised process: its pipes, its start, its end. Imports little, so that it starts at once.

The child's stdin is the lifeline: its first line carries flags that were not known before (see
`process.py`), and its end of file tells the child that the supervisor is gone, whatever killed it.
A second pipe brings the child's reports. Children get a process group of their own, so that Ctrl-C
reaches the supervisor alone and it decides in which order they stop.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from .plan import Plan

_REPORT_CHUNK = 65_536
# stdout and stderr of a child: only what is printed before logging is set up, and crashes.
_STDERR_BYTES_MAX = 1 << 20
_TAIL_LINES = 3
# Threads of gRPC and of the flush would otherwise get a heap of 64 MiB address space each, and keep
# what they freed.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}


def command_of(plan: Plan) -> list[str]:
    """A command line that starts the process by hand, as it runs now."""
    return [sys.executable, "-P", "-m", "cometmq.cli.main", *plan.arguments()]


class Child:
    """A process of the cluster; `start` may be called again when it has ended."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.process: subprocess.Popen[bytes] | None = None
        self.report_fd = -1
        self.bound: dict[str, str] | None = None
        self.error: str | None = None
        self.state: Mapping[str, Any] = {}
        self._buffer = b""

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self.plan.name

    @property
    def pid(self) -> int:
        """Its process id, 0 before the first start."""
        return self.process.pid if self.process is not None else 0

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the signal, or None while it runs."""
        return self.process.returncode if self.process is not None else None

    def is_running(self) -> bool:
        """Whether the process exists."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; reports come through `report_fd` from now on."""
        self.bound = self.error = None
        self.state, self._buffer = {}, b""
        self.report_fd, child_end = os.pipe()
        os.set_blocking(self.report_fd, False)
        command = [*command_of(self.plan), "--supervised", "--report-fd", str(child_end)]
        try:
            with self._open_stderr() as stderr:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=stderr,
                    stderr=stderr,
                    pass_fds=(child_end,),
                    process_group=0,
                    env={**_ENVIRONMENT, **os.environ},
                )
        finally:
            os.close(child_end)
        if not self.plan.needs_namesrv:
            self.tell({})

    def tell(self, flags: Mapping[str, str]) -> None:
        """Its first line: the flags that were waited for; the lifeline stays open."""
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(flags).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended already; its exit status is on the way and says why.

    def news(self, content: Mapping[str, Any]) -> None:
        """A later line; nothing waits for it."""
        if self.is_running():
            assert self.process is not None
            assert self.process.stdin is not None
            with contextlib.suppress(OSError):
                self.process.stdin.write(json.dumps(content).encode() + b"\n")
                self.process.stdin.flush()

    def read_reports(self) -> bool:
        """Take what the child reported; False when its end of the pipe is closed."""
        try:
            data = os.read(self.report_fd, _REPORT_CHUNK)
        except BlockingIOError:
            return True
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(data)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is there."""
        if self.is_running():
            assert self.process is not None
            self.process.send_signal(number)

    def ended(self) -> None:
        """Close the supervisor's ends after the process has gone."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.report_fd >= 0:
            os.close(self.report_fd)
            self.report_fd = -1

    def how_it_ended(self) -> str:
        """The end of the process in words."""
        code = self.returncode
        if code is not None and code < 0:
            return f"signal {-code} ({signal.Signals(-code).name})"
        return f"exit code {code}"

    def why_not_started(self) -> str:
        """Its own sentence, or the end of what it printed."""
        if self.error:
            return self.error
        path = self.plan.data / "log" / "stderr.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        said = " / ".join(lines[-_TAIL_LINES:])
        return f"it ended with {self.how_it_ended()} before it served. {said}".strip()

    def _open_stderr(self) -> BinaryIO:
        path = self.plan.data / "log" / "stderr.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        too_long = path.exists() and path.stat().st_size > _STDERR_BYTES_MAX
        return path.open("wb" if too_long else "ab")

    def _take(self, report: Mapping[str, Any]) -> None:
        if "bound" in report:
            self.bound = report["bound"]
            self.plan.keep_ports(report["bound"])
        elif "error" in report:
            self.error = str(report["error"])
        elif "state" in report:
            self.state = report["state"]
