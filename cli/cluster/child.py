"""One supervised process: its pipes, start and end.

The child's stdin is the lifeline: the first line holds flags that were not known before (see
`server/process.py`), and end of file means that the supervisor has ended, however it was killed. A
second pipe carries the child's reports. Each child has its own process group, so that Ctrl-C
reaches only the supervisor, which stops the children in order.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from .forking import ForkedProcess, ForkServer
from .plan import Plan

#: What the servers import: the modules of the fork server.
MODULES = (
    *("cometmq.cli.server.command", "cometmq.cli.server.process"),
    *("cometmq.broker.server", "cometmq.nameserver.server"),
)
#: What they import when they walk a log, and for the first filter.
LATER_MODULES = (
    *("cometmq.store.recovery.walk", "cometmq.store.recovery.queue_begins"),
    *("cometmq.store.index.columns", "cometmq.broker.sql.evaluator", "cometmq.broker.sql.parser"),
)
_REPORT_CHUNK = 65_536
# Bound of stderr.log (output before logging is set up, and crashes).
_STDERR_BYTES_MAX = 1 << 20
_TAIL_LINES = 3
# Otherwise each gRPC and flush thread gets a malloc arena of 64 MiB address space that keeps freed
# memory.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}


def command_of(plan: Plan) -> list[str]:
    """Return the command line that starts the process by hand with its current flags."""
    return [sys.executable, "-P", "-m", "cometmq.cli.main", *plan.arguments()]


class Child:
    """A process of the cluster; `start` may be called again after it has ended."""

    def __init__(self, plan: Plan, fork_server: ForkServer | None) -> None:
        """Without a fork server the process is started as a command."""
        self.plan = plan
        self._fork_server = fork_server
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.report_fd = -1
        self.bound: dict[str, str] | None = None
        self.error: str | None = None
        self.state: Mapping[str, Any] = {}
        self._buffer = b""

    @property
    def name(self) -> str:
        """The name in the cluster."""
        return self.plan.name

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return self.process.pid if self.process is not None else 0

    @property
    def returncode(self) -> int | None:
        """The exit code, the negative signal number, or None while the process runs."""
        return self.process.returncode if self.process is not None else None

    def is_running(self) -> bool:
        """Return True while the process runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; its reports arrive on `report_fd`."""
        self.bound = self.error = None
        self.state, self._buffer = {}, b""
        self.report_fd, child_end = os.pipe()
        os.set_blocking(self.report_fd, False)
        command = [*command_of(self.plan), "--supervised", "--report-fd", str(child_end)]
        try:
            with self._open_stderr() as stderr:
                self.process = self._run(command, stderr.fileno(), child_end)
        finally:
            os.close(child_end)
        if not self.plan.needs_namesrv:
            self.send_flags({})

    def _run(
        self, command: list[str], stderr: int, report_fd: int
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        environment = {**_ENVIRONMENT, **os.environ}
        if self._fork_server is not None:
            reader, writer = os.pipe()
            descriptors = {0: reader, 1: stderr, 2: stderr, report_fd: report_fd}
            try:
                pid = self._fork_server.start(command, environment, descriptors, own_group=True)
                return ForkedProcess(pid, os.fdopen(writer, "wb"))
            except OSError:
                os.close(writer)  # the command below works, or raises with the reason
            finally:
                os.close(reader)
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            pass_fds=(report_fd,),
            process_group=0,
            env=environment,
        )

    def send_flags(self, flags: Mapping[str, str]) -> None:
        """Write the first line: the late flags. The lifeline stays open."""
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(flags).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; its exit status follows

    def send_event(self, content: Mapping[str, Any]) -> None:
        """Write a later line, without waiting for an answer."""
        if self.is_running():
            assert self.process is not None
            assert self.process.stdin is not None
            with contextlib.suppress(OSError):
                self.process.stdin.write(json.dumps(content).encode() + b"\n")
                self.process.stdin.flush()

    def read_reports(self) -> bool:
        """Process the child's reports; False when its end of the pipe is closed."""
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
        """Send a signal if the process runs."""
        if self.is_running():
            assert self.process is not None
            self.process.send_signal(number)

    def ended(self) -> None:
        """Close the supervisor's pipe ends after the end of the process."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.report_fd >= 0:
            os.close(self.report_fd)
            self.report_fd = -1

    def exit_text(self) -> str:
        """Describe the end of the process: exit code or signal."""
        code = self.returncode
        if code is not None and code < 0:
            return f"signal {-code} ({signal.Signals(-code).name})"
        return f"exit code {code}"

    def start_error(self) -> str:
        """Return the reported error, or the last lines of its output."""
        if self.error:
            return self.error
        path = self.plan.data / "log" / "stderr.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        last = " / ".join(lines[-_TAIL_LINES:])
        return f"it ended with {self.exit_text()} before it was serving. {last}".strip()

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
