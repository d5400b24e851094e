"""The supervisor's control socket: a unix socket in the data directory, one JSON line each way.

    request   {"restart": "master"}, {"status": ""} or {"stop": ""}
    answer    {"ok": {...}} or {"error": "a sentence", "code": 1}

Only the owner of the directory may connect (mode 0600). A path too long for a socket address (108
bytes on Linux) is opened through the directory's descriptor in /proc.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import CliError, Exit

_PATH_BYTES_MAX = 100
# Longest accepted request line.
_LINE_BYTES_MAX = 4096


#: Takes the value of a request and returns the answer. Raises CliError.
Handler = Callable[[str], Awaitable[dict[str, Any]]]


class ControlServer:
    """The server side of the control socket."""

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        """`handlers` by the key of a request."""
        self._path = path
        self._handlers = handlers
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. The data directory is locked, so an existing socket file is a leftover."""
        self._path.unlink(missing_ok=True)
        with _short(self._path) as address:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(address)
            self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=_LINE_BYTES_MAX
        )

    async def stop(self) -> None:
        """Stop listening. Open requests have been answered when the children were stopped."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            answer = await self._answer(await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the client has left, or sent a line that is too long
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            ((key, value),) = json.loads(line).items()
            handler = self._handlers[key]
        except (ValueError, KeyError, AttributeError):
            return {"error": "Unknown request to the supervisor.", "code": Exit.USAGE}
        try:
            return {"ok": await handler(str(value))}
        except CliError as error:
            return {"error": str(error), "code": error.code}


def ask(path: Path, key: str, value: str, timeout_s: float) -> dict[str, Any]:
    """Make one request to the supervisor and return its answer. Raises CliError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            with _short(path) as address:
                connection.connect(address)
            connection.sendall(json.dumps({key: value}).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
        except TimeoutError:
            raise CliError(f"No answer to `{key} {value}` within {timeout_s:g} s.") from None
        except OSError:
            raise CliError(
                f"No `cometmq up` is running on {path.parent}. Name its data directory with --data."
            ) from None
    if not line:
        raise CliError("The supervisor ended before it answered.")
    answer = json.loads(line)
    if "error" in answer:
        raise CliError(answer["error"], Exit(answer["code"]))
    result: dict[str, Any] = answer["ok"]
    return result


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path of the socket that is short enough for a socket address."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        with suppress(OSError):
            os.close(fd)
