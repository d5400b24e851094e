"""Processes of CometMQ in tests are forked from one that has imported it (`fork_server.py`).

`install` changes `subprocess.Popen` in the processes that run tests, and so `subprocess.run` and
asyncio's processes: a command line of `cometmq` or of a module of this package is forked, which
costs a tenth of a start. Everything else about the process is as if the command had started it;
`tests/cli/test_fork_server.py` compares both. Tests of start, signals and installation are marked
`real_start`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cometmq.cli.cluster.child import LATER_MODULES, MODULES
from cometmq.cli.cluster.forking import ForkServer
from cometmq.cli.cluster.process_image import can_fork_beside
from cometmq.cli.main import ALIASES, COMMANDS

_SCRIPT = str(Path(sys.executable).with_name("cometmq"))
# Heavy modules of commands that few tests call.
_NOT_IMPORTED = (".console", "pipeline")
_MORE = (
    *("cometmq.broker.classic.port", "cometmq.cli.cluster.supervisor", "cometmq.client.sync"),
    *("cometmq.console.server", "cometmq.tests.broker.live", "cometmq.drills.load"),
)
_execute: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_switch = {"on": True}
_lock = threading.Lock()
_servers: list[ForkServer] = []


def install() -> None:
    """Fork from now on."""
    if can_fork_beside():
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


@contextmanager
def real_starts() -> Iterator[None]:
    """Start commands in this block."""
    _switch["on"] = False
    try:
        yield
    finally:
        _switch["on"] = True


def _modules() -> list[str]:
    named = {module for module, _command, _help in (*COMMANDS.values(), *ALIASES.values())}
    chosen = sorted(name for name in named if not name.startswith(_NOT_IMPORTED))
    return [*MODULES, *LATER_MODULES, *(f"cometmq.cli.{name}" for name in chosen), *_MORE]


def _server() -> ForkServer:
    with _lock:
        if not _servers:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a fork server has one thread
            with real_starts():
                _servers.append(ForkServer(_modules(), fork=False))
        return _servers[0]


def command_to_fork(arguments: Any) -> list[str] | None:
    """Return the command line that a process of CometMQ shows; None for any other process."""
    if isinstance(arguments, (str, bytes, os.PathLike)):
        return None
    words = [os.fsdecode(word) for word in arguments]
    if words[0] == _SCRIPT:
        return [sys.executable, *words]
    module = words[2:4] if words[1:2] == ["-P"] else words[1:3]
    is_ours = module[:1] == ["-m"] and module[1:] and module[1].startswith("cometmq.")
    return words if words[0] == sys.executable and is_ours else None


def _execute_child(process: Any, arguments: Any, *more: Any) -> None:
    names: Sequence[str] = (
        *("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo"),
        *("creationflags", "shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread"),
        *("errwrite", "restore_signals", "gid", "gids", "uid", "umask", "start_new_session"),
        "process_group",
    )
    given = dict(zip(names, more, strict=True))
    plain = not any(
        given[name] for name in ("executable", "preexec_fn", "shell", "start_new_session")
    )
    plain = plain and given["gid"] is given["gids"] is given["uid"] is None
    command = command_to_fork(arguments) if _switch["on"] and plain else None
    if command is None:
        _execute(process, arguments, *more)
        return
    pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    descriptors = {number: pipe if pipe >= 0 else number for number, pipe in enumerate(pipes)}
    process.pid = _server().start(
        command,
        os.environ if given["env"] is None else given["env"],
        {**descriptors, **{fd: fd for fd in given["pass_fds"]}},
        directory=os.path.abspath(given["cwd"]) if given["cwd"] else None,
        umask=given["umask"] if given["umask"] >= 0 else None,
        own_group=given["process_group"] == 0,
    )
    process._child_created = True
    process._close_pipe_fds(*(given[name] for name in names[9:15]))
