"""Processes that a fork server (`fork_server.py`) forks for this process, which is their parent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO

from .fork_server import Request, command_line, serve

_ANSWER_BYTES_MAX = 4_096
# The server replaces itself once for changed files; an upgrade may still be writing them.
_ATTEMPTS = 3


class ForkServer:
    """A fork server of this process. Threads may share it."""

    def __init__(self, modules: Sequence[str], later: Sequence[str] = (), *, fork: bool) -> None:
        """Make a server that imports `modules`, and `later` when it is idle after a fork.

        With `fork` it is a fork of this process, which must have one thread; otherwise a command.
        """
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        if fork:
            self.pid = os.fork()
            if self.pid == 0:
                self._control.detach()
                serve(theirs.detach(), modules, later)
        else:
            command = command_line(theirs.fileno(), modules, later)
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
            self.pid = self._process.pid
        theirs.close()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Mapping[int, int],
        *,
        directory: str | None = None,
        umask: int | None = None,
        own_group: bool = False,
    ) -> int:
        """Fork a process; returns its id. `descriptors`: its number -> the one of this process.

        Raises OSError: there is no process.
        """
        with self._lock:
            if umask is None:
                umask = os.umask(0)
                os.umask(umask)
            request = Request(
                list(command),
                dict(environment),
                directory or os.getcwd(),
                umask,
                list(descriptors),
                own_group,
            )
            answer: dict[str, int | str] = {"again": True}
            for _ in range(_ATTEMPTS):
                if "again" in answer:
                    answer = self._ask(json.dumps(asdict(request)), [*descriptors.values()])
        if "pid" not in answer:
            reason = answer.get("error", "the files of the package keep changing")
            raise OSError(0, f"cannot fork a process: {reason}")
        return int(answer["pid"])

    def _ask(self, request: str, descriptors: Sequence[int]) -> dict[str, int | str]:
        data = request.encode() + b"\n"
        sent = socket.send_fds(self._control, [data], descriptors)
        self._control.sendall(data[sent:])
        line = b""
        while not line.endswith(b"\n"):
            more = self._control.recv(_ANSWER_BYTES_MAX)
            if not more:
                return {"error": "the fork server has ended"}
            line += more
        answer: dict[str, int | str] = json.loads(line)
        return answer

    def reap(self) -> None:
        """Let the kernel forget the server if it has ended."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def close(self) -> None:
        """End the server. Its processes go on."""
        self._control.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class ForkedProcess:
    """A forked process, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or the negative number of a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self.poll() is None:
            os.kill(self.pid, number)
