"""The fork server of `cometmq up`: a process that has imported the servers, and forks them.

A server that starts as a command spends most of its start on imports. A process that is forked from
one that has imported everything serves after a tenth of that time, and shares the memory of the
modules. The fork server has one thread and no gRPC object, so a fork copies no lock that is held.

A forked process is a child of the fork server's parent, which waits for it and signals it as if it
had started it. It has its own command line, environment, working directory, umask, process group,
descriptors, signal handlers and standard streams, as a started one has. The fork server starts the
command itself (`exec`) where a fork would differ: if the kernel refuses the command line, or if a
variable has another value that is read before `main`.

Modules that a start does not need are imported once it is idle after the first fork: a process that
died, whose log is walked at its start, is then back without importing them.

A client sends a request (`Request`, one line of JSON) with the descriptors of the process on the
control socket, and reads the answer, one line: {"pid": P}, {"error": "..."}, or {"again": true} if
it must send the request again. The server answers so, and replaces itself (`exec`), when a module's
file has changed since its import, as after an upgrade of the package. The end of the control socket
ends the server; the processes go on.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TextIO

from . import process_image

MODULE = "cometmq.cli.cluster.fork_server"
#: Descriptors of a request: three standard streams, and a few more.
DESCRIPTORS_MAX = 16
#: Variables that are read before `main`, by the interpreter or by a library, by prefix.
_READ_EARLY = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "GRPC_", "MALLOC_", "COMETMQ_NATIVE")
#: The exception: a fork adopts it.
_ARENAS = "MALLOC_ARENA_MAX"
#: In front of the modules to import when the server is idle.
_LATER = "--later"
_IDLE_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Request:
    """A process to fork."""

    #: As of `exec`: Python, its options, then `-m` and a module, or a file; then arguments.
    command: list[str]
    environment: dict[str, str]
    directory: str
    umask: int
    #: The numbers that the passed descriptors get, in their order.
    descriptors: list[int]
    own_group: bool


def command_line(control: int, modules: Sequence[str], later: Sequence[str]) -> list[str]:
    """Return the command that starts a fork server; it inherits the descriptor `control`."""
    return [sys.executable, "-P", "-m", MODULE, str(control), *modules, _LATER, *later]


def serve(control: int, modules: Sequence[str], later: Sequence[str]) -> NoReturn:
    """Be a fork server, then end; in a forked process: run its command, then end."""
    _keep_only({2, control})  # errors of the server itself go where its parent's go
    null = os.open(os.devnull, os.O_RDWR)  # 0, the lowest number
    os.set_inheritable(null, True)
    os.dup2(null, 1)
    # What a started process inherits: a signal is ignored or has its default action.
    inherited = {number: _inherited(number) for number in _SIGNALS}
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the end of the control socket ends it
    process_image.set_command_line(command_line(control, modules, later), os.environ)
    request = _Server(control, modules, later, inherited).run()
    if request is None:
        os._exit(0)
    try:
        _run(request.command)
        code: object = None
    except SystemExit as ended:
        code = ended.code
    except Exception:  # the interpreter itself ends a process by KeyboardInterrupt
        sys.excepthook(*sys.exc_info())
        code = 1
    _end(code)


class _Server:
    def __init__(
        self,
        control: int,
        modules: Sequence[str],
        later: Sequence[str],
        inherited: Mapping[signal.Signals, signal.Handlers],
    ) -> None:
        self._command = command_line(control, modules, later)
        self._control = socket.socket(fileno=control)
        self._environment = dict(os.environ)
        self._later = later
        self._inherited = inherited
        self._import(modules)

    def _import(self, modules: Sequence[str]) -> None:
        for name in modules:
            importlib.import_module(name)
        self._files = _times(_loaded())
        gc.collect()
        gc.freeze()  # no collection writes to the pages of modules: they stay shared

    def _import_later(self) -> None:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy starts no thread; nothing here multiplies
        self._import(self._later)
        self._later = ()

    def run(self) -> Request | None:
        """Serve until the end of the control socket: None. In a forked process: its request."""
        while True:
            data, received, _flags, _peer = socket.recv_fds(self._control, _CHUNK, DESCRIPTORS_MAX)
            while data and not data.endswith(b"\n"):
                more = self._control.recv(_CHUNK)
                data = data + more if more else b""
            if not data:
                return None
            if self._files != _times(self._files):
                self._answer(again=True)
                for number, action in self._inherited.items():
                    signal.signal(number, action)
                os.set_inheritable(self._control.fileno(), True)
                os.execve(self._command[0], self._command, self._environment)
            request = Request(**json.loads(data))
            try:
                pid = process_image.fork_beside()
            except OSError as error:
                self._answer(error=error.strerror or "unknown error")
            else:
                if pid == 0:
                    self._control.detach()
                    _become(request, received, self._environment, self._inherited)
                    return request
                self._answer(pid=pid)
            for descriptor in received:
                os.close(descriptor)
            if self._later and not select.select([self._control], [], [], _IDLE_S)[0]:
                self._import_later()

    def _answer(self, **values: int | str | bool) -> None:
        with suppress(OSError):  # the client has ended
            self._control.sendall(json.dumps(values).encode() + b"\n")


def _inherited(number: signal.Signals) -> signal.Handlers:
    is_ignored = signal.getsignal(number) is signal.SIG_IGN
    return signal.SIG_IGN if is_ignored else signal.SIG_DFL


def _become(
    request: Request,
    received: Sequence[int],
    early: Mapping[str, str],
    inherited: Mapping[signal.Signals, signal.Handlers],
) -> None:
    """Give the forked process what a started one has; execute the command where that differs."""
    for number, action in inherited.items():
        is_interrupt = number is signal.SIGINT and action is signal.SIG_DFL
        signal.signal(number, signal.default_int_handler if is_interrupt else action)
    if request.own_group:
        os.setpgid(0, 0)
    _place(received, request.descriptors)
    os.chdir(request.directory)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    same = _read_early(request.environment) == _read_early(early)
    if not (same and process_image.set_command_line(request.command, request.environment)):
        os.execve(request.command[0], request.command, request.environment)
    if arenas := request.environment.get(_ARENAS):
        process_image.limit_arenas(int(arenas))
    sys.stdin = _stream(0, sys.stdin)
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)  # type: ignore[misc]


def _run(command: Sequence[str]) -> None:
    """Run a module or a file as Python's command line does."""
    words = list(command[1:])
    if words[0] == "-P":
        words.pop(0)
    else:
        sys.path.insert(0, os.getcwd() if words[0] == "-m" else os.path.dirname(words[0]))
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.modules.pop(words[1], None)  # imported by the server: `runpy` would warn
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _end(code: object) -> NoReturn:
    """End as the interpreter does, without destroying the objects: that would copy their pages."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)


def _place(received: Sequence[int], targets: Sequence[int]) -> None:
    """Give the received descriptors their numbers; close all others."""
    import fcntl

    above = max(targets) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    for descriptor, target in zip(moved, targets, strict=True):
        os.dup2(descriptor, target)
    _keep_only(targets)


def _keep_only(kept: Collection[int]) -> None:
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor not in kept:
            with suppress(OSError):  # that of the list itself
                os.close(descriptor)


def _stream(descriptor: int, like: TextIO) -> io.TextIOWrapper:
    unbuffered = descriptor > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    mode, buffering = "wb" if descriptor else "rb", 0 if unbuffered else -1
    return io.TextIOWrapper(
        open(descriptor, mode, buffering, closefd=False),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=not unbuffered and (descriptor == 2 or os.isatty(descriptor)),
        write_through=unbuffered,
    )


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_EARLY) and name != _ARENAS
    }


def _loaded() -> list[str]:
    """Return the files of the loaded modules of this package and of the native crate."""
    ours = (
        module for name, module in sys.modules.items() if name.startswith(("cometmq.", "cometmq_"))
    )
    return [file for module in ours if (file := getattr(module, "__file__", None))]


def _times(files: Collection[str]) -> dict[str, int]:
    """Return when each file was changed, in ns; 0 without a file."""
    times = dict.fromkeys(files, 0)
    for file in files:
        with suppress(OSError):
            times[file] = os.stat(file).st_mtime_ns
    return times


if __name__ == "__main__":
    at = sys.argv.index(_LATER)
    serve(int(sys.argv[1]), sys.argv[2:at], sys.argv[at + 1 :])
