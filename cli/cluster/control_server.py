"""The server side of the supervisor's control socket (`control.py`)."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from ...operations.errors import CliError, Exit
from .control import short_address

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
        with short_address(self._path) as address:
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
